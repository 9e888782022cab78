"""Lets a fold go back: remembers how what a fold changes was at each mark. Pure.

What a fold changes must be a ``Kept`` object, ``Items`` or a ``Map``. While no journal is open, they cost almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, Final, Self, TypeVar

K = TypeVar("K")
V = TypeVar("V")

SMALL: Final = 16
"""A ``Map`` with at most this many keys is remembered whole; of a larger one, only what changes."""

_open: Journal | None = None


class Journal:
    """Marks, and for each mark what it takes to go back to it. Changes count while the journal is open (``with``)."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, list[Callable[[], object]]]] = []
        self._seen: set[int] = set()

    def __enter__(self) -> Self:
        global _open
        _open = self
        return self

    def __exit__(self, *about: object) -> None:
        global _open
        _open = None

    def mark(self, number: int) -> None:
        """Remember how everything is now, as ``number``."""
        self._marks.append((number, []))
        # New objects of the last interval may have been freed, so that their ids mean nothing any more.
        self._seen.clear()

    def back(self) -> int:
        """Make everything as it was at the last mark, and forget the mark. Returns its number."""
        number, undo = self._marks.pop()
        for each in reversed(undo):
            each()
        self._seen.clear()
        return number

    def first(self, thing: object) -> bool:
        """True for the first change of a thing since the mark."""
        if id(thing) in self._seen:
            return False
        self._seen.add(id(thing))
        return True

    def undo(self, how: Callable[[], object]) -> None:
        """Remember how to undo a change that is about to happen."""
        self._marks[-1][1].append(how)


class Kept:
    """An object whose attributes are remembered. A subclass is a data class with slots."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if _open is not None and _open.first(self):
            names = self._names()
            # A new object has no attributes yet, and nobody goes back to it.
            if all(hasattr(self, each) for each in names):
                _open.undo(partial(self._become, [getattr(self, each) for each in names]))
        object.__setattr__(self, name, value)

    def _become(self, before: list[Any]) -> None:
        for name, value in zip(self._names(), before, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        kind: Any = cls
        if cls not in _NAMES:
            _NAMES[cls] = tuple(each.name for each in fields(kind))
        return _NAMES[cls]


_NAMES: dict[type, tuple[str, ...]] = {}


class Items(list[V]):
    """A list to which a fold only appends."""

    __slots__ = ()

    def __init__(self, items: Iterable[V] = ()) -> None:
        super().__init__(items)
        if _open is not None:
            _open.first(self)  # nobody goes back to a new list

    def append(self, item: V) -> None:
        """Append, and remember the length before."""
        if _open is not None and _open.first(self):
            _open.undo(partial(list.__delitem__, self, slice(len(self), None)))
        super().append(item)


class Map(dict[K, V]):
    """A dictionary in which a fold sets, and from which it removes."""

    __slots__ = ()

    def __init__(self, values: Mapping[K, V] | None = None) -> None:
        super().__init__(values or {})
        if _open is not None:
            _open.first(self)  # nobody goes back to a new dictionary

    def _whole(self) -> None:
        assert _open is not None
        _open.undo(partial(self._become, dict(self)))

    def _become(self, before: dict[K, V]) -> None:
        super().clear()
        self.update(before)

    def __setitem__(self, key: K, value: V) -> None:
        if _open is not None:
            is_first = _open.first(self)
            if is_first and len(self) <= SMALL:
                self._whole()
            else:
                if is_first:
                    _open.undo(partial(self._cut, len(self)))
                if len(self) > SMALL and key in self:
                    _open.undo(partial(dict.__setitem__, self, key, self[key]))
        super().__setitem__(key, value)

    def _cut(self, length: int) -> None:
        while len(self) > length:
            self.popitem()

    def setdefault(self, key: K, default: V) -> V:
        """As a dictionary's."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, default: Any = None) -> Any:
        """As a dictionary's, with ``None`` for a missing key."""
        if _open is not None and key in self:
            _open.first(self)
            self._whole()
        return super().pop(key, default)

    def clear(self) -> None:
        """As a dictionary's."""
        if _open is not None and self:
            _open.first(self)
            self._whole()
        super().clear()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        for key, value in dict(other).items():
            self[key] = value
        return self
