"""Markdown as styled lines of a terminal: left-aligned, without boxes, without links that a terminal could open."""

from __future__ import annotations

from typing import Any, ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from sidecar.views.wording import printable

Row = list[tuple[str, str]]
"""One line: texts with rich's names of their styles."""

MOST_COLOURED = 20_000
"""Characters of code up to which it is coloured: some of pygments' lexers are slow on long lines."""

_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

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
        if len(code) <= MOST_COLOURED:
            inner = Syntax(code, self.lexer_name, theme="ansi_dark", word_wrap=True, background_color="default")
        yield Padding(inner, (0, 0, 0, 2))


class _Markdown(Markdown):
    """Raw HTML is text, as what an agent wrote about types and tags is; each of its lines stays a line."""

    def __init__(self, text: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup, self.parsed = text, _PARSER.parse(text)
        for part in (inner for block in self.parsed for inner in block.children or ()):
            if part.type == "softbreak":
                part.type = "hardbreak"
            elif part.type == "image":
                part.type, part.content = "text", f"[image: {part.content} {part.attrGet('src') or ''}]"

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
    }


def markdown_rows(console: Console, text: str, width: int) -> list[Row]:
    """``text`` rendered on lines of at most ``width`` columns; what cannot be rendered is shown as it is."""
    text = printable(text)
    options = console.options.update(width=width)
    console.push_theme(_THEME)
    try:
        rendered = _Markdown(text)
        lines = console.render_lines(rendered, options, pad=False)
    except Exception:  # noqa: BLE001 - a fault of a library must not hide what was said
        lines = console.render_lines(Text(text), options, pad=False)
    finally:
        console.pop_theme()
    return [[(_harmless(part), _style(part.style)) for part in line if not part.control] for line in _trimmed(lines)]


def _harmless(part: Segment) -> str:
    """Markdown can name a character (``&#x202e;``), so what was printable before may not be printable now."""
    return printable(part.text).replace("\n", " ").expandtabs(4)


def _style(style: Style | None) -> str:
    return str(style.update_link(None)) if style is not None else ""


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Without empty lines at the beginning and end."""
    filled = [number for number, line in enumerate(lines) if any(part.text.strip() for part in line)]
    return lines[filled[0] : filled[-1] + 1] if filled else []
