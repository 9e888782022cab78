"""``--project``, and the project that a command is run in."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared.command import RUNS, note

if TYPE_CHECKING:
    from sidecar.background.messages.message import Message
if RUNS:
    from sidecar.read.find_by_id import SelectError, ask_catalog, catalog_of, empty_text
    from sidecar.read.projects import Project, newest_of, short_directory
    from sidecar.read.story.catalog import Catalog
    from streams.log.reader import LogReader

ALL = "all"

ASKING = "agent/messages"
"""The stream of the agent that knows what background work and ``checkpoint_ask`` ask."""

NOTHING_THERE = "No session was recorded in {}. `durable-stream streams` shows the directory of each session."

ProjectOption = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="DIR|all",
        help="Only sessions in DIR, its subdirectories, or other worktrees of its repository; `all`: every project.",
    ),
]


def project_here() -> Project:
    """The repository around the current directory; the directory itself if there is none."""
    here = Path.cwd()
    return Project(str(next((path for path in (here, *here.parents) if (path / ".git").exists()), here)))


def named_project(given: str | None) -> Project | None:
    """The project that ``--project`` names; ``None`` for ``all``, or if the option is not given."""
    if given is None or given == ALL:
        return None
    return Project(str(Path(given).expanduser().resolve()))


def project_streams(catalog: Catalog, given: str | None) -> set[str] | None:
    """The streams of the project that ``--project`` names; ``None`` for all, empty if nothing was recorded there."""
    project = named_project(given)
    return None if project is None else project.streams(catalog)


def project_or_here(catalog: Catalog, given: str | None, stream: str | None) -> set[str] | None:
    """The streams that a command shows if no stream is named: the streams of ``--project``, else of the current
    project, else all.

    Prints a note if the current project was chosen and the log has other projects, too.
    """
    if given is not None:
        return project_streams(catalog, given)
    here = streams_here(catalog) if stream is None else set()
    if not here:
        return None
    if {place for place in catalog.places() if place.directory} - project_here().places(catalog):
        note(f"Only {shown_directory(project_here().root)}; `--project all` shows every project.")
    return here


def streams_here(catalog: Catalog) -> set[str]:
    """The streams of the project around the current directory; empty if the directory was removed."""
    try:
        return project_here().streams(catalog)
    except FileNotFoundError:
        return set()


def shown_directory(directory: str) -> str:
    """A directory as a person writes it: ``~/shop``; empty if it is not known."""
    return short_directory(directory, str(Path.home())) if directory else ""


async def newest_stream(reader: LogReader, given: str | None, *, tell: bool = True) -> str:
    """The newest stream of the project that ``--project`` names, else of the current project, else of the whole log.

    ``tell`` prints a note: ``The newest session in ~/shop: ses_1a2b, Fix the login test``.

    Raises:
        SelectError: the log has no stream.
    """
    catalog, _ = await catalog_of(reader)  # damage to the log is ignored here, because reading the stream reports it
    streams = project_streams(catalog, given) if given is not None else streams_here(catalog) or None
    if (newest := newest_of(catalog, streams)) is not None:
        own, directory = catalog.own_session(newest), shown_directory(catalog.directory(newest))
        where = f" in {directory}" if directory else ""
        title = f", {own.title}" if own is not None and own.title else ""
        if tell:
            note(f"The newest session{where}: {newest}{title}")
        return newest
    nothing = await empty_text(reader) if streams is None else NOTHING_THERE.format(given).rstrip(".")
    raise SelectError("no-log", nothing)


async def waiting_lines(reader: LogReader, streams: Collection[str] | None = None) -> list[str]:
    """What is waiting for a person in these streams, or anywhere, one line each, in the words of ``sentences``."""
    if not await ask_catalog(reader, lambda catalog: catalog.asks(streams) or ASKING in catalog.streams):
        return []  # the rest takes a while to import
    from sidecar.background.reading import waiting

    return [waiting_text(each) for each in await waiting(reader, streams)]


def waiting_text(known: Message) -> str:
    """``waiting for you: shop asks for permission: bash rm -rf build · since …``, and how to answer."""
    from sidecar.background.people.sentences import sentence

    return f"waiting for you: {sentence(known)}"
