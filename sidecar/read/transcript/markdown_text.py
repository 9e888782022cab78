"""Parses untrusted Markdown: raw HTML counts as text, and links may lead only to http and https addresses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from sidecar.read.transcript.attached import is_image

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


class _WithImages(_Markdown):
    def validateLink(self, url: str) -> bool:  # noqa: N802 - the library's name
        """Accept images that are in the text itself, too. A link to one must be taken out."""
        return is_image(url) or super().validateLink(url)


def parser(*, images: bool = False, **options: Any) -> MarkdownIt:
    """A parser for CommonMark with tables and strikethrough; with ``images``, the address of a link may be an image."""
    made = (_WithImages if images else _Markdown)("commonmark", {"html": False, "maxNesting": DEEPEST, **options})
    return made.enable(["table", "strikethrough"])


MARKDOWN: Final = parser()
_PLAIN: Final = parser().disable("table")

_BLOCKS: Final = ("fence", "code_block")
_FIRST: Final = re.compile(r"^[ \t>*+.)\d-]*(.)", re.MULTILINE)


def code_of(text: str) -> set[str]:
    """The characters that stand in code: for a reader that knows tables and for one that does not, and in a quote,
    which moves tabs. Not the first character of a line in code that is not a block: a block of HTML begins there."""
    quoted = "".join(f"> {line}\n" for line in text.split("\n"))
    first = {*_FIRST.findall(text)}
    found = []
    for tokens in (rules.parse(each) for rules in (MARKDOWN, _PLAIN) for each in (text, quoted)):
        found.append({c for block in tokens if block.type in _BLOCKS for c in block.content})
        inline = (part for block in tokens for part in block.children or () if part.type == "code_inline")
        found[-1] |= {c for part in inline for c in part.content} - first
    return set.intersection(*found)


def fences(text: str) -> list[Token]:
    """The fenced blocks of code."""
    if "```" not in text and "~~~" not in text:
        return []
    return [token for token in MARKDOWN.parse(text) if token.type == "fence"]


def is_whole(tokens: Iterable[Token]) -> bool:
    """False if the parser may have dropped content that was nested too deep."""
    return all(token.level < DEEPEST - 2 for block in tokens for token in (block, *(block.children or ())))
