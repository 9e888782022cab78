"""Lets a fold go back: remembers how what a fold changes was at each mark. Pure.

What a fold changes must be a ``Kept`` object, ``Items`` or a ``Map``. While no journal is open, they cost almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import Any, Final, Self, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

SMALL: Final = 16
"""A ``Map`` with at most this many keys is remembered whole; of a larger one, only what changes."""

_open: Journal | None = None


class Journal:
    """Marks, and for each mark what it takes to go back to it. Changes count while the journal is open (``with``)."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, list[tuple[Any, ...]]]] = []
        self.seen: set[int] = set()
        """The ids of what has changed since the mark."""

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
        self.seen.clear()

    def back(self) -> int:
        """Make everything as it was at the last mark, and forget the mark. Returns its number."""
        number, undo = self._marks.pop()
        for how, *given in reversed(undo):
            how(*given)
        self.seen.clear()
        return number

    def first(self, thing: object) -> bool:
        """True for the first change of a thing since the mark."""
        if id(thing) in self.seen:
            return False
        self.seen.add(id(thing))
        return True

    def undo(self, how: Callable[..., object], *given: object) -> None:
        """Remember how to undo a change that is about to happen."""
        # A tuple, because a long session has a million of them.
        self._marks[-1][1].append((how, *given))


class Kept:
    """An object whose attributes are remembered. A subclass is a data class with slots."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        # This runs for each change of a fold, so it is written for speed.
        if _open is not None and id(self) not in _open.seen:
            _open.seen.add(id(self))
            names = self._names()
            # A new object has no attributes yet, and nobody goes back to it.
            if hasattr(self, names[-1]):
                _open.undo(_become, self, *[getattr(self, each) for each in names])
        _set(self, name, value)

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        kind: Any = cls
        if cls not in _NAMES:
            _NAMES[cls] = tuple(each.name for each in fields(kind))
        return _NAMES[cls]


_NAMES: dict[type, tuple[str, ...]] = {}
_set = object.__setattr__


def _become(kept: Kept, *before: object) -> None:
    for name, value in zip(kept._names(), before, strict=True):
        _set(kept, name, value)


class Items(list[V]):
    """A list to which a fold only appends."""

    __slots__ = ("_begin",)

    def __init__(self, items: Iterable[V] = ()) -> None:
        super().__init__(items)
        self._begin = 0
        """How long the list was at the mark."""
        if _open is not None:
            _open.first(self)  # nobody goes back to a new list

    def append(self, item: V) -> None:
        if _open is not None and _open.first(self):
            self._remember(_open)
        super().append(item)

    def _remember(self, journal: Journal) -> None:
        self._begin = len(self)
        journal.undo(_cut_list, self, self._begin)


def _cut_list(items: list[Any], length: int) -> None:
    del items[length:]


class Lazy(Items[V]):
    """``Items`` of which some are made when they are read, so that a long session takes little memory: such an item is
    an ``int`` or ``bytes`` in the list, from which ``make`` makes it."""

    __slots__ = ("make",)

    def __init__(self, items: Iterable[V] = (), make: Callable[[Any], V] | None = None) -> None:
        super().__init__(items)
        self.make = make

    def add(self, item: V | int | bytes) -> None:
        """Append an item, or what makes it."""
        self.append(cast("V", item))

    def put(self, index: int, key: bytes) -> None:
        """Put what makes an item in the place of the item, which nobody changes any more."""
        if _open is not None:
            if _open.first(self):
                self._remember(_open)
            if index < self._begin:
                _open.undo(list.__setitem__, self, index, super().__getitem__(index))
        super().__setitem__(index, cast("V", key))

    def __iter__(self) -> Iterator[V]:
        return map(self._made, super().__iter__())

    def __reversed__(self) -> Iterator[V]:
        return map(self._made, super().__reversed__())

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return [self._made(each) for each in found] if isinstance(index, slice) else self._made(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lazy) and list(self) == list(other)

    def without(self, items: Iterable[Any]) -> Lazy[V]:
        """The same list without some of its objects."""
        gone = {id(each) for each in items}
        return Lazy((each for each in super().__iter__() if id(each) not in gone), self.make)

    def last(self, count: int) -> Lazy[V]:
        """The last items only."""
        return Lazy(islice(super().__iter__(), max(len(self) - count, 0), None), self.make)

    def _made(self, item: V) -> V:
        return self.make(item) if self.make is not None and type(item) in (int, bytes) else item


class Map(dict[K, V]):
    """A dictionary in which a fold sets, and from which it removes."""

    __slots__ = ("_is_whole",)

    def __init__(self, values: Mapping[K, V] | None = None) -> None:
        super().__init__(values or {})
        self._is_whole = True
        """Whether it is remembered whole how everything was at the mark; nobody goes back to a new dictionary."""
        if _open is not None:
            _open.first(self)

    def _changes(self, journal: Journal, *, whole: bool = False) -> None:
        """Remember how everything was, before a change that only sets a key, or that needs the ``whole``."""
        if journal.first(self):
            self._is_whole = whole = whole or len(self) <= SMALL
            if not whole:
                journal.undo(_cut_map, self, len(self))
        elif self._is_whole:
            return
        if whole:
            self._is_whole = True
            journal.undo(_refill, self, dict(self))

    def __setitem__(self, key: K, value: V) -> None:
        if _open is not None:
            if key in self and self[key] is value:
                return
            self._changes(_open)
            if not self._is_whole and key in self:
                _open.undo(dict.__setitem__, self, key, self[key])
        super().__setitem__(key, value)

    def setdefault(self, key: K, default: V) -> V:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, default: Any = None) -> Any:
        """As a dictionary's, with ``None`` for a missing key."""
        if _open is not None and key in self:
            self._changes(_open, whole=True)
        return super().pop(key, default)

    def clear(self) -> None:
        if _open is not None and self:
            self._changes(_open, whole=True)
        super().clear()

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        for key, value in dict(other).items():
            self[key] = value
        return self


def _refill(changed: dict[Any, Any], before: dict[Any, Any]) -> None:
    dict.clear(changed)
    dict.update(changed, before)


def _cut_map(changed: dict[Any, Any], length: int) -> None:
    while len(changed) > length:
        changed.popitem()
