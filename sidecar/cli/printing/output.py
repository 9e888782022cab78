"""Printing: a table on a terminal, tab-separated text in a pipe, JSON lines when asked.

Only a terminal gets colour and a width; for a terminal, rich is imported, which honours ``NO_COLOR``. Output into a
pipe is complete: nothing is cut or boxed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from sidecar.read.wording import cut_middle, one_line, printable

if TYPE_CHECKING:
    from rich.color import ColorSystem
    from rich.console import Console, RenderableType

    from streams.log.verify import Summary

NARROWEST = 20
"""Minimum width, in columns, at which text is wrapped at words."""

LEAST_TEXT = 10
"""Minimum width, in columns, of the text in a table's last column; a shorter text needs less."""

LEAST_SENTENCE = 100
"""Minimum width, in columns, at which a sentence stays in its row; a shorter sentence needs less."""

MOST_ROWS = 8
"""Maximum number of lines of a terminal for one sentence; of a longer one, the middle is left out."""

GAP = 2
"""How many columns of the terminal separate two cells of a table."""

WHOLE_ID_WIDTH = 100
"""Minimum width, in columns, at which ids of streams and sessions are shown whole."""

SHORT_ID = 10
"""How many of an id's last characters a narrower terminal shows: enough to identify it."""

_NOT_PLAIN = re.compile("[^ -~]")


class Column(NamedTuple):
    """A column of a table. ``right`` aligns numbers; ``styles`` maps a cell's text to its rich style. A last column
    that is a ``sentence`` stands below its row where it has too little room."""

    name: str
    right: bool = False
    styles: Mapping[str, str] = MappingProxyType({})
    sentence: bool = False


