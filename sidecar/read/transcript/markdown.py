"""A transcript as Markdown. Pure.

Words of users and tools are quoted or fenced, so that they cannot be mistaken for the transcript's own words. Answers
stay Markdown, except where they would also format the text after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.read.changes.approvals import Ask
from sidecar.read.transcript import wording as words
from sidecar.read.transcript.model import Call, Item, Prompt, Reading, Said, Session, Turn, asks_below
from sidecar.read.wording import local_time, one_line, printable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_SWALLOWS = re.compile(r"( {0,3})<(?=script|pre|style|textarea|!|\?)", re.IGNORECASE)
_ACTS = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")
"""Where HTML or an image begins, which a viewer may run or fetch. A prompt may have been pasted from anywhere."""
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown_lines(roots: list[Session], reading: Reading) -> Iterator[str]:
    """The transcript, a line at a time."""
    for number, session in enumerate(roots):
        if number:
            yield from ("", "---", "")
        yield f"# {escaped(session.title or '(no title)')}"
        yield ""
        yield " · ".join(filter(None, (code(session.directory), escaped(words.facts_of(session)), code(session.id))))
        for note in reading.notes:
            yield from ("", f"_{escaped(note)}_")
        for ask in words.waiting_in(session.turns):
            yield from ("", f"**{words.answer_text(ask, reading.now_ms)}:** {code(words.asked_text(ask))}")
        yield from _turns(session.turns, session.directory, reading, 2)


def escaped(text: str) -> str:
    """``text`` on one line, shown literally: none of its characters has a meaning in Markdown."""
    return _MARKS.sub(r"\\\1", one_line(text))


def code(text: str) -> str:
    """``text`` as inline code on one line; empty if ``text`` is empty."""
    text = one_line(text)
    ticks = _ticks(text, 1)
    pad = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{ticks}{pad}{text}{pad}{ticks}" if text else ""


def fenced(text: str, language: str = "") -> list[str]:
    """``text`` as a block of code, with a fence that the text itself cannot close."""
    ticks = _ticks(text, 3)
    return [ticks + language, *printable(text).split("\n"), ticks]


def inert(text: str) -> str:
    """Markdown without HTML and images. A backslash before a character could be undone by another one before it, so
    the characters are written as entities."""
    return _ACTS.sub(lambda found: f"&#{ord(found[0])};", text)


def contained(text: str) -> list[str]:
    """The lines of untrusted Markdown; an open code block is closed at the end."""
    lines, fence = [], ""
    for line in printable(text).strip("\n").split("\n"):
        found = _FENCE.match(line)
        if found is not None and not fence:
            fence = found[1]
        elif found is not None and found[1].startswith(fence) and not found[2].strip():
            fence = ""
        lines.append(line if fence else _SWALLOWS.sub(r"\1\\<", line))
    return [*lines, fence] if fence else lines


def _ticks(text: str, least: int) -> str:
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def _turns(turns: list[Turn], directory: str, reading: Reading, level: int) -> Iterator[str]:
    for turn in turns:
        is_said = False
        items, later = words.split_at_end(turn)
        for item in items:
            if not isinstance(item, Prompt) and not is_said and turn.agent:
                is_said = True
                yield from ("", f"**{escaped(turn.agent)}** {code(words.turn_facts(turn))}".rstrip())
            yield from _set_apart(item, directory, reading, level)
        if end := words.turn_end(turn):
            yield from ("", f"_{escaped(end)}_")
        for item in later:
            yield from _set_apart(item, directory, reading, level)


def _set_apart(item: Item, directory: str, reading: Reading, level: int) -> Iterator[str]:
    if lines := list(_item(item, directory, reading, level)):
        yield from ("", *lines)


def _item(item: Item, directory: str, reading: Reading, level: int) -> Iterator[str]:
    if isinstance(item, Prompt):
        yield f"{'#' * min(level, 6)} {escaped(item.actor)} · {words.prompt_facts(item)}"
        yield ""
        yield from _quoted(inert(printable(words.prompt_text(item))).split("\n"))
    elif isinstance(item, Said) and item.kind == "answer":
        yield from contained(item.text)
    elif isinstance(item, Said):
        full = reading.full or item.kind == "summary"
        lines = words.shortened_lines(contained(item.text), words.OUTPUT_LINES, full=full)
        yield from _quoted([f"_{item.kind}:_", "", *lines])
    elif isinstance(item, Ask):
        yield from _ask(item, reading)
    elif isinstance(item, Call):
        yield from _call(item, directory, reading, level)
    elif item.what != "other" or reading.full:
        yield f"_{local_time(item.ts, '%H:%M:%S')} {escaped(words.notice_text(item))}_"


def _call(call: Call, directory: str, reading: Reading, level: int) -> Iterator[str]:
    text, output = words.call_text(call, directory), words.call_output(call, full=reading.full)
    facts = "".join(f" · {escaped(fact)}" for fact in words.call_facts(call))
    shown = words.shortened_text(output, words.OUTPUT_LINES, full=reading.full)
    if call.tool == "bash":
        shown = "\n".join(filter(None, (f"$ {text}", shown)))
        yield f"**bash**{facts}"
    else:
        yield f"**{escaped(call.tool)}** {code(text)}{facts}"
    for ask in call.asks:
        yield from _ask(ask, reading, asked=not words.is_about(ask, call))
    if reading.full and (given := words.call_input(call)):
        yield from ("", *fenced(given, "json"))
    if shown:
        yield from ("", *fenced(shown, "console" if call.tool == "bash" else ""))
    for diff in call.diffs:
        named = [f"{code(diff.file)} {words.diff_facts(diff)}", ""] if len(call.diffs) > 1 else []
        yield from ("", *named, *fenced(words.shortened_text(diff.patch, words.DIFF_LINES, full=reading.full), "diff"))
    yield from _child(call, directory, reading, level)


def _child(call: Call, directory: str, reading: Reading, level: int) -> Iterator[str]:
    turns = call.child.turns if call.child is not None else []
    if reading.children and turns:
        yield from _quoted(list(_turns(turns, directory, reading, level + 1)))
        return
    for ask in asks_below(turns):
        yield from _ask(ask, reading)
    if call.tool == "task" and (result := words.call_result(call)):
        yield ""
        yield from _quoted(words.shortened_lines(contained(result), words.OUTPUT_LINES, full=reading.full))


def _ask(ask: Ask, reading: Reading, *, asked: bool = True) -> Iterator[str]:
    about = f" ({code(words.asked_text(ask))})" if asked or ask.state == "waiting" else ""
    yield from ("", f"- {escaped(words.answer_text(ask, reading.now_ms))}{about}")


def _quoted(lines: list[str]) -> list[str]:
    return [f"> {line}".rstrip() for line in (lines[1:] if lines and not lines[0] else lines)]
