"""What verifying a log can find, in either backend. Pure.

There are four kinds of fault:

* ``corrupt``  - a record is damaged: wrong checksum, no record at all, a batch that is not whole.
* ``missing``  - records that were durable are not there.
* ``tampered`` - a record's checksum is right, but it is not what the writer wrote there: it breaks its
  stream's hash chain, stands in another place, or is not in canonical form.
* ``torn``     - what a writer that was killed left above head. It was never acknowledged, and the next
  opening cuts it off and keeps it aside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from streams.store import NOTHING

Kind = Literal["corrupt", "missing", "tampered", "torn"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``line`` counts from 1: a line of a file, or a row of a table. What cannot be known is ``None``.

    Never holds a payload.
    """

    kind: Kind
    file: str
    line: int | None
    position: int | None
    stream_id: str | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        place = "" if self.position is None else f" (position {self.position}{self._of_stream()})"
        return f"{self.kind}: {where}{place}: {self.reason}"

    def _of_stream(self) -> str:
        return "" if self.stream_id is None else f", stream {self.stream_id}"


@dataclass(slots=True)
class Summary:
    """What was verified; ``head`` is the last durable position, -1 for an empty log.

    ``streams`` counts those that hold records; one that was wholly pruned is not among them.
    """

    records: int = 0
    streams: int = 0
    segments: int = 0
    bytes: int = 0
    head: int = NOTHING
    findings: int = 0
    pruned: int = 0
    """Records that were pruned, which are not among ``records``."""
    forgotten: int = 0
    """Records whose payload was forgotten, which are."""

    def reset(self) -> None:
        """Set every count back."""
        for name, value in asdict(Summary()).items():
            setattr(self, name, value)

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


class Found:
    """Findings that wait to be given, in the order they were made. Its length is how many wait."""

    def __init__(self, summary: Summary) -> None:
        """``summary`` counts each finding as it is made."""
        self._summary = summary
        self._waiting: list[Finding] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, finding: Finding | None) -> None:
        """Let it wait; ``None``, of a look that found nothing, is passed over."""
        if finding is not None:
            self._waiting.append(finding)
            self._summary.findings += 1

    def drain(self) -> list[Finding]:
        """Those that wait, which do so no more."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def clear(self) -> None:
        """Forget those that wait; the summary is not changed."""
        self._waiting.clear()