class Output:
    """Where a command prints. With ``json``, it prints JSON even to a terminal."""

    def __init__(self, json: bool = False) -> None:
        self.json = json
        self.terminal = not json and sys.stdout.isatty()
        if hasattr(sys.stdout, "reconfigure"):
            # On a terminal that knows only ASCII, print question marks for other characters instead of failing.
            sys.stdout.reconfigure(errors="replace")

    @cached_property
    def console(self) -> Console:
        """Rich's console; only for a terminal."""
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    def line(self, parts: Iterable[tuple[str, str]]) -> None:
        """Print texts with their styles on one line of a terminal, cut at its edge; printable characters only."""
        sys.stdout.write(self.styled(parts) + "\n")

    def styled(self, parts: Iterable[tuple[str, str]]) -> str:
        """What ``line`` prints, without the newline.

        This method is fifty times as fast as rich's own ``print``, which matters for a log of thousands of lines.
        """
        from rich.cells import cell_len, set_cell_size
        from rich.style import Style

        parts = list(parts)
        room = self.width
        cut = sum(cell_len(text) for text, _ in parts) > room
        room -= cut
        written = []
        for text, style in parts:
            length = cell_len(text)
            if length > room:
                text, length = set_cell_size(text, room), room
            room -= length
            looks = Style.parse(style)
            looks = looks.without_color if self.console.no_color else looks
            written.append(looks.render(text, color_system=self._colors))
        return "".join(written) + "…" * cut

    def lines(
        self,
        head: Sequence[tuple[str, str]],
        text: str,
        style: str,
        *,
        most: int,
        mark: str | None = None,
        end: str = "",
    ) -> bool:
        """Print ``head``, and next to it ``text`` on up to ``most`` lines, wrapped at words and cut after the last
        line. A text that is cut on its only line keeps its ``end``.

        Highlights ``mark`` in the text; returns whether ``mark`` occurs.
        """
        from rich.cells import cell_len, chop_cells
        from rich.text import Text

        indent = sum(cell_len(part) for part, _ in head)
        room = self.width - indent
        if most == 1 and end and cell_len(text) > room > cell_len(end) + 1:
            text = f"{truncated(text.removesuffix(end), room - cell_len(end) - 1)} {end}"
        if most == 1 or room < NARROWEST or cell_len(text) <= room:
            self.line([*head, *marked(text, style, mark)])
            return mark is not None and mark.casefold() in truncated(text, max(room, 0)).casefold()
        wrapped = [str(row).rstrip() for row in Text(text[: room * (most + 1)]).wrap(self.console, room)]
        rows, cut = wrapped[:most], len(wrapped) > most
        if cut:
            rows[-1] = (chop_cells(rows[-1], room - 1)[0] if cell_len(rows[-1]) >= room else rows[-1]) + "…"
        for number, row in enumerate(rows):
            self.line([*(head if not number else [(" " * indent, "")]), *marked(row, style, mark)])
        return mark is not None and any(mark.casefold() in row.casefold() for row in rows)

    @cached_property
    def width(self) -> int:
        return self.console.width  # Rich asks the system for the size, so ask only once

    @cached_property
    def _colors(self) -> ColorSystem | None:
        from rich.console import COLOR_SYSTEMS

        return COLOR_SYSTEMS.get(self.console.color_system or "")

    def object(self, value: Any) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.write(json_line(value))

    def flush(self) -> None:
        sys.stdout.flush()
        sys.stdout.buffer.flush()

    def text(self, line: str = "", style: str = "") -> None:
        """Print one line, which is never cut; ``style`` is a rich style, used only on a terminal."""
        line = printable(line)
        if self.terminal:
            self.console.print(line, style=style or None, soft_wrap=True)
        else:
            sys.stdout.write(line + "\n")

    def prose(self, head: str, line: str, style: str = "") -> None:
        """Print ``head`` and next to it a sentence, which is wrapped at words and indented on a terminal."""
        if not self.terminal:
            self.text(head + line)
            return
        from rich.table import Table
        from rich.text import Text

        if not head:
            self.console.print(Text(printable(line), style))
            return
        grid = Table.grid()
        grid.add_column(no_wrap=True, min_width=len(head))
        grid.add_column(ratio=1, overflow="fold")
        grid.add_row(Text(head, style), Text(printable(line), style))
        self.console.print(grid)

    def result(self, facts: Any, text: str, style: str = "") -> None:
        """Print what a command did: the ``facts`` as JSON if asked, otherwise the sentences, one in each line."""
        if self.json:
            self.object(facts)
            return
        for line in text.splitlines():
            self.prose("", line, style)

    def cells(self, *parts: str) -> None:
        sys.stdout.write("\t".join(one_line(part) for part in parts) + "\n")

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table on a terminal; in a pipe, print a heading and tab-separated lines.

        See ``drawn`` for a terminal.
        """
        if self.terminal:
            self.console.print(self.drawn(columns, rows))
            return
        self.cells(*(column.name for column in columns))
        for row in rows:
            self.cells(*row)

    def drawn(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> RenderableType:
        """The table for a terminal.

        The last column takes the remaining room, and only its texts are cut. On a narrow terminal, other columns that
        do not fit are left out, from right to left, but never the first column.
        """
        from rich.box import SIMPLE_HEAD
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        lines = [[one_line(cell) for cell in row] for row in rows]
        names = [column.name for column in columns]
        *widths, longest = (max(map(cell_len, texts)) for texts in zip(names, *lines, strict=True))
        if columns[-1].sentence and self._left(widths) < min(longest, LEAST_SENTENCE):
            return self._stacked(columns, lines, widths)
        while len(widths) > 1 and self._left(widths) < min(longest, LEAST_TEXT):
            del widths[-1]
        shown = [*range(len(widths)), len(columns) - 1]
        room = max(self._left(widths), 1)
        table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
        for number in shown:
            column = columns[number]
            table.add_column(column.name, no_wrap=True, justify="right" if column.right else "left")
        for line in lines:
            line[-1] = truncated(cut_middle(line[-1], room)[0] if columns[-1].sentence else line[-1], room)
            table.add_row(*(Text(line[n], columns[n].styles.get(line[n], "")) for n in shown))
        return table

    def _stacked(self, columns: Sequence[Column], lines: list[list[str]], widths: list[int]) -> RenderableType:
        """A table whose last column stands below the other columns, wrapped at words."""
        from rich.cells import cell_len
        from rich.console import Group
        from rich.text import Text

        def row(cells: Iterable[str], style: str = "") -> Text:
            made = Text(no_wrap=True, overflow="ellipsis")
            for column, width, cell in zip(columns, widths, cells, strict=False):
                text = " " * (width - cell_len(cell)) + cell if column.right else padded(cell, width)
                made.append(text + " " * GAP, style or column.styles.get(cell, ""))
            return made

        shown = [row((column.name for column in columns), "bold")]
        room = max(self.width - GAP, NARROWEST)
        for line in lines:
            shown.append(row(line))
            text = Text(cut_middle(line[-1], MOST_ROWS * room)[0])
            shown += [Text(" " * GAP) + row for row in text.wrap(self.console, room)]
        return Group(*shown)

    def _left(self, widths: Sequence[int]) -> int:
        """How many columns of the terminal are left in a row of cells with these widths."""
        return self.width - sum(widths) - GAP * len(widths)


def json_line(value: Any) -> bytes:
    """``value`` as one line of JSON that cannot control a terminal but parses to the same value.

    JSON itself escapes the characters below a space. But a terminal also obeys DEL and U+0080 to U+009F, and format
    characters can hide text or make it look like other text. So every unprintable character is escaped.
    """
    import orjson

    data = orjson.dumps(value)
    if not data.isascii() or b"\x7f" in data:
        text = data.decode()
        if not text.isprintable():
            data = _NOT_PLAIN.sub(_escaped, text).encode()
    return data + b"\n"


def _escaped(found: re.Match[str]) -> str:
    """Return a printable character unchanged, and any other as its JSON escape (two escapes for a character beyond
    U+FFFF)."""
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1] if char != "\x7f" else "\\u007f"


def fitted(text: str, width: int) -> str:
    """``text`` on one line of exactly ``width`` columns of a terminal, where some characters take two."""
    from rich.cells import set_cell_size

    return set_cell_size(truncated(one_line(text), width), width)


def truncated(text: str, width: int) -> str:
    """``text`` on at most ``width`` columns of a terminal; "…" stands for what was cut."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def shown_end(text: str, width: int) -> str:
    """The end of ``text`` on at most ``width`` columns of a terminal; "…" stands for what was cut before it."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    while text and cell_len(text) >= width:
        text = text[1:]
    return f"…{text}"


def padded(text: str, width: int) -> str:
    """``text`` padded to ``width`` columns of a terminal; longer text is not cut."""
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))


def marked(text: str, style: str, mark: str | None) -> list[tuple[str, str]]:
    """``text`` in pieces with their styles: each ``mark`` in ``text``, in upper or lower case, is highlighted."""
    if not mark:
        return [(text, style)]
    pieces = re.split(f"({re.escape(mark)})", text, flags=re.IGNORECASE)
    return [(piece, f"{style} reverse".strip() if n % 2 else style) for n, piece in enumerate(pieces) if piece]


def shortened(name: str) -> str:
    """The form of an id on a narrow terminal: the end of the id, which identifies it and can be copied.

    The name of an agent's stream, such as ``agent/intents``, stays whole.
    """
    return name if "/" in name else name[-SHORT_ID:]


def held_text(summary: Summary) -> str:
    """What a log holds, in the words of ``status``: ``12 records (3 pruned), 4 of them forgotten, in 2 streams``."""
    from sidecar.read.wording import counted, stored_text

    forgotten = f", {summary.forgotten} of them forgotten," if summary.forgotten else ""
    return f"{stored_text(summary.records, summary.pruned)}{forgotten} in {counted(summary.streams, 'stream')}"
