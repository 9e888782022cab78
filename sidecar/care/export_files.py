"""Files that ``export`` writes: a header, the records of a stream and of the streams joined to it, and a last line with
the digest of all lines before it.

``read`` returns the events of such a file. ``read`` trusts nothing in the file: a file that another program wrote, that
was cut off or that was changed is refused before anything is recorded. The digest finds changes; it does not prove who
wrote the file.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from bridge.opencode.capture.state import CaptureState
from sidecar.failure import Failure
from sidecar.read.story.writing import BROKEN, Trial
from streams.errors import InvalidEvent
from streams.event import StreamEvent
from streams.hashing import is_digest
from streams.store import Record

FORMAT: Final = 1
_MARK: Final = "durable_stream_export"
_HISTORY: Final = "history"
_BATCH: Final = 100

MAX_LINE: Final = 64 * 1024 * 1024
"""Maximum size of a line, in bytes. No record is as large; a file whose line is larger was not written by `export`."""

_DAY_MS: Final = 86_400_000


def header(stream: str, streams: Sequence[str], log_id: object, now_ms: int) -> dict[str, Any]:
    """The first line of an export."""
    return {
        _MARK: FORMAT,
        "stream_id": stream,
        "streams": sorted(streams, key=lambda name: (name != stream, name)),
        "log_id": log_id,
        "exported_ms": now_ms,
    }


class Seal:
    """Counts the records of an export and computes the digest of its lines, for the last line."""

    def __init__(self) -> None:
        self.records = -1
        self._digest = sha256()

    def line(self, line: bytes) -> bytes:
        """Take the next line, with its line break, and return it; the first line is the header."""
        self.records += 1
        self._digest.update(line)
        return line

    def last(self) -> bytes:
        return orjson.dumps({"records": self.records, "sha256": self._digest.hexdigest()}) + b"\n"


def read(path: Path, now_ms: int) -> Iterator[StreamEvent | None]:
    """Yield the events of an export in the order of the log, marked as ``history``; ``None`` for a forgotten event.

    Raises:
        Failure: the file is not a complete export of captured streams.
        OSError: the file cannot be read.
    """
    with _opened(path) as file:
        line = file.readline(MAX_LINE + 1)
        head = _object(line, 1, "not-an-export", path)
        if _MARK not in head:
            raise Failure("not-an-export", f"{path} was not written by `durable-stream export`")
        if head[_MARK] != FORMAT:
            raise Failure("newer-export", f"{path} has format {head[_MARK]!r:.20}: upgrade durable-stream first")
        seal = Seal()
        seal.line(line)
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 2):
            record = _object(line, number, "damaged-export", path)
            if "sha256" in record:
                if line == seal.last() and not file.read(1):
                    return
                changed = "was changed after the export: its lines do not fit the digest in the last line"
                raise Failure("damaged-export", f"{path} {changed}; copy the file again, or export it again")
            seal.line(line)
            event = _event(record, number, path)
            if event is not None and event.ts > now_ms + _DAY_MS:
                raise Failure("damaged-export", f"line {number} of {path} has a time in the future")
            yield event
        raise Failure("damaged-export", f"{path} is cut off: its last line is missing; copy the file again")


def _opened(path: Path) -> BinaryIO:
    """The open file. Only a regular file is read, because a named pipe or a device may never end.

    Raises:
        Failure, OSError: see ``read``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Failure("not-an-export", f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb")


def check(path: Path, now_ms: int) -> tuple[int, int]:
    """Read a whole export and fold it as the sidecar would; return how many events it has and how many are forgotten.

    Raises the same errors as ``read``. The log itself would accept events that break these folds, but then no sidecar
    could start any more.
    """
    events = forgotten = 0
    capture, trial = CaptureState(), Trial()
    for event in read(path, now_ms):
        if event is None:
            forgotten += 1
            continue
        try:
            capture.apply(event)
            trial.apply(Record(event, events, events, ""))
        except BROKEN as error:
            reason = f"{type(error).__name__} in event {event.id}, of type {event.type}"
            raise Failure("damaged-export", f"{path} contains an event that cannot be imported: {reason}") from None
        events += 1
    return events, forgotten


async def import_export(
    path: Path,
    add: Callable[[list[StreamEvent]], Awaitable[int]],
    clean: Callable[[Any], Any],
    now_ms: int,
    log_id: str,
) -> dict[str, int]:
    """Record the events of an export; the whole file is checked first. Records that the log already has stay unchanged.
    Returns how many were ``added``, how many ``known``, and how many had no content, because it was ``forgotten``.

    ``add`` appends a batch and returns how many events were new. ``clean`` redacts payloads by this home's rules.
    ``log_id`` is this log's: what its own agents said counts as known, because their streams have it. If the import is
    interrupted, the log keeps what was added, and importing the file again adds the rest.

    Raises:
        Failure, OSError: see ``read``.
        StreamError: the log cannot be written.
    """
    events, forgotten = await asyncio.to_thread(check, path, now_ms)
    source, added = read(path, now_ms), 0
    while batch := await asyncio.to_thread(lambda: list(islice(source, _BATCH))):
        wanted = [event for event in batch if event and event.metadata.get("log") != log_id]
        cleaned = [StreamEvent.trusted({**event.fields(), "payload": clean(event.payload)}) for event in wanted]
        added += await add(cleaned) if cleaned else 0
    return {"added": added, "known": events - added, "forgotten": forgotten}


def _object(line: bytes, number: int, code: str, path: Path) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise Failure(code, f"line {number} of {path} is longer than {MAX_LINE // (1024 * 1024)} MiB")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failure(code, f"line {number} of {path} is not a JSON object")
    return found


def _event(record: dict[str, Any], number: int, path: Path) -> StreamEvent | None:
    fields = record.get("event")
    if not isinstance(fields, dict):
        raise Failure("damaged-export", f"line {number} of {path} is not a record")
    try:
        event = StreamEvent.parse(fields)
    except InvalidEvent as error:
        raise Failure("damaged-export", f"line {number} of {path}: {error}") from None
    except RecursionError:
        raise Failure("damaged-export", f"line {number} of {path} is nested too deeply") from None
    # An agent's records are its state. In another log, the agent would continue that work or do it twice.
    if "role" in event.metadata or event.stream_id.startswith("agent/"):
        raise Failure(
            "agent-export",
            f"line {number} of {path} belongs to an agent of the sidecar; only sessions can be imported",
        )
    if is_digest(event.payload):
        return None
    metadata = {**event.metadata, _HISTORY: True}
    return StreamEvent.trusted({**event.fields(), "metadata": metadata})
