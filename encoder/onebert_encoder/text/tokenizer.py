"""Tokenizes texts with the base's tokenizer; a text is split once, then truncated to each task's length."""

import json
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import tokenizers

from onebert_encoder.text.tokens import Alignment, Cut, Pieces, Placed, Source, Span, Text, Tokens, halves_of
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import CutRule
from onebert_store.file.manifest import SIAMESE

# Every tokenizer splits this text into tokens; its encoding shows the positions of the special tokens.
_PROBE = "a 1."
# Categories of characters that are drawn on the one before.
_MARKS = ("Mn", "Me")


class _Beginning(NamedTuple):
    """Offsets of the beginning of a long half and of the next piece, and words; the whole takes too much memory."""

    offsets: list[Span]
    word_ids: list[int | None]


@dataclass(frozen=True)
class _Template:
    """The special tokens before, between and after the halves, their segments, and the segments of the halves."""

    ids: list[list[int]]
    types: list[list[int]]
    half_types: list[int]
    size: int


class Tokenizer:
    """The base's tokenizer; thread-safe.

    `split` splits a text once; `fit` and `cut` truncate it for each task. They need neither the text nor the library's
    own truncation, a setting that all threads would share. `has_types`: the base has segment embeddings; `apart`: each
    text of a pair is its own sequence.
    """

    def __init__(self, backend: tokenizers.Tokenizer, has_types: bool, apart: bool = False) -> None:
        self._backend = backend
        self._backend.no_truncation()
        self._backend.no_padding()
        self._has_types, self._apart = has_types, apart
        single = _template(backend.encode(_PROBE))
        pair = _twice(single) if apart else _template(backend.encode(_PROBE, _PROBE))
        self._templates = [single, pair]

    def reading(self, pooling: str) -> "Tokenizer":
        """The tokenizer for a pooling; `split` gives the same pieces for all poolings."""
        return self._siamese if pooling == SIAMESE else self

    @cached_property
    def _siamese(self) -> "Tokenizer":
        return Tokenizer(self._backend, self._has_types, apart=True)

    @property
    def written(self) -> str:
        return self._backend.to_str()

    @cached_property
    def unknown(self) -> int | None:
        """The id of unknown tokens; None if the vocabulary covers everything, as with bytes."""
        token = getattr(self._backend.model, "unk_token", None)
        return None if token is None else self._backend.token_to_id(token)

    def dumps(self) -> str:
        """The tokenizer as JSON, for a process that tokenizes but has no base."""
        return json.dumps({"tokenizer": self.written, "has_types": self._has_types})

    @classmethod
    def loads(cls, text: str) -> "Tokenizer":
        stored = json.loads(text)
        return cls(tokenizers.Tokenizer.from_str(stored["tokenizer"]), stored["has_types"])

    def encode(
        self, texts: Sequence[Text], max_length: int, align: bool = False, rule: CutRule = "head"
    ) -> list[Tokens]:
        """Tokenizes texts or pairs, truncated to `max_length` tokens; raises InvalidInput if that is too short."""
        split = self.split(texts, sys.maxsize if rule == "ends" else max_length)
        return [self.cut(pieces, self.fit(pieces, max_length, rule), align) for pieces in split]

    def split(self, texts: Sequence[Text], limit: int, placed: bool = True) -> list[Pieces]:
        """Splits texts or pairs; keeps `limit` pieces of each half, and their offsets if `placed` (slower)."""
        halves = [half for text in texts for half in halves_of(text)]
        if placed and len(halves) == 1:
            # `encode_batch` would hand a single text to other threads and release Python's lock, which takes longer
            # than the text.
            encoded = [self._backend.encode(halves[0], add_special_tokens=False)]
        else:
            encode = self._backend.encode_batch if placed else self._backend.encode_batch_fast
            encoded = encode(halves, add_special_tokens=False)
        encodings = iter(encoded)
        return [_pieces(halves_of(text), [next(encodings) for _ in halves_of(text)], limit, placed) for text in texts]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of single texts, without special tokens; see `around`."""
        if len(texts) == 1:
            # See `split`.
            return [self._backend.encode(texts[0], add_special_tokens=False).ids]
        encoded = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    @cached_property
    def around(self) -> tuple[list[int], list[int]] | None:
        """The special tokens before and after a single text; None if such a sequence has segments, or is of no text."""
        single = self._templates[0]
        if self._apart or (self._has_types and (any(map(any, single.types)) or single.half_types[0])):
            return None
        before, after = single.ids
        return before, after

    def fit(self, pieces: Pieces, max_length: int, rule: CutRule = "head") -> Cut:
        """The part that fits `max_length`, each text's own if siamese; raises InvalidInput if that cannot be.

        It is the beginning, or with `ends` the first and the last half of the tokens, an odd one at the beginning; then
        `pieces` have to be whole.
        """
        room = self.room(len(pieces.lengths), max_length)
        apart = [min(length, room) for length in pieces.lengths]
        counts = apart if self._apart else longest_first(pieces.lengths, room)
        if rule != "ends":
            return tuple((0, count) for count in counts)
        lasts = [count // 2 if count < whole else 0 for count, whole in zip(counts, pieces.lengths, strict=True)]
        return tuple((-last, count - last) for last, count in zip(lasts, counts, strict=True))

    def room_behind(self, before: Sequence[int], max_length: int) -> int:
        """The number of the last text's pieces that fit behind the texts of lengths `before`; negative if none fit."""
        room = self._room(len(before) + 1, max_length)
        if self._apart:
            return room if max(before) <= room else -1
        return room - sum(before)

    def room(self, halves: int, max_length: int) -> int:
        """The number of pieces that fit beside the special tokens; raises InvalidInput if not even these fit."""
        if (room := self._room(halves, max_length)) < 0:
            raise InvalidInput(f"{max_length} tokens hold not even the special tokens of such an input")
        return room

    def _room(self, halves: int, max_length: int) -> int:
        if self._apart and halves == 1:
            raise InvalidInput("this task compares two texts: it takes a pair, not a single text")
        return max_length - self._templates[0 if self._apart else halves - 1].size

    def cut(self, pieces: Pieces, cut: Cut, align: bool = False) -> Tokens:
        """The tokens of the kept pieces, with special tokens.

        `cut` may be any part of each half's pieces. Without `align`, pieces may lack their text (from another
        process).
        """
        template = self._templates[len(pieces.ids) - 1]
        input_ids = [*template.ids[0]]
        for half, span in enumerate(cut):
            for start, stop in _ranges(span, len(pieces.ids[half])):
                input_ids += pieces.ids[half][start:stop]
            input_ids += template.ids[half + 1]
        type_ids = self._type_ids(template, cut) if self._has_types else [0] * len(input_ids)
        alignment = _alignment(pieces.sources, cut, [len(ids) for ids in template.ids]) if align else None
        second = self._templates[0].size + cut[0][1] - cut[0][0] if self._apart else 0
        return Tokens(input_ids, type_ids, self.measure(pieces, cut)[1], alignment, second)

    def measure(self, pieces: Pieces, cut: Cut) -> tuple[int, bool]:
        """The number of tokens that `cut` would return, and whether it would truncate."""
        count = 0
        for start, stop in cut:
            count += stop - start
        return count + self._templates[len(pieces.ids) - 1].size, count < sum(pieces.lengths)

    def _type_ids(self, template: "_Template", cut: Cut) -> list[int]:
        types = [*template.types[0]]
        for half, (start, stop) in enumerate(cut):
            types += [template.half_types[half]] * (stop - start)
            types += template.types[half + 1]
        return types


