"""Parses untrusted Markdown: raw HTML counts as text, and links may lead only to http and https addresses. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

DEEPEST: Final = 40
"""Maximum nesting depth of Markdown that is rendered; a list or quote counts as two levels. The parser drops deeper
content."""


class _Markdown(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's name
        """Accept http and https only."""
        try:
            return urlsplit(url).scheme.lower() in ("http", "https")
        except ValueError:
            return False


def parser(**options: Any) -> MarkdownIt:
    """A parser for CommonMark with tables and strikethrough."""
    made = _Markdown("commonmark", {"html": False, "maxNesting": DEEPEST, **options})
    return made.enable(["table", "strikethrough"])


MARKDOWN: Final = parser()


def is_whole(tokens: Iterable[Token]) -> bool:
    """False if the parser may have dropped content that was nested too deep."""
    return all(token.level < DEEPEST - 2 for block in tokens for token in (block, *(block.children or ())))
