"""Prints records of many sessions, with a heading wherever the session changes, and marks open asks."""

from __future__ import annotations

from dataclasses import replace

from sidecar.cli.printing.output import Output, shortened
from sidecar.cli.printing.records import Lines
from sidecar.cli.shared.project import shown_directory, waiting_lines, waiting_text
from sidecar.read.catalog import Catalog
from sidecar.read.projects import Project
from sidecar.read.telling.describe import is_news
from sidecar.read.wording import one_line
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record

WAITING_STYLE = "bold yellow"


class HeadedLines(Lines):
    """Prints records of all streams or of one project. The caller keeps ``catalog`` up to date.

    A pipe gets no headings, because each of its lines names the stream. ``everything``: the bookkeeping of agents, too.
    """

    def __init__(
        self, out: Output, catalog: Catalog, wanted: Filter, project: Project | None, *, everything: bool
    ) -> None:
        super().__init__(out)
        self._catalog, self._wanted, self.project = catalog, wanted, project
        self._root = ""
        self._everything = everything or bool(wanted.types)
        self._streams = self._chosen()

    def _chosen(self) -> set[str] | None:
        return None if self.project is None else self.project.streams(self._catalog)

    def filter(self) -> Filter:
        return self._wanted if self._streams is None else replace(self._wanted, streams=tuple(sorted(self._streams)))

    def fits(self, record: Record) -> bool:
        """True if the record belongs to the project, passes the filter, and is not only bookkeeping of an agent, unless
        everything is wanted."""
        if not self._everything and not is_news(record.event):
            return False
        if self._streams is not None:
            if record.event.type.startswith(("lifecycle.", "lineage.")):
                self._streams = self._chosen()
            if self._streams is None or record.event.stream_id not in self._streams:
                return False
        return self._wanted.matches(record.event)

    def print_headed(self, record: Record, *, fresh: bool = False) -> None:
        """Print one record; a ``fresh`` ask is marked as waiting for a person."""
        root = self._catalog.root_stream(record.event.stream_id)
        if self._root != root:
            self._root = root
            self._heading(root)
        self.print(record, self._catalog.place_of(record))
        if fresh and record.event.type == "workflow.checkpoint" and self._out.terminal:
            self._mark(record)

    async def print_waiting(self, reader: LogReader) -> None:
        if self._out.terminal:
            for line in await waiting_lines(reader, self._streams):
                self._out.prose("", line, WAITING_STYLE)

    def _mark(self, record: Record) -> None:
        from sidecar.background.reading import of_ask

        payload = record.event.payload
        session = self._catalog.sessions.get(str(payload.get("session")))
        ask = session.asks.get(str(payload.get("request"))) if session is not None else None
        if ask is not None:
            self._out.prose("", waiting_text(of_ask(self._catalog, ask, payload)), WAITING_STYLE)

    def _heading(self, stream: str) -> None:
        if not self._out.terminal:
            return
        own = self._catalog.own_session(stream)
        title = one_line(own.title) if own is not None else ""
        parts = (shown_directory(self._catalog.directory(stream)), title, shortened(stream))
        self._out.line([(" · ".join(filter(None, map(one_line, parts))), "bold blue")])