class CutOnce(dict[tuple[int, Cut, Tokenizer], Tokens]):
    """Caches `cut` by the `id` of pieces, which must outlive it: packing shares layers if the tokens are one object."""

    def cut(self, tokenizer: Tokenizer, pieces: Pieces, cut: Cut) -> Tokens:
        key = id(pieces), cut, tokenizer
        if key not in self:
            self[key] = tokenizer.cut(pieces, cut)
        return self[key]


def _pieces(halves: Sequence[str], encodings: Sequence[tokenizers.Encoding], limit: int, placed: bool) -> Pieces:
    both = zip(halves, encodings, strict=True) if placed else ()
    return Pieces(
        tuple(encoding.ids[:limit] for encoding in encodings),
        tuple(len(encoding) for encoding in encodings),
        tuple(Source(half, _placed(encoding, limit)) for half, encoding in both),
    )


def _placed(encoding: tokenizers.Encoding, limit: int) -> Placed:
    if len(encoding) <= limit:
        return encoding
    return _Beginning(encoding.offsets[: limit + 1], encoding.word_ids[:limit])


def _template(probe: tokenizers.Encoding) -> _Template:
    ids: list[list[int]] = [[]]
    types: list[list[int]] = [[]]
    half_types: list[int] = []
    for token, kind, half in zip(probe.ids, probe.type_ids, probe.sequence_ids, strict=True):
        if half is None:
            ids[-1].append(token)
            types[-1].append(kind)
        elif half == len(half_types):
            half_types.append(kind)
            ids.append([])
            types.append([])
    return _Template(ids, types, half_types, sum(map(len, ids)))


