"""The tool ``stream_read``: the last lines of a stream of the caller's project, bounded.

The project of a session is the directory that was recorded for the session's stream, with the git repository around
it. ``/``, the user's home directory and the directories above it are no projects: everything is below them. A session
there reads only its own stream, and a repository there makes no project.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final

from bridge.opencode.link.protocol import RequestError
from sidecar.background.messages.wording import without_tags
from sidecar.read.find_by_id import Family, ask_catalog, newest
from sidecar.read.projects import Project, repository_of
from sidecar.read.rendering.describe import describe
from sidecar.read.story.catalog import Catalog
from sidecar.read.wording import iso_time, one_line
from streams.log.reader import LogReader
from streams.store import Record

MAX_LINE: Final = 400
MAX_CHARACTERS: Final = 16_000
"""Maximum length of an answer, in characters. From a longer answer, the oldest lines are dropped."""


async def read_lines(reader: LogReader, session: str, given: str, last: int) -> str:
    """The last ``last`` lines of a stream or child session, in the form that ``durable-stream log`` prints into a pipe.

    ``session`` is the session that reads. ``given`` names a stream or session, or begins its id.

    Raises:
        RequestError: no stream of the session's project has this id.
        StreamError: the log cannot be read.
    """

    def question(catalog: Catalog) -> Family:
        stream, child = _named(catalog, _readable(catalog, session), given)
        return Family(stream, catalog, session=child)

    family = await ask_catalog(reader, question)
    records, _ = await newest(reader, family.filter(), last, family.__contains__)
    lines = [_line(record) for record in records]
    while len(lines) > 1 and sum(map(len, lines)) + len(lines) > MAX_CHARACTERS:
        del lines[0]
    return "\n".join(lines) if lines else "It has no records."


def _readable(catalog: Catalog, session: str) -> set[str]:
    known = catalog.sessions.get(session)
    if known is None:
        return set()
    directory = catalog.directory(known.stream)
    if not is_project(directory):
        return {known.stream}
    root = Project(directory)
    is_wide = not is_project(repository_of(directory))
    found = root.streams(catalog)
    return {known.stream} | {each for each in found if root.holds(catalog.directory(each)) or not is_wide}


def is_project(directory: str) -> bool:
    """Whether a recorded directory is a project of its own."""
    path = PurePath(directory)
    if not directory or not path.is_absolute() or path == PurePath(path.anchor):
        return False
    with suppress(RuntimeError, OSError):  # without a home directory, only ``/`` is above everything
        home = Path.home()
        return not any(form.is_relative_to(path) for form in (home, home.resolve()))
    return True


def _named(catalog: Catalog, readable: Collection[str], given: str) -> tuple[str, str | None]:
    """The stream that ``given`` names, and the session in it, if ``given`` names a session. A stream wins."""
    sessions = {name: stream for stream in readable for name in catalog.sessions_of([stream])}
    for names in (set(readable), set(sessions)):
        found = [given] if given in names else [name for name in names if name.startswith(given)]
        if len(found) > 1:
            raise RequestError("ambiguous", f"several sessions of this project begin with {one_line(given)[:80]}")
        if found:
            return (found[0], None) if found[0] in readable else (sessions[found[0]], found[0])
    raise RequestError("not-found", f"{one_line(given)[:80]} is not a session of this project")


def _line(record: Record) -> str:
    event = record.event
    text = " ".join((iso_time(event.ts), event.id[-6:], event.actor, event.type, str(describe(event))))
    return without_tags(one_line(text))[:MAX_LINE]
