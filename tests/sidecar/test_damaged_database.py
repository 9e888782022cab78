"""A database that no writer takes, because its header, its head, its streams or its end is damaged.

A start is refused and changes nothing, hooks wait in the spool, reading commands print what can be read and name the
file. After a repair the hooks are recorded once: a backup put back, or what ``export`` could save, imported into a new
store.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar.bad_stores import snapshot
from tests.sidecar.cli.helpers import make_home, run, run_and_stop
from tests.sidecar.life import end_sidecars, logged, recorded, shims, status
from tests.sidecar.support import wait_for
from tests.streams.databases import garble

SESSIONS = ("chat", "task_child", "permission_child", "compaction_manual", "write_edit", "task_parallel")


def header(store: Path) -> None:
    with (store / "log.db").open("r+b") as file:
        file.write(bytes(100))


def head(store: Path) -> None:
    garble(store, "head")


def streams(store: Path) -> None:
    garble(store, "streams")
    garble(store, "sqlite_autoindex_streams_1")


def cut(store: Path) -> None:
    path = store / "log.db"
    os.truncate(path, path.stat().st_size * 3 // 4)


Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with sessions. Read-only."""
    return make_home(tmp_path_factory.mktemp("sound") / "home", *SESSIONS)


@pytest.mark.parametrize("damage", [head, cut])
def test_what_can_be_read_is_printed_and_comes_into_a_new_home(sound: Path, tmp_path: Path, damage: Damage) -> None:
    home, file, other = tmp_path / "home", tmp_path / "first.jsonl", tmp_path / "other"
    shutil.copytree(sound, home)
    whole = run(sound, "query", "--json").objects()
    first = whole[0]["event"]["stream_id"]
    damage(home / "store")
    before = snapshot(home / "store")
    done = run(home, "query", "--json")
    found = done.objects()
    assert done.code == 1 and 0 < len(found) <= len(whole) and found == whole[: len(found)]
    for words in (["streams"], ["log", first], ["read", first], ["state", first], ["export", first, "-o", str(file)]):
        done = run(home, *words)
        assert done.code == 1 and re.search(r"log\.db.*\[log-damaged\]", done.err), (words, done)
        assert done.out or words[0] == "export", (words, done)
    assert snapshot(home / "store") == before
    assert run_and_stop(other, "import", str(file)).code == 0
    of_first = [each["event"] for each in found if each["event"]["stream_id"] == first]
    came = [each["event"] for each in run(other, "query", "--stream", first, "--json").objects()]
    assert [each["idempotency_key"] for each in came] == [each["idempotency_key"] for each in of_first]


@pytest.mark.parametrize("lost", ["streams", "sqlite_autoindex_streams_1", "records_by_stream"])
def test_an_export_needs_no_index_and_no_other_table(sound: Path, tmp_path: Path, lost: str) -> None:
    home = tmp_path / "home"
    shutil.copytree(sound, home)
    first = run(sound, "query", "--json").objects()[0]["event"]["stream_id"]
    whole = run(sound, "export", first).objects()
    garble(home / "store", lost)
    done = run(home, "export", first)
    assert done.code == 1 and re.search(r"log\.db.*\[log-damaged\]", done.err), done
    assert done.objects()[1:-1] == whole[1:-1]


def is_told(home: Home) -> bool:
    found = status(home)
    return "log.db" in str(found["problems"]) and "spool" in str([*found["problems"], *found["notes"]])


def put_back(home: Home, backup: Path) -> None:
    shutil.rmtree(home.store_path)
    shutil.copytree(backup, home.store_path)


def imported(home: Home, backup: Path) -> None:
    """Make a new store of what ``export`` saves of the damaged one."""
    names = [each["stream_id"] for each in run(home.path, "streams", "--all", "--json").objects()]
    files = [home.path.parent / f"{number}.jsonl" for number, _ in enumerate(names)]
    for name, file in zip(names, files, strict=True):
        assert run(home.path, "export", name, "-o", str(file)).code == 1
    home.store_path.rename(home.path.parent / "damaged")
    for file in files:
        assert run(home.path, "import", str(file)).code == 0


@pytest.mark.parametrize(
    ("damage", "repair"), [(header, put_back), (streams, put_back), (head, imported)], ids=lambda each: each.__name__
)
async def test_hooks_wait_in_the_spool_until_the_database_is_repaired(
    home: Home, tmp_path: Path, damage: Damage, repair: Callable[[Home, Path], None]
) -> None:
    backup = tmp_path / "backup"
    try:
        with shims(1, home.path) as (shim,):
            shim.ask("events", **{"from": 1}, count=20)
            shim.until("acked", 20)
        assert run(home.path, "stop").code == 0
        shutil.copytree(home.store_path, backup)
        damage(home.store_path)
        before = (home.store_path / "log.db").read_bytes()
        with shims(1, home.path) as (shim,):
            shim.ask("events", **{"from": 21}, count=20)
            wait_for(lambda: "log.db" in logged(home), "a sidecar says why it does not record")
            assert shim.ask("counters")["acked"] == 0
            [spool] = (home.path / "spool").glob("*.jsonl")
            assert spool.read_bytes().count(b"life.tick") == 20
            wait_for(lambda: is_told(home), "status names the database and the spool")
            assert (home.store_path / "log.db").read_bytes() == before
            repair(home, backup)
            shim.until("acked", 20)
        run(home.path, "stop")
        assert await recorded(home) == dict.fromkeys(range(1, 41), 1)
        assert run(home.path, "verify").code == 0
    finally:
        end_sidecars(home)
