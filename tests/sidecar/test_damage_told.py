"""What the commands say of a store that is damaged: the cause by its name, once, and what to do."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar.bad_stores import Backend, make_store
from tests.sidecar.cli.helpers import run


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[Backend, Path]:
    made: dict[Backend, Path] = {}
    for backend in ("jsonl", "sqlite"):
        home = Home(tmp_path_factory.mktemp(backend) / "home")
        home.create()
        home.ensure_token(lambda: "a" * 64)
        make_store(home.store_path, backend)
        made[backend] = home.path
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "home"


def put(home: Path, sound: Path) -> Path:
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(sound, home)
    return home / "store"


def test_a_lost_list_of_removed_records_is_named_by_every_command(home: Path, sound: dict[Backend, Path]) -> None:
    store = put(home, sound["jsonl"])
    assert run(home, "forget", "ses_b", "--yes").code == 0
    assert run(home, "prune", "--stream", "ses_a", "--yes").code == 0
    (store / "log" / "removed.json").unlink()
    told = r"removed.json: the list of what was pruned and forgotten is not there"
    for name in ("streams", "status", "doctor", "query", "serve", "forget ses_b --yes"):
        done = run(home, *name.split())
        assert done.code == 1 and told in done.out + done.err, (name, done)
    done = run(home, "verify")
    assert done.code == 1 and told in done.out and done.out.count("\n") == 2, done


def test_lost_digests_of_pruned_records_are_missing(home: Path, sound: dict[Backend, Path]) -> None:
    store = put(home, sound["jsonl"])
    assert run(home, "prune", "--stream", "ses_a", "--yes").code == 0
    (store / "log" / "removed-1.keys").unlink()
    told = "missing: .*removed-1.keys: the digests of 6 pruned records are gone"
    for name in ("verify", "doctor"):
        done = run(home, name)
        assert done.code == 1 and re.search(told, done.out), (name, done)
