"""A mapping of which only what is in use is in memory; all else rests in rows, one for each key. Pure.

The mapping cannot see whether a value that it has handed out was changed. So whatever was asked for by its key since
the last save counts as changed, stays in memory until it is saved, and is then written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

V = TypeVar("V")

Question = Literal["stream", "parent", "unknown", "turn", "directory", "open in", "host", "boot"]


class Found(NamedTuple):
    """What a session can be found by, wherever it rests. Without a value, a text is empty."""

    stream: str
    parent: str
    unknown: bool
    """True if its parent is unknown."""
    turn: bool
    """True if a turn is open."""
    ended: bool
    directory: str
    host: str
    boots: tuple[str, ...]
    messages: tuple[str, ...]


ANSWERS: Final[dict[Question, Callable[[Found, str], bool]]] = {
    "stream": lambda found, value: found.stream == value,
    "parent": lambda found, value: found.parent == value,
    "unknown": lambda found, _: found.unknown,
    "turn": lambda found, _: found.turn,
    "directory": lambda found, value: found.directory == value,
    "open in": lambda found, value: found.directory == value and not found.host and not found.ended,
    "host": lambda found, value: found.host == value and not found.ended,
    "boot": lambda found, value: value in found.boots and not found.ended,
}
"""How each question is answered for one session."""


class Row(NamedTuple):
    """A value as bytes, and what it can be found by."""

    found: Found
    body: bytes


Changes = dict[str, "Row | None"]
"""New rows by their keys; ``None`` for a row to remove."""


class Rows(Protocol):
    """Where values rest. Rows keep the order in which their keys were first put."""

    def get(self, key: str) -> bytes | None: ...

    def keys(self) -> list[str]: ...

    def having(self, question: Question, value: str) -> list[str]:
        """The keys of the rows for which ``ANSWERS`` says yes."""

    def with_message(self, first: str, end: str) -> list[str]:
        """The keys of the rows with a message from ``first`` on and below ``end``."""

    def damaged(self) -> Exception:
        """The error to raise for a body that cannot be read. The map is not used after it."""


class LazyMap(MutableMapping[str, V]):
    """Values by their keys, each read from its row when it is first asked for.

    ``dump`` makes the body of a value's row, ``load`` the value of a body (``ValueError`` if it cannot), and
    ``found_by`` what a value can be found by. Without ``rows``, everything is in memory.

    Raises the errors of the rows.
    """

    def __init__(
        self,
        dump: Callable[[V], bytes],
        load: Callable[[bytes], V],
        found_by: Callable[[V], Found],
        rows: Rows | None = None,
    ) -> None:
        self._dump, self._load, self._found_by, self._rows = dump, load, found_by, rows
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
            found = self._resting(key)
            if found is None:
                return None
            self._here[key] = found
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
        return found if found is not None else self._resting(key)

    def _resting(self, key: str) -> V | None:
        body = self._body(key)
        if body is None or self._rows is None:
            return None
        try:
            return self._load(body)
        except ValueError:
            raise self._rows.damaged() from None

    def _body(self, key: str) -> bytes | None:
        return self._rows.get(key) if self._rows is not None and key and key not in self._gone else None

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
        return key in self._here or (isinstance(key, str) and self._body(key) is not None)

    def __iter__(self) -> Iterator[str]:
        """All keys. Takes long if there are many rows."""
        stored = self._rows.keys() if self._rows is not None else []
        yield from (key for key in stored if key not in self._gone)
        known = set(stored)
        yield from [key for key in self._here if key not in known]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def having(self, question: Question, *values: str) -> list[str]:
        """The keys of all values for which ``ANSWERS`` says yes for one of ``values``; give none to a question that
        needs none."""
        answer, wanted = ANSWERS[question], values or ("",)
        founds = [(key, self._found_by(value)) for key, value in self._here.items()]
        here = [key for key, found in founds if any(answer(found, each) for each in wanted)]
        rows = self._rows
        return here + self._absent(rows.having(question, each) for each in wanted if rows is not None)

    def with_message(self, first: str, end: str) -> list[str]:
        """The keys of all values with a message from ``first`` on and below ``end``."""
        here = [
            key
            for key, value in self._here.items()
            if any(first <= message < end for message in self._found_by(value).messages)
        ]
        return here + self._absent([self._rows.with_message(first, end)] if self._rows is not None else [])

    def _absent(self, stored: Iterable[list[str]]) -> list[str]:
        found = dict.fromkeys(key for keys in stored for key in keys)
        return [key for key in found if key not in self._here and key not in self._gone]

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
        return Row(self._found_by(value), self._dump(value)) if value is not None else None

    def saved(self, rows: Rows, most: int) -> None:
        """Note that ``rows`` has what ``changes`` returned last, and all that was saved before. Keep at most ``most``
        values in memory, and those that were asked for in the meantime."""
        self._rows = rows
        self._gone -= self._saving.keys() - self._touched.keys()
        self._saving = {}
        if len(self._here) > most:
            resting = [key for key in self._here if key not in self._touched]
            for key in resting[: len(self._here) - most]:
                del self._here[key]
