"""Ids for messages and parts that OpenCode 1 accepts only once, so sending the same message again changes nothing.
Pure.

OpenCode's ids ascend: after the prefix come 12 hexadecimal digits, the lowest 48 bits of the time in ms * 4096 + a
counter, and then 14 characters. In a session's id the digits are inverted, so that new sessions come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

_DIGITS: Final = 12
_RANGE: Final = 16**_DIGITS
_OF_MESSAGE: Final = re.compile(r"msg_([0-9a-f]{12})")
_OF_SESSION: Final = re.compile(r"ses_([0-9a-f]{12})")


def message_id(session: str, messages: Iterable[str], key: str) -> str | None:
    """The id for the message that carries a key. If that message is already one of ``messages``, the result is its id;
    otherwise, the result is the next id after the ids of all ``messages``.

    So the id stays the same until the session gets another new message. ``None`` if the ids do not have OpenCode's
    form.
    """
    known, tail = list(messages), _tail(key)
    found = next((each for each in known if _OF_MESSAGE.match(each) and each.endswith(tail)), None)
    if found is not None:
        return found
    times = [int(match[1], 16) for match in map(_OF_MESSAGE.match, known) if match]
    begun = _OF_SESSION.match(session)
    if not times and begun is not None and not known:
        times = [_RANGE - 1 - int(begun[1], 16)]
    return f"msg_{(max(times) + 1) % _RANGE:0{_DIGITS}x}{tail}" if times else None


def part_ids(message: str, keys: Sequence[str]) -> list[str]:
    first = int(message[4 : 4 + _DIGITS], 16)
    return [f"prt_{(first + count) % _RANGE:0{_DIGITS}x}{_tail(key)}" for count, key in enumerate(keys)]


def _tail(key: str) -> str:
    return sha256(key.encode()).hexdigest()[:14]
