"""The files of the journal: ``<first position>.jsonl``, in order of position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streams.system.files import refuse_link

JOURNAL: Final = "journal"
HEAD: Final = "head"
"""The directory of the segments, and the head file, in the store."""

_SEGMENT: Final = re.compile(r"(\d{20})\.jsonl")


@dataclass(frozen=True, slots=True)
class Segment:
    first: int
    path: Path


def segment_name(first: int) -> str:
    return f"{first:020d}.jsonl"


def list_segments(log: Path) -> list[Segment]:
    """The journal's segments in position order; none for a new one. Other files are ignored.

    Raises:
        ForeignStore: the directory is a symbolic link.
    """
    refuse_link(log)
    matched = ((_SEGMENT.fullmatch(path.name), path) for path in log.glob("*.jsonl"))
    return sorted((Segment(int(found[1]), path) for found, path in matched if found), key=lambda found: found.first)


def end_of(log: Path, segments: Sequence[Segment], missing: int) -> tuple[str, int | None]:
    """The file and the line where the journal ends, and where the record at position ``missing`` is not."""
    if not segments:
        return str(log), None
    return str(segments[-1].path), max(missing - segments[-1].first, 0) + 1


def sizes_of(log: Path) -> dict[str, int]:
    """``{files, bytes}`` of a journal."""
    sizes = []
    for segment in list_segments(log):
        with suppress(FileNotFoundError):  # it was deleted, because it is in the database
            sizes.append(segment.path.stat().st_size)
    return {"files": len(sizes), "bytes": sum(sizes)}
