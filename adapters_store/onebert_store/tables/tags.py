"""Reads the tags of other schemes (BIOES, BILOU, BMEWO, IO, IOB1, suffixes, another outside tag) as BIO."""

import re
from collections.abc import Collection, Iterable, Sequence

_BEFORE = re.compile(r"(?P<place>[BIELMSUW])[-_](?P<kind>.+)")
_BEHIND = re.compile(r"(?P<kind>.+)[-_](?P<place>[BIELMSUW])")
_FIRST = "BSUW"  # places of a word that begins an entity


def bio_names(names: Collection[str]) -> dict[str, str]:
    """Returns the tags that BIO writes in another way, with BIO's; empty for tags that mark no entities."""
    for scheme in (_BEFORE, _BEHIND):
        tags = {name: tag for name in names if (tag := scheme.fullmatch(name))}
        rest = [name for name in names if name not in tags]
        # The only tag unlike the others marks the words outside.
        if tags and len(rest) == 1:
            bio = {name: f"{'B' if tag['place'] in _FIRST else 'I'}-{tag['kind']}" for name, tag in tags.items()}
            return {name: tag for name, tag in (bio | {rest[0]: "O"}).items() if name != tag}
    return {}


def begin_inside(rows: Iterable[Sequence[str]]) -> set[str]:
    """Returns the kinds of entities that begin with I-x, as in IO and IOB1; none if a B-x begins one behind another."""
    kinds = set[str]()
    for tags in rows:
        for before, tag in zip(("O", *tags), tags, strict=False):
            if before[2:] != tag[2:] and tag.startswith("B-"):
                return set()
            if before[2:] != tag[2:] and tag.startswith("I-"):
                kinds.add(tag[2:])
    return kinds


def begun(tags: Sequence[str]) -> list[str]:
    """Returns the tags of IO and IOB1 with BIO's B-x where an entity begins."""
    pairs = zip(("O", *tags), tags, strict=False)
    return [f"B-{tag[2:]}" if tag[:2] == "I-" and before[2:] != tag[2:] else tag for before, tag in pairs]
