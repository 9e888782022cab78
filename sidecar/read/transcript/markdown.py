"""A transcript as Markdown. Pure.

Words of users and tools are quoted or fenced, so that they cannot be mistaken for the transcript's own words. Answers
stay Markdown, except where they would also format the text after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidecar.read.transcript import wording as words
from sidecar.read.transcript.model import Call, Reading, Session
from sidecar.read.transcript.walk import ITEMS, Piece, pieces
from sidecar.read.wording import local_time, one_line, printable

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_SWALLOWS = re.compile(r"( {0,3})<(?=script|pre|style|textarea|!|\?)", re.IGNORECASE)
_ACTS = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")
"""Where HTML or an image begins, which a viewer may run or fetch. A prompt may have been pasted from anywhere."""
_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown_lines(roots: list[Session], reading: Reading) -> Iterator[str]:
    """The transcript, a line at a time."""
    for number, piece in enumerate(pieces(roots, reading)):
        if number and piece.kind == "title":
            yield from ("", "---", "")
        yield from _told(piece, reading.full, 2)


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


def _told(piece: Piece, full: bool, level: int) -> Iterator[str]:
    text, facts = piece.text, piece.facts
    if piece.kind == "title":
        yield f"# {escaped(text)}"
        yield ""
        yield " · ".join(filter(None, (code(piece.of.directory), escaped(facts), code(piece.of.id))))
    elif piece.kind in ITEMS:
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
        yield from _quoted(inert(printable(text)).split("\n"))
    elif piece.kind == "answer":
        yield from contained(text)
    elif piece.kind == "aside":
        lines = words.shortened_lines(contained(text), words.OUTPUT_LINES, full=full or facts == "summary")
        yield from _quoted([f"_{facts}:_", "", *lines])
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
        yield from _quoted([line for piece in part.parts for line in _told(piece, full, level + 1)])
    else:
        yield from _quoted(words.shortened_lines(contained(part.text), words.OUTPUT_LINES, full=full))


def _quoted(lines: list[str]) -> list[str]:
    return [f"> {line}".rstrip() for line in (lines[1:] if lines and not lines[0] else lines)]
