"""Parses the arguments of methods: symbols, shares, options. A bad argument raises `InvalidMethod`."""

from collections.abc import Collection, Mapping

from onebert_store.errors import InvalidMethod

HEAD = "head"  # the method of an exact head alone
ALL = "all"  # in place of a list of targets


def refuse_arguments(name: str, arguments: str, hint: str = "") -> None:
    """Refuses any arguments of a method that takes none."""
    if arguments:
        raise InvalidMethod(f"{name} takes no arguments{hint}")


def plain(symbol: str) -> str:
    """A symbol as methods write it: `bm2` for `b_m2`."""
    return symbol.replace("_", "")


def read_symbols(name: str, arguments: str, allowed: tuple[str, ...]) -> tuple[set[str], bool]:
    """Reads `bq,bm2` or `-bq,-bm2`, with or without underscores; returns the symbols, and whether they are excluded."""
    listed = [part.strip() for part in arguments.split(",")] if arguments else []
    known = {plain(symbol).lower(): symbol for symbol in allowed}
    try:
        symbols = {known[plain(part.removeprefix("-")).lower()] for part in listed}
    except KeyError:
        names = ", ".join(map(plain, allowed))
        raise InvalidMethod(f"{name} takes a comma-separated choice of {names}") from None
    without = any(part.startswith("-") for part in listed)
    if without and not all(part.startswith("-") for part in listed):
        raise InvalidMethod(f"{name} takes names, or names that all have a minus: all but those")
    if symbols == set(allowed) and without:
        raise InvalidMethod(f"{name}:{arguments} leaves nothing to train")
    return symbols, without


def read_share(name: str, arguments: str) -> float:
    """Reads `0.1%` of the base's parameters as 0.1."""
    try:
        share = float(arguments.removesuffix("%"))
    except ValueError:
        share = 0.0
    if not (arguments.endswith("%") and 0 < share <= 100):
        raise InvalidMethod(f"{name} is written {name}:0.1%, a share of the base's parameters")
    return share


def read_options(name: str, arguments: str, allowed: tuple[str, ...]) -> dict[str, str]:
    """Reads `r=8,targets=q,k` as {"r": "8", "targets": "q,k"}: text without `=` continues the value before it."""
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in arguments.split(","))):
        key, equals, value = part.partition("=")
        if not equals and options:
            options[next(reversed(options))] += f",{key}"
        elif not equals or key not in allowed or key in options:
            raise InvalidMethod(f"{name} takes {', '.join(f'{key}=…' for key in allowed)}, each once")
        else:
            options[key] = value
    return options


def read_rank_alpha(options: Mapping[str, str], default: int = 8) -> tuple[int, float]:
    """The rank and alpha of a low-rank method; alpha is twice the rank unless given, as in SPAFIT."""
    try:
        rank = int(options.get("r", default))
        alpha = float(options.get("alpha", 2 * rank))
    except ValueError:
        raise InvalidMethod("r is a whole number and alpha a number") from None
    if not (1 <= rank <= 4096 and 0 < alpha <= 65536):
        raise InvalidMethod("r is from 1 to 4096 and alpha above 0, at most 65536")
    return rank, alpha


def read_targets(name: str, options: Mapping[str, str], default: str, allowed: Collection[str]) -> list[str]:
    """The maps that a low-rank method changes, in the order of `allowed`; `all` names every one."""
    listed = options.get("targets", default)
    targets = set(allowed) if listed.strip() == ALL else {part.strip() for part in listed.split(",")}
    if not targets <= set(allowed):
        raise InvalidMethod(f"the targets of {name} are {ALL}, or a comma-separated choice of {', '.join(allowed)}")
    return [key for key in allowed if key in targets]
