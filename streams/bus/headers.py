"""The headers of a message on a bus: unambiguous names and values. Pure.

On the wire a header is a line ``name: value``. So a name holds only letters, digits,
``-`` and ``_``, and a value only printable ASCII: nothing can end a line or
begin another. Free text is escaped before it becomes a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

MESSAGE_ID: Final = "Nats-Msg-Id"
"""The header that identifies a message: of several with the same value, a bus stores one."""

MAX_VALUE: Final = 512
"""Maximum length of a header value, in characters."""

MAX_HEADERS: Final = 40

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")


class HeaderError(ValueError):
    """A header cannot be sent: ``name`` says which one (empty: all together), ``reason`` says why. Never quotes the
    value."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"header {name[:80]!a}: {reason}" if name else reason)
        self.name, self.reason = name, reason


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Copy ``headers`` if each can be sent unchanged.

    Raises:
        HeaderError: a name or value could end or forge a header, is empty or
            too long, or a name differs from another only by case.
    """
    if len(headers) > MAX_HEADERS:
        raise HeaderError("", f"there are {len(headers)} headers; the limit is {MAX_HEADERS}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not isinstance(name, str) or not _is_name(name):
            raise HeaderError(
                str(name), "a header name must be 1 to 64 letters, digits, `-` or `_`, and begin with a letter"
            )
        if name.lower() in seen:
            raise HeaderError(name, "another header has the same name and differs only in upper and lower case")
        seen.add(name.lower())
        if not isinstance(value, str) or not is_header_value(value):
            raise HeaderError(
                name,
                "a value must be non-empty printable ASCII without spaces at either end; encode other characters first",
            )
        if len(value) > MAX_VALUE:
            raise HeaderError(name, f"its value is longer than {MAX_VALUE} characters")
    return dict(headers)


@lru_cache(maxsize=512)
def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_header_value(value: str) -> bool:
    """True if ``value`` is non-empty printable ASCII without spaces at either end (clients strip such spaces)."""
    return _VALUE.fullmatch(value) is not None
