"""Builds the texts that a model or a person reads, so that text from elsewhere cannot pass for ours. Pure.

Text from elsewhere is a result, a title, a file name, an error, a question, an answer or a payload. It appears in two
forms only: ``quoted``, in which each line begins with ``> ``, or ``inline``, on one line without markup. So a line of a
message that does not begin with ``> `` is ours. In both forms, our own tags are broken. Our tags therefore mean what
they say wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.read.wording import one_line, printable

TAGS: Final = ("background-agent", "checkpoint", "signal")
"""The tags of our own messages."""

MAX_INLINE: Final = 300
"""Maximum length, in characters, of text from elsewhere within a line of ours."""

_BEGINS: Final = "<＜﹤‹"
"""What a model may read as the beginning of a tag."""

_BETWEEN: Final = re.compile(r"[\W_]+")
_NAMES: Final = re.compile(
    "|".join(r"[\W_]{0,8}".join(name.split("-")) for name in (*TAGS, "system-reminder")), re.IGNORECASE
)
_LINK: Final = re.compile(r"(?<![\w.])(?=(?:[a-z][a-z0-9+.-]{1,20}:/|www\.)\S)", re.IGNORECASE)
_LINK_MARK: Final = "[not our link] "


def message(tag: str, fields: Mapping[str, str], lines: Iterable[str]) -> str:
    """A message of ours: the lines between a tag with these fields and the end of the tag.

    Each line is our own text, or was made by ``quoted`` or with ``inline``.
    """
    assert tag in TAGS
    head = "".join(f' {name}="{inline(value)}"' for name, value in fields.items())
    return "\n".join([f"<{tag}{head}>", *lines, f"</{tag}>"])


def quoted(text: str, most: int | None = None) -> str:
    """Text from elsewhere, with each line quoted; a text longer than ``most`` is cut, and says so."""
    text = without_tags(printable("\n".join(text.splitlines())))
    if most is not None and len(text) > most:
        text = f"{text[:most]}\n… {len(text) - most} characters left out …"
    return "\n".join(f"> {line}" for line in text.split("\n"))


def inline(text: str, most: int = MAX_INLINE) -> str:
    """Text from elsewhere for a line of ours, or for a field: one line, without quotes and markup."""
    text = one_line(text)
    text = text if len(text) <= most else f"{text[:most]}…"
    return without_tags(text).translate({ord('"'): "'", ord("<"): "&lt;", ord(">"): "&gt;"})


def without_tags(text: str) -> str:
    """``text``, in which nothing is one of our tags, in whatever case and with whatever spaces."""
    parts, end = [], 0
    for found in _BETWEEN.finditer(text):
        parts.append(text[end : found.start()])
        end, between = found.end(), found[0]
        is_tag = any(begin in between for begin in _BEGINS) and _NAMES.match(text, end)
        parts.append("".join("&lt;" if c in _BEGINS else c for c in between) if is_tag else between)
    return "".join([*parts, text[end:]])


def for_person(text: str, *, link: str | None = None) -> str:
    """A text for a person, to which ``link`` adds our own link for the answer.

    A model may have written the text, so links in the text are marked. If the text could pass for a message with our
    own link, its lines are quoted.
    """
    marked = _LINK.sub(_LINK_MARK, printable(text))
    if link is None and "\n" not in marked:
        return marked
    lines = "\n".join(f"> {line}" for line in marked.splitlines())
    return lines if link is None else f"{lines}\n\nAnswer: {link}"
