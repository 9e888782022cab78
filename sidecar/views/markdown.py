"""Reading Markdown that somebody else wrote: raw HTML is text, and links lead to pages only. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

DEEPEST: Final = 40
"""Lists and quotes within each other, two levels each, up to which Markdown is rendered; the parser drops more."""


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's name
        """Only what leads to a page, openly."""
        try:
            return urlsplit(url).scheme.lower() in ("http", "https")
        except ValueError:
            return False


def parser(**options: Any) -> MarkdownIt:
    """CommonMark with tables and strikethrough."""
    made = _Markdown("commonmark", {"html": False, "maxNesting": DEEPEST, **options})
    return made.enable(["table", "strikethrough"])


MARKDOWN: Final = parser()


def is_whole(tokens: Iterable[Token]) -> bool:
    """False if the parser may have dropped what was nested too deep."""
    return all(token.level < DEEPEST - 2 for block in tokens for token in (block, *(block.children or ())))
