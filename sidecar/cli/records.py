"""Printing records: a readable line on a terminal, tab-separated fields in a pipe, JSON when asked."""

from __future__ import annotations

from typing import Any

from sidecar.cli.describe import Line, Tone, describe
from sidecar.cli.output import Output, iso_time, local_time, one_line, printable
from streams.store import Record

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
"""Last characters of an event id that a terminal shows: enough to name it in `show` and `why`."""

_ACTOR_WIDTH = 12
_LABEL_WIDTH = 9


class Lines:
    """Prints records one after another; a terminal gets a heading where the day changes.

    A pipe gets time, stream, offset, event id, actor, type and what it says, between tabs.
    ``with_stream`` shows the stream on a terminal, too.
    """

    def __init__(self, out: Output, *, with_stream: bool = False) -> None:
        self._out, self._with_stream = out, with_stream
        self._day = ""

    def print(self, record: Record, depth: int = 0) -> None:
        """One record; ``depth`` indents what child sessions did."""
        if self._out.json:
            self._out.object(record.as_json())
        elif self._out.terminal:
            self._on_terminal(record, depth)
        else:
            event, line = record.event, describe(record.event)
            self._out.cells(
                iso_time(event.ts), event.stream_id, str(record.offset), event.id, event.actor, event.type, str(line)
            )

    def _on_terminal(self, record: Record, depth: int) -> None:
        event, line = record.event, describe(record.event)
        day = local_time(event.ts, "%A, %d %B %Y")
        if day != self._day:
            self._day = day
            self._out.text(day, "bold")
        style = STYLES[line.tone]
        strong = style if style in ("dim", "bold cyan") else f"bold {style}".strip()
        parts = [(f"{local_time(event.ts, '%H:%M:%S')}  {event.id[-SHORT_ID:]}  ", "dim")]
        if self._with_stream:
            parts.append((f"{event.stream_id[-10:]:10}  ", "dim"))
        parts.append((_fitted(event.actor, _ACTOR_WIDTH) + "  ", "cyan" if event.actor == "user" else ""))
        parts.append(("  " * depth, ""))
        parts.append((f"{line.label:{_LABEL_WIDTH}}", strong))
        if line.text:
            parts.append((" " + line.text, style))
        self._out.line(parts)


def _fitted(text: str, width: int) -> str:
    text = one_line(text)
    return f"{text:{width}}" if len(text) <= width else text[: width - 1] + "…"


def headline(record: Record) -> str:
    """An event in a few words, to be named beside its id: ``bash: npm test``."""
    return str(describe(record.event))


def outline(value: Any, indent: str = "") -> list[str]:
    """A JSON value as indented ``key: value`` lines; a text of several lines keeps them, below a bar."""
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


__all__ = ["SHORT_ID", "STYLES", "Line", "Lines", "headline", "outline"]
