"""A transcript on a terminal: its Markdown, as lines of styled text from the top."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.console import Console

from sidecar.cli.printing.rich_markdown import Row, markdown_rows
from sidecar.read.transcript.markdown import markdown_pieces
from sidecar.read.transcript.model import Reading, Session

READING_WIDTH: Final = 100
"""Maximum width of a line, in columns, because longer lines are hard to read."""

_MORE: Final = re.compile(r"(… \d+ more lines?)$", re.MULTILINE)


def transcript_rows(console: Console, roots: list[Session], reading: Reading, where: str) -> Iterator[Row]:
    """All lines of a transcript; ``where`` is the directory in the form in which a person writes it."""
    for number, lines in enumerate(markdown_pieces(roots, reading, where)):
        text = "\n".join(lines)
        if not reading.full:
            text = _MORE.sub(r"\1 (--full)", text)
        rows = markdown_rows(console, text, min(console.width, READING_WIDTH))
        yield from ([], *rows) if number and rows else rows
