"""An alias and its moves in words: one string for the terminal, the page, the audit trail and webhooks."""

from collections.abc import Callable, Mapping

from onebert_server.contract.administration import Change
from onebert_server.contract.status import Move
from onebert_server.contract.tasks import AliasPlace, ShadowShare, TargetFacts
from onebert_store.file.strict_json import printable


def meaning(target: TargetFacts | None, version: int | None, label: Callable[[int], str] = str) -> str:
    """A target in words: `95 % 7, 5 % 8 by principal, shadow 9 (20 %)`; without a target the version alone.

    `label` names a version by its number.
    """
    if target is None:
        return label(version) if version else "new"
    split = {label(int(number)): share for number, share in target.split.items()}
    text = ", ".join(f"{share} % {name}" for name, share in split.items()) if len(split) > 1 else next(iter(split))
    text += f" by {target.sticky}" if target.sticky else ""
    shadows = (f", shadow {label(shadow.version)}{_part(shadow.percent)}" for shadow in target.shadow or ())
    return text + "".join(shadows)


def changed(
    place: AliasPlace,
    split: Mapping[int, int] | None = None,
    sticky: str | None = None,
    shadow: Mapping[int, int] | None = None,
) -> TargetFacts:
    """The meaning of an alias with new parts; None leaves one, an empty one ends it. A shadow with a share ends.

    Args:
        split, shadow: percentages by version.
        sticky: what chooses the version: `principal`, or `header:NAME`.
    """
    to = place.target or TargetFacts({str(place.version): 100})
    shares, key, shadows = to.split, to.sticky, to.shadow
    if split is not None:
        shares, key = (
            ({str(number): share for number, share in split.items()}, key)
            if split
            else (
                {str(place.version): 100},
                None,
            )
        )
        shadows = [each for each in shadows or () if str(each.version) not in shares] or None
    if sticky is not None:
        key = sticky or None
    if shadow is not None:
        shadows = [ShadowShare(*each) for each in shadow.items()] or None
    return TargetFacts(shares, key, shadows)


def ends(before: TargetFacts | None, after: TargetFacts | None) -> list[str]:
    """The shadows and the split of a target that `after` (None: a version alone) ends: `shadow 5`, `split 90/10`."""
    if before is None:
        return []
    stay = {shadow.version for shadow in (after and after.shadow) or ()}
    gone = [f"shadow {shadow.version}" for shadow in before.shadow or () if shadow.version not in stay]
    ended = len(before.split) > 1 and (after is None or len(after.split) == 1)
    return [_split(before)] * ended + gone


def words(
    before: TargetFacts | None, after: TargetFacts | None, was: int | None, now: int | None, back: bool = False
) -> str:
    """Words a move: `1 → 2`, `shadow 5 began (20 %)`, `split 90/10 → 2 alone`, `rolled back to 1`.

    Args:
        before, after: the targets; None for one version alone.
        was, now: the main versions; None for an alias that is new, or deleted.
        back: whether the alias went back to a version that was live before.
    """
    if was is None or now is None:
        return f"new → {meaning(after, now)}" if now else f"deleted, was {meaning(before, was)}"
    first, last = _whole(before, was), _whole(after, now)
    parts = []
    if back and was != now:
        parts.append(f"rolled back to {_answering(last)}")
        parts += [f"{_split(first)} ended"] * (len(first.split) > 1)
    elif first.split != last.split:
        alone = " alone" if len(first.split) > 1 and len(last.split) == 1 else ""
        parts.append(f"{_split(first) if alone else _answering(first)} → {_answering(last)}{alone}")
    elif first.sticky != last.sticky:
        parts.append(f"split by {last.sticky or 'chance'}")
    return ", ".join([*parts, *_of_shadows(first, last)]) or "the same"


def why(change: Change | Move) -> str:
    """Why a change was made: `past the gate (must is 1, bound 0): it is urgent`; empty if nobody said."""
    past = "past the gate" * change.past_gate + (f" ({'; '.join(change.failed)})" if change.failed else "")
    return printable(": ".join(filter(None, (past, change.reason))), 1000)


def _of_shadows(before: TargetFacts, after: TargetFacts) -> list[str]:
    first, last = ({shadow.version: shadow.percent for shadow in target.shadow or ()} for target in (before, after))
    ended = [f"shadow {number} ended" for number in first if number not in last]
    began = [f"shadow {number} began{_part(percent)}" for number, percent in last.items() if number not in first]
    changed = [
        f"shadow {number} {first[number]} → {percent} %"
        for number, percent in last.items()
        if number in first and first[number] != percent
    ]
    return ended + began + changed


def _whole(target: TargetFacts | None, version: int) -> TargetFacts:
    return target or TargetFacts({str(version): 100})


def _answering(target: TargetFacts) -> str:
    return meaning(TargetFacts(target.split, target.sticky), None)


def _split(target: TargetFacts) -> str:
    return f"split {'/'.join(map(str, target.split.values()))}"


def _part(percent: int) -> str:
    return f" ({percent} %)" if percent < 100 else ""
