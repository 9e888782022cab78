"""Prints records of many sessions, with a heading wherever the session changes, and marks open asks."""

from __future__ import annotations

from dataclasses import replace

from sidecar.cli.printing.output import Output, shortened
from sidecar.cli.printing.records import Lines
from sidecar.cli.shared.project import shown_directory, waiting_lines, waiting_text
from sidecar.read.ask_text import CHECKPOINT, OpenAsk
from sidecar.read.fields import as_text
from sidecar.read.find_by_id import Families, ask_catalog
from sidecar.read.projects import Project
from sidecar.read.rendering.describe import is_news
from sidecar.read.story.catalog import Catalog
from sidecar.read.wording import one_line
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record

WAITING_STYLE = "bold yellow"


class HeadedLines(Lines):
    """Prints records of all streams or of one project: see ``headed_lines``.

    A pipe gets no headings, because each of its lines names the stream.
    """

    def __init__(
        self, out: Output, reader: LogReader, wanted: Filter, project: Project | None, *, everything: bool
    ) -> None:
        super().__init__(out)
        self._reader, self._families, self._wanted, self.project = reader, Families(reader), wanted, project
        self._root = ""
        self._everything = everything or bool(wanted.types)
        self._streams: set[str] | None = None

    async def choose(self) -> None:
        """Find the streams of the project."""
        if self.project is not None:
            self._streams = await ask_catalog(self._reader, self.project.streams)

    def filter(self) -> Filter:
        return self._wanted if self._streams is None else replace(self._wanted, streams=tuple(sorted(self._streams)))

    def fits(self, record: Record) -> bool:
        """True if the record belongs to the project, passes the filter, and is not only bookkeeping of an agent, unless
        everything is wanted."""
        if not self._everything and not is_news(record.event):
            return False
        return (self._streams is None or record.event.stream_id in self._streams) and self._wanted.matches(record.event)

    async def print_headed(self, record: Record, *, fresh: bool = False) -> None:
        """Print one record; a ``fresh`` ask is marked as waiting for a person."""
        family = await self._families.of(record)
        if self._root != family.root:
            self._root = family.root
            await self._heading(family.root)
        self.print(record, family.place_of(record))
        if fresh and record.event.type == CHECKPOINT and self._out.terminal:
            await self._mark(record)

    async def print_waiting(self) -> None:
        if self._out.terminal:
            for line in await waiting_lines(self._reader, self._streams):
                self._out.prose("", line, WAITING_STYLE)

    async def _mark(self, record: Record) -> None:
        from sidecar.background.reading import of_ask

        event, payload = record.event, record.event.payload
        session = as_text(payload.get("session"))
        if payload.get("state") == "asked" and session and not event.metadata.get("history"):
            ask = OpenAsk(as_text(payload.get("request")), session, event.id, event.ts, "")
            directory = await ask_catalog(self._reader, lambda catalog: catalog.directory(event.stream_id))
            self._out.prose("", waiting_text(of_ask(directory, ask, payload)), WAITING_STYLE)

    async def _heading(self, stream: str) -> None:
        if not self._out.terminal:
            return

        def about(catalog: Catalog) -> tuple[str, str]:
            own = catalog.own_session(stream)
            return catalog.directory(stream), own.title if own is not None else ""

        directory, title = await ask_catalog(self._reader, about)
        parts = (shown_directory(directory), title, shortened(stream))
        self._out.line([(" · ".join(filter(None, map(one_line, parts))), "bold blue")])


async def headed_lines(
    out: Output, reader: LogReader, wanted: Filter, project: Project | None, *, everything: bool
) -> HeadedLines:
    """A printer of the records that fit. ``everything``: the bookkeeping of agents, too."""
    found = HeadedLines(out, reader, wanted, project, everything=everything)
    await found.choose()
    return found
