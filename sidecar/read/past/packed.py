"""The records of a long session in little memory. Pure."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

import orjson

from streams.event import StreamEvent
from streams.store import Record

PACK: Final = 128
"""How many records are packed together, and unpacked to read one of them."""

NEAR: Final = 12
"""How many packs stay unpacked: those around the moment that is looked at."""


class Packed:
    """Records in position order, to which more can be added. Packed, they take about a tenth of the memory."""

    def __init__(self) -> None:
        self._packs: list[bytes] = []
        self._last: list[Record] = []
        self._near: dict[int, list[Record]] = {}
        self._positions = array("q")

    def __len__(self) -> int:
        return len(self._positions)

    def append(self, record: Record) -> None:
        self._positions.append(record.position)
        self._last.append(record)
        if len(self._last) == PACK:
            rows = [(each.event.fields(), each.offset, each.position, each.hash) for each in self._last]
            self._put_near(len(self._packs), self._last)
            self._packs.append(zlib.compress(orjson.dumps(rows), 1))
            self._last = []

    def __getitem__(self, index: int) -> Record:
        index += len(self) if index < 0 else 0
        return self._pack(index // PACK)[index % PACK]

    def __iter__(self) -> Iterator[Record]:
        return self.between(0, len(self))

    def between(self, begin: int, end: int) -> Iterator[Record]:
        """The records from index ``begin`` up to ``end``, which does not count."""
        for number in range(begin // PACK, (min(end, len(self)) + PACK - 1) // PACK):
            first = number * PACK
            yield from islice(self._pack(number), max(begin - first, 0), max(end - first, 0))

    def index(self, position: int) -> int | None:
        """The index of the record at a position of the log; ``None`` if it is not here."""
        found = bisect_left(self._positions, position)
        return found if found < len(self) and self._positions[found] == position else None

    def at(self, position: int) -> Record:
        """The record at a position of the log, which must be here."""
        return self[bisect_left(self._positions, position)]

    def _pack(self, number: int) -> list[Record]:
        if number == len(self._packs):
            return self._last
        known = self._near.pop(number, None)
        if known is None:
            rows = orjson.loads(zlib.decompress(self._packs[number]))
            known = [Record(StreamEvent.trusted(fields), *place) for fields, *place in rows]
        self._put_near(number, known)
        return known

    def _put_near(self, number: int, records: list[Record]) -> None:
        self._near[number] = records  # the last one in order is the one that was read last
        while len(self._near) > NEAR:
            del self._near[next(iter(self._near))]
