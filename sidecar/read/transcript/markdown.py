"""A transcript as Markdown. Pure.

Words of users and tools are quoted or fenced, so that they cannot be mistaken for the transcript's own words. Prompts
and answers stay Markdown, but their HTML is shown as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.read.transcript import wording as words
from sidecar.read.transcript.markdown_text import code_of, fences
from sidecar.read.transcript.model import Call, Reading, Session
from sidecar.read.transcript.walk import ITEMS, Piece, pieces
from sidecar.read.wording import local_time, one_line, printable

_ACTS = re.compile(r"(?<!\\)((?:\\\\)*)(<(?=[A-Za-z/!?])(?!https?://[^\s<>`]*>)|!(?=\[))")
"""Where HTML or an image begins, which a viewer may run or fetch, or which hides what follows. A text may have been
pasted from anywhere. An address in angle brackets is only a link."""
_PRIVATE = 0xF0000
_MOST = 0xFFF0
_STANDS = re.compile("[\U000f0000-\U000fffff]")
"""Characters that stand for the beginnings while code is looked for. ``printable`` lets none of them through."""
_INDENT = re.compile(r"^[ \t]+")
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown_lines(roots: list[Session], reading: Reading) -> Iterator[str]:
    """The transcript, a line at a time."""
    for lines in markdown_pieces(roots, reading):
        yield from lines


def markdown_pieces(roots: list[Session], reading: Reading, where: str | None = None) -> Iterator[list[str]]:
    """The lines of the transcript, a piece at a time. ``where`` is shown in the place of the first directory."""
    for number, piece in enumerate(pieces(roots, reading)):
        between = ["", "---", ""] if number and piece.kind == "title" else []
        if piece.kind == "title":
            yield [*between, *_title(piece, piece.of.directory if where is None else where)]
            where = where and ""
        else:
            yield list(_rendered(piece, reading.full, 2))


def _title(piece: Piece, where: str) -> Iterator[str]:
    yield f"# {escaped(piece.text)}"
    yield ""
    yield " · ".join(filter(None, (code(where), escaped(piece.facts), code(piece.of.id))))


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
    """Untrusted Markdown without HTML and images; code stays as it is."""
    starts: list[str] = []

    def hide(found: re.Match[str]) -> str:
        starts.append(found[2])
        return found[1] + chr(_PRIVATE + min(len(starts), _MOST))

    hidden = _ACTS.sub(hide, text)
    code = code_of(hidden) - {chr(_PRIVATE + _MOST)} if starts else set()
    left = iter(starts)

    def escaped(found: re.Match[str]) -> str:
        start = next(left)
        return start if found[0] in code else f"\\{start}"

    return _STANDS.sub(escaped, hidden)


def contained(text: str) -> list[str]:
    """The lines of untrusted Markdown, harmless, which may also be quoted. An open code block is closed at the end."""
    lines = printable(text).strip("\n").split("\n")
    blocks = fences("\n".join([*lines, ""]))
    fenced_ = {number for block in blocks for number in range(*(block.map or (0, 0)))}
    # In a quote, a tab is shorter, and would no longer begin code.
    for number in {*range(len(lines))} - fenced_:
        lines[number] = _INDENT.sub(lambda found: found[0].expandtabs(4), lines[number])
    last = next((each for each in blocks if not each.level and each.map and each.map[1] == len(lines)), None)
    is_open = last is not None and last.map and last.map[1] - last.map[0] - 1 == last.content.count("\n")
    return [*inert("\n".join(lines)).split("\n"), *([last.markup] if last is not None and is_open else [])]


def _ticks(text: str, least: int) -> str:
    return "`" * max(least, 1 + max(map(len, re.findall("`+", text)), default=0))


def _rendered(piece: Piece, full: bool, level: int) -> Iterator[str]:
    text, facts = piece.text, piece.facts
    if piece.kind in ITEMS:
        if lines := list(_item(piece, full, level)):
            yield from ("", *lines)
    elif piece.kind == "waiting":
        yield from ("", f"**{facts}:** {code(text)}")
    elif piece.kind == "speaker":
        yield from ("", f"**{escaped(text)}** {code(facts)}".rstrip())
    else:
        yield from ("", f"_{escaped(text)}_")


def _item(piece: Piece, full: bool, level: int) -> Iterator[str]:
    text, facts = piece.text, piece.facts
    if piece.kind == "prompt":
        yield f"{'#' * min(level, 6)} {escaped(piece.of.actor)} · {facts}"
        yield ""
        yield from _quoted(contained(text))
    elif piece.kind == "answer":
        yield from contained(text)
    elif piece.kind == "aside":
        shown = words.shortened_text(text, words.OUTPUT_LINES, full=full or facts == "summary")
        yield from _quoted([f"_{facts}:_", "", *contained(shown)])
    elif piece.kind == "ask":
        yield from ("", f"- {escaped(facts)}" + (f" ({code(text)})" if text else ""))
    elif piece.kind == "notice":
        yield f"_{local_time(piece.of.ts, '%H:%M:%S')} {escaped(text)}_"
    else:
        call = piece.of
        about = "" if call.tool == "bash" else f" {code(text)}"
        yield f"**{escaped(call.tool)}**{about}" + "".join(f" · {escaped(fact)}" for fact in words.call_facts(call))
        for part in piece.parts:
            if lines := list(_part(part, piece, full, level)):
                yield from ("", *lines)


def _part(part: Piece, above: Piece, full: bool, level: int) -> Iterator[str]:
    call: Call = above.of
    if part.kind == "ask":
        yield from list(_item(part, full, level))[1:]
    elif part.kind == "given":
        yield from fenced(part.text, "json")
    elif part.kind == "output":
        if shown := words.output_text(call, above.text, part.text, full=full):
            yield from fenced(shown, "console" if call.tool == "bash" else "")
    elif part.kind == "diff":
        yield from (f"{code(part.of.file)} {part.facts}", "") if part.facts else ()
        yield from fenced(words.shortened_text(part.text, words.DIFF_LINES, full=full), "diff")
    elif part.kind == "below":
        yield from _quoted([line for piece in part.parts for line in _rendered(piece, full, level + 1)])
    else:
        yield from _quoted(contained(words.shortened_text(part.text, words.OUTPUT_LINES, full=full)))


def _quoted(lines: list[str]) -> list[str]:
    return [f"> {line}" if line else ">" for line in (lines[1:] if lines and not lines[0] else lines)]
