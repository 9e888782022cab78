"""A mapping of which only what is in use is in memory; all else is in rows, one for each key. Pure.

The mapping cannot see whether a value that it has handed out was changed. So whatever was asked for by its key since
the last save counts as changed, stays in memory until it is saved, and is then written once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from typing import NamedTuple, Protocol, TypeVar

V = TypeVar("V")


class Row(NamedTuple):
    """A value as bytes, and the marks by which it can be found."""

    body: bytes
    marks: tuple[str, ...] = ()


Changes = dict[str, "Row | None"]
"""New rows by their keys; ``None`` for a row to remove."""


class Rows(Protocol):
    """Where values rest. Rows keep the order in which their keys were first put."""

    def get(self, key: str) -> bytes | None: ...

    def having(self, mark: str) -> list[str]:
        """The keys of all rows with this mark."""

    def between(self, first: str, end: str) -> list[str]:
        """The keys of all rows with a mark from ``first`` on and below ``end``."""

    def bodies(self) -> dict[str, bytes]:
        """Every body, in the order in which the keys were first put."""

    def keys(self) -> list[str]: ...


class MemoryRows:
    """Rows in memory."""

    def __init__(self, rows: Mapping[str, Row | None] | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self._marked: dict[str, dict[str, None]] = {}
        self.put(rows or {})

    def get(self, key: str) -> bytes | None:
        row = self.rows.get(key)
        return row.body if row is not None else None

    def having(self, mark: str) -> list[str]:
        return list(self._marked.get(mark, ()))

    def between(self, first: str, end: str) -> list[str]:
        return [key for key, row in self.rows.items() if _has(row.marks, first, end)]

    def bodies(self) -> dict[str, bytes]:
        return {key: row.body for key, row in self.rows.items()}

    def keys(self) -> list[str]:
        return list(self.rows)

    def put(self, changes: Mapping[str, Row | None]) -> None:
        for key, row in changes.items():
            for mark in self.rows[key].marks if key in self.rows else ():
                self._marked[mark].pop(key, None)
            if row is None:
                self.rows.pop(key, None)
                continue
            self.rows[key] = row
            for mark in row.marks:
                self._marked.setdefault(mark, {})[key] = None


class LazyMap(MutableMapping[str, V]):
    """Values by their keys, each read from its row when it is first asked for.

    ``dump`` makes the body of a value's row, ``load`` the value of a body, and ``marks`` gives a value's marks.

    Raises the errors of ``load``, and of the rows.
    """

    def __init__(
        self,
        dump: Callable[[V], bytes],
        load: Callable[[bytes], V],
        marks: Callable[[V], Iterable[str]],
        rows: Rows | None = None,
    ) -> None:
        self._dump, self._load, self._marks = dump, load, marks
        self.rows: Rows = rows if rows is not None else MemoryRows()
        """Where the values rest. Other rows may take their place if they have the same."""
        self._here: dict[str, V] = {}
        """The values in memory, in the order of the saves before which they were last asked for."""
        self._touched: dict[str, None] = {}
        """The keys of values that were set, removed or handed out since the last call of ``changes``."""
        self._saving: dict[str, None] = {}
        """The keys that the last call of ``changes`` returned, until they are saved."""
        self._gone: set[str] = set()
        """Keys that were removed, but whose rows may still exist."""

    def get(self, key: str) -> V | None:  # type: ignore[override]
        # This runs several times for every hook.
        found = self._here.get(key)
        if found is None:
            body = self._resting(key)
            if body is None:
                return None
            found = self._here[key] = self._load(body)
        self._touched[key] = None
        return found

    def __getitem__(self, key: str) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def look(self, key: str) -> V | None:
        """A value that the caller only reads now. If it rests, it goes on resting."""
        found = self._here.get(key)
        if found is None and (body := self._resting(key)) is not None:
            return self._load(body)
        return found

    def _resting(self, key: str) -> bytes | None:
        return self.rows.get(key) if key and key not in self._gone else None

    def __setitem__(self, key: str, value: V) -> None:
        self._here[key] = value
        self._touched[key] = None
        self._gone.discard(key)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._here.pop(key, None)
        self._touched[key] = None
        self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._here or (isinstance(key, str) and self._resting(key) is not None)

    def items(self) -> ItemsView[str, V]:
        return self._all().items()

    def values(self) -> ValuesView[V]:
        return self._all().values()

    def _all(self) -> dict[str, V]:
        """All values, which then stay in memory until the next save."""
        was_enabled = gc.isenabled()
        gc.disable()  # nothing here is garbage, and to look for some would take as long as to read
        try:
            here = self._here
            resting = {key: body for key, body in self.rows.bodies().items() if key not in self._gone}
            stored = {key: here.get(key) or self._load(body) for key, body in resting.items()}
            self._here = stored | here
        finally:
            if was_enabled:
                gc.enable()
        return self._here

    def __iter__(self) -> Iterator[str]:
        """All keys. Takes long if there are many rows."""
        stored = self.rows.keys()
        yield from (key for key in stored if key not in self._gone)
        known = set(stored)
        yield from [key for key in self._here if key not in known]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def having(self, *marks: str) -> list[str]:
        """The keys of all values with one of these marks."""
        wanted = set(marks)
        here = [key for key, value in self._here.items() if not wanted.isdisjoint(self._marks(value))]
        return here + self._absent(key for mark in marks for key in self.rows.having(mark))

    def between(self, first: str, end: str) -> list[str]:
        """The keys of all values with a mark from ``first`` on and below ``end``."""
        here = [key for key, value in self._here.items() if _has(self._marks(value), first, end)]
        return here + self._absent(self.rows.between(first, end))

    def _absent(self, stored: Iterable[str]) -> list[str]:
        return [key for key in dict.fromkeys(stored) if key not in self._here and key not in self._gone]

    def changes(self) -> Changes:
        """The rows of what may have changed since the last save. Call ``saved`` once these rows are stored."""
        for key in self._touched:
            if key in self._here:
                self._here[key] = self._here.pop(key)
        self._saving |= self._touched
        self._touched = {}
        return {key: self._row(key) for key in self._saving}

    def _row(self, key: str) -> Row | None:
        value = self._here.get(key)
        return Row(self._dump(value), tuple(self._marks(value))) if value is not None else None

    def saved(self, rows: Rows, most: int) -> None:
        """Note that ``rows`` has what ``changes`` returned last, and all that was saved before. Keep at most ``most``
        values in memory, and those that were asked for in the meantime."""
        self.rows = rows
        self._gone -= self._saving.keys() - self._touched.keys()
        self._saving = {}
        if len(self._here) > most:
            resting = [key for key in self._here if key not in self._touched]
            for key in resting[: len(self._here) - most]:
                del self._here[key]


def _has(marks: Iterable[str], first: str, end: str) -> bool:
    return any(first <= mark < end for mark in marks)
