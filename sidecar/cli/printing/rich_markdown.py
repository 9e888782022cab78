"""Renders Markdown as styled lines for a terminal: left-aligned, without boxes, without links that a terminal could
open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from sidecar.read.transcript.markdown_text import MARKDOWN, is_whole
from sidecar.read.wording import printable

Row = list[tuple[str, str]]
"""One line: pieces of text, each with rich's name for its style."""

MOST_COLOURED = 20_000
"""Maximum length of code that is coloured, in characters, because some of pygments' lexers are slow on long lines."""

_PLAIN = ("text", "console")
"""Kinds of code without a colour: to look for one in output takes long."""

_THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold dim",
        "markdown.block_quote": "dim",
        "markdown.item.number": "dim",
        "markdown.item.bullet": "dim",
        "markdown.hr": "dim",
        "markdown.link": "underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
        "markdown.link_url": "dim",
    }
)


class _Heading(Heading):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Code(CodeBlock):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip().expandtabs(4)
        inner: Any = Text(code)
        if len(code) <= MOST_COLOURED and self.lexer_name not in _PLAIN:
            inner = Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True, background_color="default")
        yield Padding(inner, (0, 0, 0, 2))


class _Table(TableElement):
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.show_edge = False
                for column in table.columns:
                    column.overflow = "fold"  # a long word is wrapped, not cut
            yield table


class _Markdown(Markdown):
    """Renders Markdown with raw HTML as text, and keeps line breaks."""

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup, self.parsed = text, MARKDOWN.parse(text)
        self.is_whole = is_whole(self.parsed)
        for part in (inner for block in self.parsed for inner in block.children or ()):
            if part.type == "softbreak":
                part.type = "hardbreak"
            elif part.type == "image":
                part.type, part.content = "text", f"[image: {part.content} {part.attrGet('src') or ''}]"

    def texts(self) -> Iterator[str]:
        """The texts that the rendered lines must contain."""
        for block in self.parsed:
            if block.children is None:
                yield block.content
            yield from (inner.content for inner in block.children or ())

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "table_open": _Table,
    }


def markdown_rows(console: Console, text: str, width: int) -> list[Row]:
    """Render ``text`` on lines of at most ``width`` columns; show the source if rendering would lose a word."""
    text = printable(text)
    options = console.options.update(width=width)
    console.push_theme(_THEME)
    try:
        markdown = _Markdown(text)
        lines = console.render_lines(markdown, options, pad=False) if markdown.is_whole else []
        whole = markdown.is_whole and _words(part.text for line in lines for part in line) >= _words(markdown.texts())
    except Exception:  # noqa: BLE001 - a fault of a library must not hide what was said
        whole = False
    finally:
        console.pop_theme()
    if not whole:
        lines = console.render_lines(Text(text.expandtabs(4), overflow="fold"), options, pad=False)
    return [[(_harmless(part), _style(part.style)) for part in line if not part.control] for line in _trimmed(lines)]


def _words(texts: Iterable[str]) -> int:
    """The number of letters and digits. Rendering adds and removes only other characters."""
    return sum(character.isalnum() for text in texts for character in text)


def _harmless(part: Segment) -> str:
    """Make a piece safe to print, because entities (``&#x202e;``) can put unprintable characters into the text."""
    return printable(part.text).replace("\n", " ").expandtabs(4)


def _style(style: Style | None) -> str:
    return str(style.update_link(None)) if style is not None else ""


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    filled = [number for number, line in enumerate(lines) if any(part.text.strip() for part in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []
