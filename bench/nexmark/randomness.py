"""Seeded randomness as Spark column expressions.

Owns: ``Draws`` (numbers from a hash of the event id) and ``TextPool`` (random text by slicing a constant).
Invariant: a value depends on the id, the field and the seed only, never on partition, plan or time; and no
expression can overflow, so that ANSI mode is no matter.
Must not import the rest of bench.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

_DRAW_BITS = 53
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_MIN_STRING_LENGTH = 3
_GAP_RATIO = 13


def stable_hash(*parts: object) -> int:
    """A 63-bit number from the text of ``parts``, the same in every process."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


@dataclass(frozen=True)
class Draws:
    """Random numbers for the entity that ``entity_id`` (a bigint column) names, independent by field."""

    entity_id: Column
    seed: int

    def bits(self, field: str) -> Column:
        """A bigint from [0, 2**53)."""
        return F.shiftrightunsigned(
            F.xxhash64(F.lit(stable_hash(self.seed, field)), self.entity_id), 64 - _DRAW_BITS
        )

    def below(self, field: str, bound: int | Column) -> Column:
        """A bigint from [0, bound); the bias is below bound / 2**53."""
        return self.bits(field) % (F.lit(bound).cast("bigint") if isinstance(bound, int) else bound)

    def uniform(self, field: str) -> Column:
        """A double from [0, 1)."""
        return self.bits(field) / F.lit(float(2**_DRAW_BITS))

    def chance(self, field: str, ratio: int) -> Column:
        """True with probability ``1 - 1 / ratio``."""
        return self.below(field, ratio) > 0

    def choice(self, field: str, values: Sequence[str]) -> Column:
        """One of ``values``."""
        index = self.below(field, len(values)).cast("int")
        return F.get(F.array(*[F.lit(value) for value in values]), index)


@dataclass(frozen=True)
class TextPool:
    """Random ASCII text, cut from a constant: some nanoseconds a string however long it is.

    Bytes, because a slice of bytes is a copy while a slice of a string walks over the characters before it.
    """

    data: bytes

    @classmethod
    @lru_cache(maxsize=8)
    def letters(cls, seed: int, size: int) -> TextPool:
        """Lower-case letters, each as likely."""
        return cls(_letters(seed, "letters", size))

    @classmethod
    @lru_cache(maxsize=8)
    def words(cls, seed: int, size: int, separator: str) -> TextPool:
        """Lower-case letters with ``separator`` in every 13th place on average."""
        letters, gaps = _letters(seed, "words", size), _uniform_bytes(seed, "gaps", size, _GAP_RATIO)
        return cls(
            bytes(ord(separator) if gap == 0 else letter for letter, gap in zip(letters, gaps, strict=True))
        )

    def exact_string(self, draws: Draws, field: str, length: Column, max_length: int) -> Column:
        """``length`` characters (an int column, at most ``max_length``)."""
        start = draws.below(f"{field}.start", len(self.data) - max_length) + 1
        return F.lit(self.data).substr(start.cast("int"), length).cast("string")

    def string(self, draws: Draws, field: str, max_length: int) -> Column:
        """From 3 to ``max_length - 1`` characters, blanks at the ends removed."""
        length = draws.below(f"{field}.length", max_length - _MIN_STRING_LENGTH) + _MIN_STRING_LENGTH
        return F.trim(self.exact_string(draws, field, length.cast("int"), max_length))


def _uniform_bytes(seed: int, name: str, size: int, bound: int) -> bytes:
    """``size`` numbers from [0, bound), none more likely than another."""
    limit = 256 // bound * bound
    raw = hashlib.shake_128(f"{seed}/{name}".encode()).digest(size * 2)
    values = bytes(byte % bound for byte in raw if byte < limit)
    assert len(values) >= size, "twice the bytes leave enough after rejection"
    return values[:size]


def _letters(seed: int, name: str, size: int) -> bytes:
    return bytes(_LETTERS[value] for value in _uniform_bytes(seed, name, size, len(_LETTERS)))
