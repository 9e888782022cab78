"""Printing records: a readable line on a terminal, tab-separated fields in a pipe, JSON when asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sidecar.cli.printing.output import Output, fitted, marked, padded
from sidecar.read.ask_text import CHECKPOINT
from sidecar.read.rendering.call_starts import Starts
from sidecar.read.rendering.describe import LONGEST, Line, Tone, describe
from sidecar.read.rendering.timing import Timing
from sidecar.read.wording import iso_time, local_time, one_line, printable
from streams.query import Filter, value_with
from streams.store import Record

if TYPE_CHECKING:
    from streams.event import StreamEvent
    from streams.log.reader import LogReader

STYLES: dict[Tone, str] = {
    "input": "bold cyan",
    "output": "",
    "good": "green",
    "bad": "red",
    "asks": "yellow",
    "quiet": "dim",
    "plain": "",
}

SHORT_ID = 6
"""How many of an event id's last characters a terminal shows: enough to name the event in `show` and `why`."""

ROOMY = 100
"""Minimum width, in columns, at which two spaces separate the columns of a record."""

MOST_LINES: dict[Tone, int] = {"input": 3, "output": 3, "asks": 10, "bad": 3}
"""Maximum number of lines on a terminal for texts of people and agents, for faults, and for asks that a person decides.

All other records get one line.
"""

_PLACE_STYLES = ("magenta", "blue", "green", "yellow", "cyan")
LABEL_WIDTH = 9

PIPED = ("time", "stream", "offset", "event", "actor", "type", "text")
"""The names of the tab-separated fields: the first line written to a pipe."""

_BEFORE = 24
"""How many characters are shown before a match that is not in the line itself."""

EXCERPT_INDENT = 10


class Lines:
    """Prints records one after another; a terminal gets a heading where the day changes.

    A pipe gets a header, then tab-separated fields: time, stream, offset, event id, actor, type and text.
    ``with_stream`` shows the stream on a terminal, too; ``found`` is a text that a terminal shows highlighted.
    ``is_past``: a terminal shows only those starts of calls that have not ended, in ``print_running``.
    """

    def __init__(
        self, out: Output, *, with_stream: bool = False, found: str | None = None, is_past: bool = False
    ) -> None:
        self._starts = Starts() if is_past and out.terminal else None
        self._out, self._with_stream, self._found = out, with_stream, found
        self._day = ""
        self._timing = Timing()
        self.printed = 0

    def learn(self, record: Record) -> None:
        """Take a record that is not printed but may show how long a printed record's turn took, or how long the record
        waited.
        """
        self._timing.apply(record)

    async def look_up(self, reader: LogReader, *records: Record) -> None:
        """Read from the log what ``print`` needs for ``records``, unless it is known already."""
        if self._out.json:
            return
        for record in records:
            self.learn(record)
        for event in [each.event for each in records if self._timing.lacks(each.event) and each.event.causation_id]:
            await self._learn_cause(reader, event)

    async def _learn_cause(self, reader: LogReader, event: StreamEvent) -> None:
        cause = event.causation_id
        if cause is not None and event.type == "turn.ended":
            if (start := await reader.find_event(cause)) is not None:
                self.learn(start)
            return
        # The turn is the cause of a step and of its permission request, which is the cause of the answer.
        async for asked in reader.query(Filter(types=(CHECKPOINT,), causation_id=cause)):
            self.learn(asked)
            async for answer in reader.query(Filter(types=(CHECKPOINT,), causation_id=asked.event.id)):
                self.learn(answer)

    def print(self, record: Record, place: str = "", depth: int = 0) -> None:
        """Print one record; ``place`` (such as ``2.1``) identifies its session and indents the record, else ``depth``
        does."""
        self.learn(record)
        if self._starts is not None and self._starts.holds(record, place, depth):
            return
        event = record.event
        if not self.printed and not self._out.json and not self._out.terminal:
            self._out.cells(*PIPED)
        self.printed += 1
        if self._out.json:
            self._out.object(record.as_json())
            return
        line = describe(event, took_ms=self._timing.took_ms(event), waited_ms=self._timing.waited_ms(event))
        if self._out.terminal:
            self._on_terminal(record, line, place, place.count(".") + 1 if place else depth)
        else:
            self._out.cells(
                iso_time(event.ts), event.stream_id, str(record.offset), event.id, event.actor, event.type, str(line)
            )

    def print_running(self) -> None:
        """Print the starts of the calls that run. From now on, each start is printed at once."""
        starts, self._starts = self._starts, None
        for start in starts.running() if starts is not None else ():
            self.print(*start)

    def _on_terminal(self, record: Record, line: Line, place: str, depth: int) -> None:
        event = record.event
        name = event.id[-SHORT_ID:]
        if self._with_stream:
            name += f"{'  ' if self._out.width >= ROOMY else ' '}{event.stream_id[-10:]:10}"
        number = int(place.partition(".")[0] or 1) - 1
        style = _PLACE_STYLES[number % len(_PLACE_STYLES)]
        before = (f"{place:{2 * depth - 1}} ", style) if place else ("  " * depth, "")
        seen = self.line(event.ts, name, event.actor, line, before)
        if self._found and not seen and self._found.casefold() not in f"{event.actor} {line.label}".casefold():
            self._excerpt(event, self._found)

    def line(self, ts: int, name: str, actor: str, line: Line, before: tuple[str, str] = ("", "")) -> bool:
        """Print a line on a terminal: what happened, when, to what, by whom. Returns whether it has the sought text."""
        if (day := local_time(ts, "%A, %d %B %Y")) != self._day:
            self._day = day
            self._out.text(day, "bold")
        roomy = self._out.width >= ROOMY
        gap = "  " if roomy else " "
        style = STYLES[line.tone]
        label = padded(one_line(line.label), LABEL_WIDTH) + (" " if line.text else "")
        parts = [
            (f"{local_time(ts, '%H:%M:%S')}{gap}{name}{gap}", "dim"),
            (fitted(actor, 12 if roomy else 8) + gap, "cyan" if actor == "user" else ""),
            before,
            (label, style if style in ("dim", "bold cyan") else f"bold {style}".strip()),
        ]
        most = MOST_LINES.get(line.tone, 1)
        return self._out.lines(parts, line.text, style, most=most, mark=self._found, end=line.end)

    def _excerpt(self, event: StreamEvent, found: str) -> None:
        """Print a line with the value that contains ``found``, if the line of the event does not show ``found``."""
        value = value_with(event.payload, found)
        if value is None:
            return
        at = max(value.casefold().find(found.casefold()) - _BEFORE, 0)
        shown = ("…" if at else "") + one_line(value[at : at + LONGEST])
        self._out.line([(" " * EXCERPT_INDENT, ""), *marked(shown, "dim", found)])