def _twice(single: _Template) -> _Template:
    (before, after), (type_before, type_after) = single.ids, single.types
    types = [type_before, type_after + type_before, type_after]
    return _Template([before, after + before, after], types, 2 * single.half_types, 2 * single.size)


def _ranges(span: Span, length: int) -> list[Span]:
    return [span] if span[0] >= 0 else [(0, span[1]), (length + span[0], length)]


def _alignment(sources: Sequence[Source], cut: Cut, specials: Sequence[int]) -> Alignment:
    """Offsets of the kept tokens, without whitespace; `specials` counts special tokens around the halves."""
    alignment = Alignment([], [], [])

    def skip(count: int) -> None:
        alignment.offsets.extend([(0, 0)] * count)
        alignment.words.extend([None] * count)
        alignment.sequences.extend([None] * count)

    skip(specials[0])
    parts = [
        (half, source, *places)
        for half, (source, span) in enumerate(zip(sources, cut, strict=True))
        for places in _ranges(span, len(source.placed.offsets))
    ]
    for number, (half, source, first, last) in enumerate(parts):
        end, offsets = 0, source.placed.offsets[first : last + 1]
        starts_behind = [start for start, _ in offsets[1:]] + [len(source.half)]
        for (start, stop), behind in zip(offsets[: last - first], starts_behind, strict=False):
            piece = source.half[start:stop]
            inner = piece.strip()
            begin = start + piece.index(inner) if inner else end
            end = begin + len(inner)
            # Tokenizers that strip accents leave a word's last combining marks to no token.
            while inner and end < behind and unicodedata.category(source.half[end]) in _MARKS:
                end += 1
            alignment.offsets.append((begin, end))
        alignment.words.extend(source.placed.word_ids[first:last])
        alignment.sequences.extend([half] * (last - first))
        if number + 1 == len(parts) or parts[number + 1][0] != half:
            skip(specials[half + 1])
    return alignment


def longest_first(lengths: Sequence[int], room: int) -> list[int]:
    """Tokens to keep of one or two sequences in `room`, the longer cut first, as in Hugging Face's `longest_first`."""
    if len(lengths) == 1 or sum(lengths) <= room:
        return [min(length, room) for length in lengths]
    shorter = min(lengths)
    half = min(shorter, room // 2)
    if lengths[0] > lengths[1]:
        return [room - half, half]
    return [half, room - half]
