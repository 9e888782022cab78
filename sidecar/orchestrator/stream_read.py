"""The tool ``stream_read``: the last lines of a stream of the caller's project, bounded."""

from __future__ import annotations

from typing import Final

from bridge.opencode.link.link import RequestError
from sidecar.views.describe import describe
from sidecar.views.projects import Project
from sidecar.views.select import SelectError, catalog_of, family_of, find_session, newest, open_reader, records_of
from sidecar.views.wording import iso_time, one_line
from streams.log.reader import LogReader
from streams.store import Record

MAX_LINE: Final = 400
MAX_CHARACTERS: Final = 16_000
"""Maximum length of an answer, in characters. From a longer answer, the oldest lines are dropped."""

__all__ = ["open_reader", "read_lines"]


async def read_lines(reader: LogReader, directory: str, given: str, last: int) -> str:
    """The last ``last`` lines of a stream or child session, in the form that ``durable-stream log`` prints into a pipe.

    Raises:
        RequestError: no stream of the project at ``directory`` has this id.
        StreamError: the log cannot be read.
    """
    try:
        stream, session = await find_session(reader, given)
    except SelectError as error:
        raise RequestError(error.code, str(error)) from None
    catalog, _ = await catalog_of(reader)
    if stream not in Project(directory).streams(catalog):
        raise RequestError("not-found", f"{one_line(given)[:80]} is not a session of this project")
    family = await family_of(reader, stream, session=session)
    records, _ = await newest(records_of(reader, family), last)
    lines = [_line(record) for record in records]
    while len(lines) > 1 and sum(map(len, lines)) + len(lines) > MAX_CHARACTERS:
        del lines[0]
    return "\n".join(lines) if lines else "It has no records."


def _line(record: Record) -> str:
    event = record.event
    text = " ".join((iso_time(event.ts), event.id[-6:], event.actor, event.type, str(describe(event))))
    return one_line(text)[:MAX_LINE]
