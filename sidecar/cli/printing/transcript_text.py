"""A transcript on a terminal: lines of styled text, from the top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from sidecar.cli.printing.rich_markdown import Row, markdown_rows
from sidecar.read.changes.approvals import Ask
from sidecar.read.changes.edits import Diff
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.model import Call, Item, Prompt, Reading, Said, Session, Turn, asks_below
from sidecar.read.wording import one_line, printable

READING_WIDTH = 100
"""Maximum width of a text, in columns, because longer lines are hard to read. Output and diffs use the whole width."""

NARROWEST = 20
BAR = ("│ ", "dim")
PROMPT_BAR = ("▌ ", "bold cyan")

WAITING, QUIET, BAD, GOOD = "bold yellow", "dim", "red", "green"
_ANSWERS = {"waiting": WAITING, "rejected": BAD, "over": QUIET, "replied": "yellow"}
_OUTCOMES = {"completed": QUIET, "failed": BAD, "": WAITING, "continued": QUIET, "stopped": QUIET}


def transcript_rows(console: Console, roots: list[Session], reading: Reading, where: str) -> Iterator[Row]:
    """All lines of a transcript; ``where`` is the directory in the form in which a person writes it."""
    writer = _Writer(console, reading)
    for number, session in enumerate(roots):
        if number:
            yield from ([], [])
        yield from writer.session(session, where if not number else "")


class _Writer:
    def __init__(self, console: Console, reading: Reading) -> None:
        self._console, self._reading = console, reading
        self._width = console.width

    def session(self, session: Session, where: str) -> Iterator[Row]:
        yield from self._wrapped(session.title or "(no title)", "bold", self._width)
        facts = " · ".join(filter(None, (where, words.facts_of(session))))
        width = min(self._width, READING_WIDTH)
        for line in (
            (facts, session.id) if cell_len(facts) + len(session.id) + 3 > width else (f"{facts} · {session.id}",)
        ):
            yield from self._wrapped(line, QUIET, self._width)
        for line in self._reading.notes:
            yield from self._wrapped(line, QUIET, self._width)
        for ask in words.waiting_in(session.turns):
            text = f"{words.answer_text(ask, self._reading.now_ms)}: {words.asked_text(ask)}"
            yield from self._wrapped(text, WAITING, self._width)
        yield from self._turns(session.turns, session.directory, self._width)

    def _turns(self, turns: list[Turn], directory: str, width: int) -> Iterator[Row]:
        for turn in turns:
            yield from self._turn(turn, directory, width)

    def _turn(self, turn: Turn, directory: str, width: int) -> Iterator[Row]:
        is_said = False
        items, later = words.split_at_end(turn)
        for item in items:
            if not isinstance(item, Prompt) and not is_said and turn.agent:
                is_said = True
                yield []
                yield [(one_line(turn.agent), "bold"), (f"  {one_line(words.turn_facts(turn))}", QUIET)]
            yield from self._set_apart(item, directory, width)
        if end := words.turn_end(turn):
            yield []
            style = _OUTCOMES.get(turn.outcome, "yellow")
            yield from _indented(self._wrapped(end, style, width - 2))
        for item in later:
            yield from self._set_apart(item, directory, width)

    def _set_apart(self, item: Item, directory: str, width: int) -> Iterator[Row]:
        is_prompt = isinstance(item, Prompt)
        if rows := list(self._item(item, directory, width if is_prompt else width - 2)):
            yield []
            yield from rows if is_prompt else _indented(rows)

    def _item(self, item: Item, directory: str, width: int) -> Iterator[Row]:
        if isinstance(item, Prompt):
            yield from self._prompt(item, width)
        elif isinstance(item, Said):
            yield from self._said(item, width)
        elif isinstance(item, Call):
            yield from self._call(item, directory, width)
        elif isinstance(item, Ask):
            yield from self._ask(item, width)
        elif item.what != "other" or self._reading.full:
            style = BAD if item.what in ("error", "gap") else QUIET
            yield from self._wrapped(words.notice_text(item), style, width)

    def _prompt(self, prompt: Prompt, width: int) -> Iterator[Row]:
        bar = PROMPT_BAR if prompt.actor == "user" else (PROMPT_BAR[0], QUIET)
        yield [bar, (one_line(prompt.actor), bar[1]), (f"  {words.prompt_facts(prompt)}", QUIET)]
        lines = list(self._wrapped(words.prompt_text(prompt), "", width - 2))
        # Shorten the text of a slash command, because the user did not type that text.
        most = len(lines) if not prompt.command else words.OUTPUT_LINES
        yield from self._barred(lines, bar, most)

    def _said(self, said: Said, width: int) -> Iterator[Row]:
        if said.kind == "answer":
            yield from markdown_rows(self._console, said.text, min(width, READING_WIDTH))
            return
        most = words.THOUGHT_LINES if said.kind == "reasoning" else words.OUTPUT_LINES
        lines = list(self._wrapped(said.text, "dim italic", width))
        shown = lines if self._reading.full or len(lines) <= most + 1 else lines[:most]
        yield from shown
        if len(shown) < len(lines):
            yield [(_more(len(lines) - most), QUIET)]

    # --- calls ---

    def _call(self, call: Call, directory: str, width: int) -> Iterator[Row]:
        facts = call_row_facts(call)
        label, style = ("$", "bold") if call.tool == "bash" else (one_line(call.tool), "bold")
        text = printable(words.call_text(call, directory)).expandtabs(4).rstrip("\n")
        lines = text.split("\n") if text else [""]
        indent = cell_len(label) + 1
        rows = [row for line in lines for row in _chopped(line, width - indent)]
        for number, row in enumerate(rows):
            head: Row = [(f"{label} " if not number else " " * indent, style), (row, "bold" if label == "$" else "")]
            yield head + (facts if number == len(rows) - 1 else [])
        for ask in call.asks:
            yield from self._ask(ask, width, asked=not words.is_about(ask, call))
        if self._reading.full and (given := words.call_input(call)):
            yield from self._output(given, QUIET, width)
        yield from self._output(words.call_output(call, full=self._reading.full), BAD if call.error else "", width)
        for diff in call.diffs:
            yield from self._diff(diff, width, named=len(call.diffs) > 1)
        if call.child is not None or call.tool == "task":
            yield from self._child(call, directory, width)

    def _child(self, call: Call, directory: str, width: int) -> Iterator[Row]:
        turns = call.child.turns if call.child is not None else []
        if self._reading.children and turns:
            rows = list(self._turns(turns, directory, width - 2))
            yield from ([BAR, *row] for row in (rows[1:] if rows and not rows[0] else rows))
            return
        for ask in asks_below(turns):
            yield from ([BAR, *row] for row in self._ask(ask, width - 2))
        result = markdown_rows(self._console, words.call_result(call), min(width - 2, READING_WIDTH))
        yield from self._barred(result, BAR, words.OUTPUT_LINES)

    def _ask(self, ask: Ask, width: int, *, asked: bool = True) -> Iterator[Row]:
        style = _ANSWERS[ask.state]
        if asked or ask.state == "waiting":
            yield from self._wrapped(f"? {words.asked_text(ask)}", style if ask.state == "waiting" else "", width, "  ")
        mark = {"replied": "✓ ", "rejected": "✗ "}.get(ask.state, "· ")
        yield from self._wrapped(mark + words.answer_text(ask, self._reading.now_ms), style, width, "  ")

    def _output(self, text: str, style: str, width: int) -> Iterator[Row]:
        if not text:
            return
        lines = printable(text).expandtabs().split("\n")
        head, hidden, tail = words.shortened(lines, words.OUTPUT_LINES, full=self._reading.full)
        for line in head:
            yield from self._output_line(line, style, width)
        if hidden:
            yield [BAR, (_more(hidden), QUIET)]
        for line in tail:
            yield from self._output_line(line, style, width)

    def _output_line(self, line: str, style: str, width: int) -> Iterator[Row]:
        rows = _chopped(line, width - 2)
        most = len(rows) if self._reading.full else 3
        for row in rows[:most]:
            yield [BAR, (row, style)]
        if len(rows) > most:
            yield [BAR, (f"… {sum(map(len, rows[most:]))} more characters (--full)", QUIET)]

    def _diff(self, diff: Diff, width: int, *, named: bool) -> Iterator[Row]:
        if named:
            yield [BAR, (one_line(diff.file), "bold"), (f"  {words.diff_facts(diff)}", QUIET)]
        lines = printable(diff.patch).expandtabs(4).split("\n")
        head, hidden, tail = words.shortened(lines, words.DIFF_LINES, full=self._reading.full)
        for line in head:
            yield from self._diff_line(line, width)
        if hidden:
            yield [BAR, (_more(hidden), QUIET)]
        for line in tail:
            yield from self._diff_line(line, width)

    def _diff_line(self, line: str, width: int) -> Iterator[Row]:
        if line.startswith(("@@ -1 ", "@@ -1,", "@@ -0,0 ")) or line.startswith("\\"):
            return  # hide the header of a hunk that begins at line 1, and the mark of a missing newline
        style = {"+": GOOD, "-": BAD, "@": "cyan dim", "*": QUIET}.get(line[:1], "")
        for row in _chopped(line, width - 2):
            yield [BAR, (row, style)]

    # --- lines ---

    def _barred(self, rows: list[Row], bar: tuple[str, str], most: int) -> Iterator[Row]:
        full = self._reading.full or len(rows) <= most + 1
        for row in rows if full else rows[:most]:
            yield [bar, *row]
        if not full:
            yield [bar, (_more(len(rows) - most), QUIET)]

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
        bad = fact == "failed" or fact.startswith("exit ")
        row += [("  " if not row else " · ", QUIET), (fact, BAD if bad else QUIET)]
    return row


def _indented(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield [("  ", ""), *row] if row else []


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
