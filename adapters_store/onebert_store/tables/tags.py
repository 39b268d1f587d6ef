"""Reads the tags of other schemes (BIOES, BILOU, BMEWO, suffixes, an outside tag of another name) as BIO."""

import re
from collections.abc import Collection

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
