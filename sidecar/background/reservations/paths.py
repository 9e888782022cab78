"""Paths of a project as reservations name them, and whether two of them can mean the same file. Pure.

A path is relative to the project's root, with ``/`` between its segments. ``*`` and ``?`` stand for characters of one
segment, and ``**`` for any number of segments, also none. So ``src/**`` is the directory ``src`` with all below it, and
``**`` the whole project. Brackets stand for themselves, because they are common in names of files. Case does not count:
a clone may be on a file system that ignores it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from streams.errors import CodedError

T = TypeVar("T")

MAX_PATH: Final = 300
"""Maximum length of a path, in characters."""

BELOW: Final = "**"

_ALTERNATIVES: Final = re.compile(r"\{[^{}]*,[^{}]*\}")


class BadPath(CodedError):
    code: ClassVar[str] = "bad-path"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path[:80]!a} cannot be reserved: {reason}")


def checked(path: str) -> str:
    """``path``, if it is written as described above.

    Raises:
        BadPath: it is not.
    """
    if not path or len(path) > MAX_PATH:
        raise BadPath(path, f"a path has 1 to {MAX_PATH} characters")
    if not path.isprintable():
        raise BadPath(path, "it has characters that cannot be shown")
    if {"", ".", ".."} & {*path.split("/")}:
        raise BadPath(path, "it must be relative to the project's root, without `.` and `..`")
    if _ALTERNATIVES.search(path):
        raise BadPath(path, "name each path by itself, without {a,b}")
    return path


def shown(path: str) -> str:
    """A path as a person writes it: ``src/`` for all below ``src``."""
    return path if path == BELOW else path.removesuffix(BELOW)


def folded(path: str) -> tuple[str, ...]:
    """The segments of a path, in the form in which they are compared."""
    return tuple(unicodedata.normalize("NFC", path).lower().split("/"))


def overlap(one: str, two: str) -> bool:
    """Whether some file can be meant by both paths."""
    return meet(folded(one), folded(two), BELOW, _alike)


def covers(whole: str, part: str) -> bool:
    """Whether ``part`` is ``whole``, or plainly below it."""
    outer, inner = folded(whole), folded(part)
    return outer == inner or (outer[-1] == BELOW and outer[:-1] == inner[: len(outer) - 1])


def _alike(one: str, two: str) -> bool:
    """Whether some name matches both segments."""
    return one == two or meet(one, two, "*", lambda a, b: a == b or "?" in (a, b))


def meet(one: Sequence[Any], two: Sequence[Any], star: str, alike: Callable[[Any, Any], bool]) -> bool:
    """Whether some sequence matches two patterns, in which ``star`` stands for any number of elements.

    If both have a star, only what is before the first and behind the last star counts: what is between can be put one
    after the other, where the other pattern has a star. The plugin has the same function (``reserved.js``).
    """
    if star not in one:
        one, two = two, one
    parts = _split(one, star)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return len(one) == len(two) and _begins(one, two, alike)
    if star in two:
        others = _split(two, star)
        return _begins(first, others[0], alike) and _begins(last[::-1], others[-1][::-1], alike)
    if len(two) < len(first) + len(last) or not _begins(first, two, alike) or not _begins(last[::-1], two[::-1], alike):
        return False
    at, end = len(first), len(two) - len(last)
    for part in parts[1:-1]:
        while at + len(part) <= end and not _begins(part, two[at:], alike):
            at += 1
        at += len(part)
    return at <= end


def _begins(one: Sequence[T], two: Sequence[T], alike: Callable[[T, T], bool]) -> bool:
    """Whether the elements are alike, as far as both sequences go."""
    return all(map(alike, one, two))


def _split(pattern: Sequence[T], star: str) -> list[Sequence[T]]:
    """The parts between the stars; one more than there are stars."""
    parts, start = [], 0
    for at, element in enumerate(pattern):
        if element == star:
            parts.append(pattern[start:at])
            start = at + 1
    return [*parts, pattern[start:]]
