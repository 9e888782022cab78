"""What verification of a log can find. Pure.

There are four kinds of fault:

* ``corrupt``  - a record is damaged: a wrong checksum, bytes that are not a record, or an incomplete batch.
* ``missing``  - records that were durable are gone.
* ``tampered`` - a record's checksum is right, but it is not what the writer wrote there: it breaks its stream's hash
  chain, is in the wrong place, or is not in canonical form.
* ``torn``     - what the next opening for writing mends. Mostly data that a killed writer left above head, which was
  never acknowledged: the data is cut off, and a copy is kept.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from streams.store import NOTHING

Kind = Literal["corrupt", "missing", "tampered", "torn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``line`` counts from 1: a line of a file, or a row of a table. Unknown fields are ``None``.

    A finding never holds a payload.
    """

    kind: Kind
    file: str
    line: int | None
    position: int | None
    stream_id: str | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        place = "" if self.position is None else f" (position {self.position}{self._of_stream()})"
        return f"{self.kind}: {where}{place}: {self.reason}"

    def _of_stream(self) -> str:
        return "" if self.stream_id is None else f", stream {self.stream_id}"


@dataclass(slots=True)
class Summary:
    """What a verification counted; ``head`` is the last durable position, or -1 for an empty log.

    ``streams`` counts the streams with records, not the fully pruned ones.
    """

    records: int = 0
    streams: int = 0
    segments: int = 0
    bytes: int = 0
    head: int = NOTHING
    findings: int = 0
    pruned: int = 0
    """Pruned records, which ``records`` does not count."""
    forgotten: int = 0
    """Records with forgotten payloads, which ``records`` also counts."""

    def reset(self) -> None:
        for name, value in asdict(Summary()).items():
            setattr(self, name, value)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def drained(waiting: list[Finding]) -> list[Finding]:
    found = waiting.copy()
    waiting.clear()
    return found
