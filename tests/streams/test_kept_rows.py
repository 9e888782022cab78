"""A snapshot in rows, and a mapping over it: what rests in rows is the same as if all were in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import ForeignStore
from streams.rows import LazyMap, MemoryRows, Row
from streams.stores.sqlite.kept import KeptRows

KEYS = ("a", "b", "é\ud800", "a" * 40)
VALUES = ("red", "green", "red green", "")


def colours(value: list[str]) -> list[str]:
    return value[0].split()


def lazy(rows: KeptRows | MemoryRows) -> LazyMap[list[str]]:
    """A mapping of lists, which can be changed in place; their words are their marks."""
    return LazyMap(lambda value: value[0].encode(), lambda body: [body.decode()], colours, rows)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("set", "change")), st.sampled_from(KEYS), st.sampled_from(VALUES)),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.just("")),
        st.tuples(st.sampled_from(("save", "fail", "restart", "save late", "take in")), st.just(""), st.just("")),
    ),
    max_size=25,
)


class World:
    """A mapping over rows in a file, beside a dictionary that should always equal it."""

    def __init__(self, store: Path) -> None:
        self.store, self.plain = store, dict[str, list[str]]()
        self.saved = dict[str, str]()
        self.rows = KeptRows(store, "test", 1, 10)
        self.map = lazy(self.rows)

    def step(self, what: str, key: str, value: str) -> None:
        if what == "set":
            self.map[key], self.plain[key] = [value], [value]
        elif what == "change" and key in self.plain:
            self.map[key][0] = self.plain[key][0] = value
        elif what == "delete" and key in self.plain:
            del self.map[key], self.plain[key]
        elif what == "save":
            self.save(lambda: None)
        elif what == "save late":  # something changes while a thread saves
            self.save(lambda: self.step("change", "a", "green"))
        elif what == "fail":
            self.map.changes()
        elif what == "take in":  # as for a removal
            if self.map.rows is self.rows:
                self.map.rows = MemoryRows(self.rows.all())
            self.rows.remove()
            self.rows = KeptRows(self.store, "test", 1, 10)
            self.saved = {}
        elif what == "restart":
            self.rows.close()
            self.rows = KeptRows(self.store, "test", 1, 10)
            self.map = lazy(self.rows)
            self.plain = {key: [value] for key, value in self.saved.items()}

    def save(self, meanwhile: Callable[[], None]) -> None:
        changes = self.map.changes()
        if isinstance(self.map.rows, MemoryRows):
            changes = {**self.map.rows.rows, **changes}
        self.saved = {key: value[0] for key, value in self.plain.items()}
        meanwhile()
        self.rows.put(5, b"rest", changes)
        self.map.saved(self.rows, 1)

    def check(self) -> None:
        assert sorted(self.map) == sorted(self.plain) and len(self.map) == len(self.plain)
        for key in KEYS:
            assert (key in self.map) == (key in self.plain)
            assert self.map.look(key) == self.plain.get(key)
        for mark in ("red", "green", "blue"):
            found = [key for key, value in self.plain.items() if mark in colours(value)]
            assert sorted(self.map.having(mark)) == sorted(found)
            assert sorted(self.map.between(mark[:2], mark + "z")) == sorted(found)
        assert sorted(self.map.items()) == sorted(self.plain.items())


@given(STEPS)
def test_a_mapping_whose_values_rest_equals_a_dictionary(steps: list[tuple[str, str, str]]) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory))
        for step in steps:
            world.step(*step)
            world.check()
        for key, value in world.plain.items():
            assert world.map[key] == value
        world.save(lambda: None)
        world.rows.close()
        found = KeptRows(world.store, "test", 1, 10)
        assert found.snapshot is not None and found.snapshot.state == b"rest"
        assert found.bodies() == {key: value[0].encode() for key, value in world.plain.items()}
        found.close()


def filled(store: Path) -> KeptRows:
    rows = KeptRows(store, "test", 1, 10)
    rows.put(5, b"rest", {f"key {number}": Row(b"%d" % number * 300, ("mark",)) for number in range(40)})
    return rows


def test_what_was_saved_of_another_version_or_beyond_the_head_is_nothing(tmp_path: Path) -> None:
    filled(tmp_path).close()
    for version, head in ((2, 10), (1, 4)):
        rows = KeptRows(tmp_path, "test", version, head)
        assert rows.snapshot is None and rows.keys() == []
        rows.close()
        filled(tmp_path).close()


def test_a_damaged_row_is_told_and_all_rows_are_made_anew(tmp_path: Path) -> None:
    rows = filled(tmp_path)
    with closing(sqlite3.connect(tmp_path / "hints" / "test.db")) as connection, connection:
        connection.execute("UPDATE rows SET body = x'00' WHERE key = ?", [b"key 7"])
    assert rows.get("key 8") == b"8" * 300
    with pytest.raises(ForeignStore):
        rows.get("key 7")
    rows.close()
    again = KeptRows(tmp_path, "test", 1, 10)
    assert again.snapshot is None and again.keys() == []
    again.close()


def test_no_damage_of_the_file_gives_another_value(tmp_path: Path) -> None:
    filled(tmp_path).close()
    path = tmp_path / "hints" / "test.db"
    whole = path.read_bytes()
    for at in [*range(0, 120), *range(120, len(whole), 397)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        rows = KeptRows(tmp_path, "test", 1, 10)
        assert rows.snapshot is None or rows.snapshot.state == b"rest"
        with suppress(ForeignStore):
            for key, body in rows.bodies().items():
                assert body == key.removeprefix("key ").encode() * 300
            assert rows.get("key 7") in ((b"7" * 300, None) if rows.snapshot is None else (b"7" * 300,))
        rows.close()
        for left in path.parent.iterdir():
            left.unlink()
