"""Reads and writes JSON that orjson refuses, and defines the errors of reading.

JavaScript legally writes values that JSON readers refuse. A frame with such values must not be rejected, because the
shim would resend it forever. So the frame is repaired, and the repairs are counted:

* NaN, infinities and numbers beyond a double become null (in a message up to ``_TREE_CHARS``),
* integers beyond 64 bits become doubles, as orjson reads them,
* lone surrogates become U+FFFD,
* values nested deeper than ``MAX_DEPTH`` become ``{"$deep": true}``.

::

    FrameError              the message is not a frame; the text never contains payload
    └── UnknownFrame        a JSON object whose type this protocol does not have
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

import orjson

MAX_DEPTH: Final = 200
"""Depth to which a message is cut if it nests deeper than the readers allow (1024 levels); orjson writes up to 254
levels."""


class FrameError(ValueError):
    """A message is not a frame of this protocol. ``reason`` is short and never contains payload."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnknownFrame(FrameError):
    """A JSON object whose ``type`` this protocol does not have, perhaps from a newer peer."""


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"

# Group 1 is the text before an escaped lone surrogate. Group 2 is the run of lone surrogates after that text, unless
# the text ends there or at a broken escape. The quantifiers are possessive, so the pattern never backtracks.
_LONE_ESCAPES = re.compile(
    rf"((?:[^\\]++|\\(?:[^u]|u(?![dD][89a-fA-F]))|{_HIGH}{_LOW})*+)(?:((?:{_HIGH}(?!{_LOW})|{_LOW})++)|.|\Z)",
    re.DOTALL,
)

# The pattern matches a string or a bracket. An unterminated string extends to the end of the message, because trying
# each of its quotes again would take quadratic time. The quantifiers are possessive, so the pattern never backtracks.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)

# The next three limits keep the event loop from pausing for more than about a second, whatever the message's size.

_CUT_TOKENS = 500_000
"""Maximum number of strings and brackets scanned to cut a deep message."""

_LONE_RUNS = 500_000
"""Maximum number of places with lone surrogates to repair."""

_TREE_CHARS = 1024 * 1024
"""Length of the longest message whose values are checked one by one, for example for NaN."""

_DEEP = '{"$deep":true}'


def read_leniently(message: str | bytes) -> tuple[Any, int]:
    """Return the value of a message that orjson refused, and how many repairs were needed.

    Raises:
        FrameError: the message is not UTF-8, is not JSON, or would take too long to repair.
    """
    try:
        text = message if isinstance(message, str) else bytes(message).decode()
    except UnicodeDecodeError:
        raise FrameError("not UTF-8") from None
    repairs = _Repairs()
    if len(text) > _TREE_CHARS:
        return repairs.large(text), repairs.count
    try:
        return repairs.tree(_loads(text)), repairs.count
    except RecursionError:
        value = _loads(repairs.cut(text))
        return repairs.tree(value), repairs.count


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise FrameError("not JSON") from None
    except ValueError:  # the text has an integer with more digits than Python converts
        try:
            return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= 20 else float(digits))
        except json.JSONDecodeError:  # the text also has other faults
            raise FrameError("not JSON") from None


def repair(value: Any) -> Any:
    return _Repairs().tree(value)


class _Repairs:
    def __init__(self) -> None:
        self.count = 0

    def large(self, text: str) -> Any:
        """Return the value of a large text. Repairs only the faults that JavaScript's own writer can leave.

        Raises:
            FrameError: the text has other faults, or too many faults.
        """
        text = _LONE_SURROGATE.sub("\ufffd", _LONE_ESCAPES.sub(self._replaced, text))
        try:
            return orjson.loads(text)
        except ValueError:
            text = self.cut(text)
        try:
            return orjson.loads(text)
        except ValueError:
            raise FrameError("not JSON, and too large to be repaired") from None

    def _replaced(self, match: re.Match[str]) -> str:
        before, lone = match.groups()
        if lone is None:
            return match[0]
        self.count += 1
        if self.count > _LONE_RUNS:
            raise FrameError("too many lone surrogates")
        return before + "\ufffd" * (len(lone) // 6)

    def tree(self, value: Any, depth: int = 0) -> Any:
        """Return ``value`` in a form that orjson accepts. ``MAX_DEPTH`` bounds the recursion."""
        if isinstance(value, str):
            if _LONE_SURROGATE.search(value) is None:
                return value
            self.count += 1
            return _LONE_SURROGATE.sub("\ufffd", value)
        if isinstance(value, (dict, list, tuple)):
            if depth > MAX_DEPTH:
                self.count += 1
                return {"$deep": True}
            if isinstance(value, dict):
                return {self.tree(str(key)): self.tree(entry, depth + 1) for key, entry in value.items()}
            # Do not recurse into integers of 64 bits, because a call for each of millions would stall the event loop.
            return [
                entry if type(entry) is int and -(2**63) <= entry < 2**63 else self.tree(entry, depth + 1)
                for entry in value
            ]
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            value = _as_float(value)  # orjson also reads such an integer as a float
        if isinstance(value, float) and not math.isfinite(value):
            self.count += 1
            return None
        return value

    def cut(self, text: str) -> str:
        """Return ``text`` with everything nested deeper than ``MAX_DEPTH`` replaced.

        Raises:
            FrameError: the message is too long to cut.
        """
        depth = start = 0
        pieces: list[str] = []
        for index, match in enumerate(_STRING_OR_BRACKET.finditer(text)):
            if index >= _CUT_TOKENS:
                raise FrameError("nested too deep")
            char = text[match.start()]
            if char in "[{":
                depth += 1
                if depth == MAX_DEPTH + 1:
                    pieces.append(text[start : match.start()])
            elif char in "]}":
                if depth == MAX_DEPTH + 1:
                    pieces.append(_DEEP)
                    self.count += 1
                    start = match.end()
                depth -= 1
        if depth <= MAX_DEPTH:
            pieces.append(text[start:])
        return "".join(pieces)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
