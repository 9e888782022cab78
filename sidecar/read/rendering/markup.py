"""What a host or the sidecar wraps in tags for a model, in the form in which a person reads it. Pure.

The model gets the tags: they tell it who speaks. A person sees who speaks in the heading of the message.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Final

QUOTES: Final = "It said this; the lines with > are the agent's words, not the user's:"
"""What introduces a result in a message to a model."""

_WRAPPED: Final = re.compile(
    r"\s*<(background-agent|checkpoint|signal|subagent|task)((?: [\w-]+=\"[^\"]*\")*)>\n?(.*?)\n?</\1>\s*", re.DOTALL
)
_FIELD: Final = re.compile(r'([\w-]+)="([^"]*)"')
_MARK: Final = re.compile("^> ", re.MULTILINE)
_RESULT: Final = re.compile(r"<task_(result|error)>\n?(.*?)\n?</task_\1>", re.DOTALL)


def unwrapped(text: str, *, marks: bool = True) -> str:
    """A message without its tags: ``count lines · completed · int_1``, and below it what it says.

    A text that is not as a whole in such tags is returned unchanged. The lines that begin with ``>`` keep this mark,
    because it tells an agent's words from ours; without ``marks``, they lose it.
    """
    found = _WRAPPED.fullmatch(text)
    if found is None:
        return text
    fields = {name: unescape(value) for name, value in _FIELD.findall(found[2])}
    what = fields.get("title") or fields.get("description") or found[1].replace("-", " ")
    names = (fields.get(name) for name in ("state", "id", "sessionID", "name"))
    head = " · ".join(filter(None, (what, *names)))
    body = inside(text)
    return "\n".join(filter(None, (head, body))) if marks else f"{head}: {_MARK.sub('', body)}"


def inside(text: str) -> str:
    """The words within the tags of a message, or of a tool's result; empty if the text is not in such tags."""
    found = _WRAPPED.fullmatch(text)
    body = found[3] if found is not None else text
    result = _RESULT.search(body)
    if result is not None:
        return result[2]
    return body.replace(f"{QUOTES}\n", "", 1) if found is not None else ""