def outline(value: Any, indent: str = "") -> list[str]:
    """A JSON value as indented ``key: value`` lines; a text of several lines keeps its line breaks and is marked with a
    bar.
    """
    if isinstance(value, dict):
        return [
            line for key, inner in value.items() for line in _entry(f"{indent}{one_line(str(key))}:", inner, indent)
        ]
    if isinstance(value, list):
        return [line for inner in value for line in _entry(f"{indent}-", inner, indent)]
    return [f"{indent}{_scalar(value)}"]


def _entry(label: str, inner: Any, indent: str) -> list[str]:
    if isinstance(inner, dict | list) and inner:
        return [label, *outline(inner, indent + "  ")]
    if isinstance(inner, str) and "\n" in inner.strip("\n"):
        return [label, *(f"{indent}  | {line}" for line in printable(inner).rstrip("\n").split("\n"))]
    return [f"{label} {_scalar(inner)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return printable(value).rstrip("\n") or '""'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "{}" if value == {} else "[]" if value == [] else str(value)


__all__ = ["SHORT_ID", "STYLES", "Line", "Lines", "outline"]


def no_cause(record: Record) -> str:
    """Why no cause is shown: the cause is not in this log, does not exist, or is unknown."""
    if record.event.causation_id:
        return f"{record.event.causation_id}, which is not in this log"
    return "none: it begins a chain" if begins_a_chain(record) else "unknown"


def begins_a_chain(record: Record) -> bool:
    """True if the record cannot have a cause in the log: what a person did, a root session, or a link's own event."""
    event = record.event
    if event.type.startswith("lifecycle.session."):
        return not event.payload.get("parent")
    if event.actor == "user" and event.metadata.get("role") == "input":
        return True  # a command that a person gave
    return event.type in ("human.input", "lineage.linked", "capture.gap", "opencode.unreadable")
