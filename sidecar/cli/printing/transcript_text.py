"""A transcript on a terminal: lines of styled text, from the top."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from sidecar.cli.printing.rich_markdown import Row, markdown_rows
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.model import Call, Reading, Session
from sidecar.read.transcript.walk import Piece, pieces
from sidecar.read.wording import one_line, printable

READING_WIDTH = 100
"""Maximum width of a text, in columns, because longer lines are hard to read. Output and diffs use the whole width."""

NARROWEST = 20
BAR = ("│ ", "dim")
PROMPT_BAR = ("▌ ", "bold cyan")

WAITING, QUIET, BAD, GOOD = "bold yellow", "dim", "red", "green"
_ANSWERS = {"waiting": WAITING, "rejected": BAD, "withdrawn": QUIET, "over": QUIET, "replied": "yellow"}
_OUTCOMES = {"completed": QUIET, "failed": BAD, "": WAITING, "continued": QUIET, "stopped": QUIET}


def transcript_rows(console: Console, roots: list[Session], reading: Reading, where: str) -> Iterator[Row]:
    """All lines of a transcript; ``where`` is the directory in the form in which a person writes it."""
    writer = _Writer(console, reading.full)
    for number, piece in enumerate(pieces(roots, reading)):
        if number and piece.kind == "title":
            where = ""
            yield from ([], [])
        yield from writer.told(piece, console.width, where)


class _Writer:
    def __init__(self, console: Console, full: bool) -> None:
        self._console, self._full = console, full

    def told(self, piece: Piece, width: int, where: str = "") -> Iterator[Row]:
        text, facts = piece.text, piece.facts
        if piece.kind == "title":
            yield from self._wrapped(text, "bold", width)
            facts, name = " · ".join(filter(None, (where, facts))), piece.of.id
            is_short = cell_len(facts) + len(name) + 3 <= min(width, READING_WIDTH)
            for line in (f"{facts} · {name}",) if is_short else (facts, name):
                yield from self._wrapped(line, QUIET, width)
        elif piece.kind == "note":
            yield from self._wrapped(text, QUIET, width)
        elif piece.kind == "waiting":
            yield from self._wrapped(f"{facts}: {text}", WAITING, width)
        elif piece.kind == "speaker":
            yield from ([], [(one_line(text), "bold"), (f"  {one_line(facts)}", QUIET)])
        elif piece.kind == "prompt":
            yield from ([], *self._prompt(piece, width))
        elif rows := list(self._item(piece, width - 2)):
            yield from ([], *([("  ", ""), *row] if row else [] for row in rows))

    def _prompt(self, piece: Piece, width: int) -> Iterator[Row]:
        prompt = piece.of
        bar = PROMPT_BAR if prompt.actor == "user" else (PROMPT_BAR[0], QUIET)
        yield [bar, (one_line(prompt.actor), bar[1]), (f"  {piece.facts}", QUIET)]
        lines = list(self._wrapped(piece.text, "", width - 2))
        # Shorten the text of a slash command, because the user did not type that text.
        most = len(lines) if not prompt.command else words.OUTPUT_LINES
        yield from self._barred(lines, bar, most)

    def _item(self, piece: Piece, width: int) -> Iterator[Row]:
        text, facts = piece.text, piece.facts
        if piece.kind == "answer":
            yield from markdown_rows(self._console, text, min(width, READING_WIDTH))
        elif piece.kind == "aside":
            most = words.THOUGHT_LINES if facts == "reasoning" else words.OUTPUT_LINES
            yield from self._barred(list(self._wrapped(text, "dim italic", width)), None, most)
        elif piece.kind == "call":
            yield from self._head(piece.of, text, width)
            for part in piece.parts:
                yield from self._part(part, piece.of, width)
        elif piece.kind == "ask":
            style = _ANSWERS[piece.of.state]
            if text:
                yield from self._wrapped(f"? {text}", style if style == WAITING else "", width, "  ")
            mark = {"replied": "✓ ", "rejected": "✗ "}.get(piece.of.state, "· ")
            yield from self._wrapped(mark + facts, style, width, "  ")
        elif piece.kind == "end":
            yield from self._wrapped(text, _OUTCOMES.get(facts, "yellow"), width)
        else:
            yield from self._wrapped(text, BAD if piece.of.what in ("error", "gap") else QUIET, width)

    # --- calls ---

    def _head(self, call: Call, text: str, width: int) -> Iterator[Row]:
        facts = call_row_facts(call)
        label, style = ("$", "bold") if call.tool == "bash" else (one_line(call.tool), "bold")
        text = printable(text).expandtabs(4).rstrip("\n")
        lines = text.split("\n") if text else [""]
        indent = cell_len(label) + 1
        rows = [row for line in lines for row in _chopped(line, width - indent)]
        for number, row in enumerate(rows):
            head: Row = [(f"{label} " if not number else " " * indent, style), (row, "bold" if label == "$" else "")]
            yield head + (facts if number == len(rows) - 1 else [])

    def _part(self, part: Piece, call: Call, width: int) -> Iterator[Row]:
        if part.kind == "ask":
            is_below = not any(ask is part.of for ask in call.asks)
            rows = self._item(part, width - 2 * is_below)
            yield from ([BAR, *row] for row in rows) if is_below else rows
        elif part.kind == "given":
            yield from self._boxed(part.text, QUIET, words.OUTPUT_LINES, width)
        elif part.kind == "output":
            yield from self._boxed(part.text, BAD if call.error else "", words.OUTPUT_LINES, width)
        elif part.kind == "diff":
            if part.facts:
                yield [BAR, (one_line(part.of.file), "bold"), (f"  {part.facts}", QUIET)]
            yield from self._boxed(part.text, None, words.DIFF_LINES, width)
        elif part.kind == "below":
            below = [row for piece in part.parts for row in self.told(piece, width - 2)]
            yield from ([BAR, *row] for row in (below[1:] if below and not below[0] else below))
        else:
            result = markdown_rows(self._console, part.text, min(width - 2, READING_WIDTH))
            yield from self._barred(result, BAR, words.OUTPUT_LINES)

    def _boxed(self, text: str, style: str | None, most: int, width: int) -> Iterator[Row]:
        """Output, or a diff if there is no ``style``, beside a bar."""
        if not text:
            return
        lines = printable(text).expandtabs(8 if style is not None else 4).split("\n")
        head, hidden, tail = words.shortened(lines, most, full=self._full)
        for part in (head, tail):
            for line in part:
                yield from self._diff_line(line, width) if style is None else self._output_line(line, style, width)
            if part is head and hidden:
                yield [BAR, (_more(hidden), QUIET)]

    def _output_line(self, line: str, style: str, width: int) -> Iterator[Row]:
        rows = _chopped(line, width - 2)
        most = len(rows) if self._full else 3
        for row in rows[:most]:
            yield [BAR, (row, style)]
        if len(rows) > most:
            yield [BAR, (f"… {sum(map(len, rows[most:]))} more characters (--full)", QUIET)]

    def _diff_line(self, line: str, width: int) -> Iterator[Row]:
        if line.startswith(("@@ -1 ", "@@ -1,", "@@ -0,0 ")) or line.startswith("\\"):
            return  # hide the header of a hunk that begins at line 1, and the mark of a missing newline
        style = {"+": GOOD, "-": BAD, "@": "cyan dim", "*": QUIET}.get(line[:1], "")
        for row in _chopped(line, width - 2):
            yield [BAR, (row, style)]

    # --- lines ---

    def _barred(self, rows: list[Row], bar: tuple[str, str] | None, most: int) -> Iterator[Row]:
        before = [bar] if bar is not None else []
        full = self._full or len(rows) <= most + 1
        for row in rows if full else rows[:most]:
            yield [*before, *row]
        if not full:
            yield [*before, (_more(len(rows) - most), QUIET)]

    def _wrapped(self, text: str, style: str, width: int, indent: str = "") -> Iterator[Row]:
        """A text wrapped at words, with its own line breaks kept. Lines after the first begin with ``indent``."""
        room = max(min(width, READING_WIDTH) - len(indent), NARROWEST)
        begun = False
        for line in printable(text).expandtabs(4).strip("\n").split("\n"):
            for row in _filled(self._console, line, room):
                yield [(indent if begun else "", ""), (row, style)]
                begun = True


def call_row_facts(call: Call) -> Row:
    """How a call went, shown after its heading: failures are highlighted."""
    row: Row = []
    for fact in words.call_facts(call):
        row += [("  " if not row else " · ", QUIET), (fact, BAD if fact == words.failure_of(call) else QUIET)]
    return row


def _filled(console: Console, line: str, width: int) -> list[str]:
    if cell_len(line) <= width:
        return [line]
    return [str(row).rstrip() for row in Text(line).wrap(console, width)]


def _chopped(line: str, width: int) -> list[str]:
    """A line of output, split into as many lines of the terminal as it needs. Spaces are kept, because they may have a
    meaning.
    """
    width = max(width, NARROWEST)
    return [line] if len(line) <= width and cell_len(line) <= width else chop_cells(line, width)


def _more(count: int) -> str:
    return f"{words.more_lines(count)} (--full)"
