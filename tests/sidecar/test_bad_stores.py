"""A store that is newer, foreign, half deleted, locked, read-only or on a full disk: one sentence, nothing changed.

Every state meets one command of each way to open the log; every command that opens it meets one state of each part.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.app import app
from sidecar.home import Home
from streams.errors import StoreLocked
from streams.stores.sqlite import files as sqlite_files
from tests.sidecar import life
from tests.sidecar.bad_stores import (
    LOST,
    NOT_OURS,
    REFUSED,
    STREAM,
    State,
    database_gone,
    foreign_manifest,
    head_gone,
    is_empty_beside,
    journal_gone,
    lock_alone,
    make_store,
    snapshot,
)
from tests.sidecar.cli.helpers import LIMIT_SECONDS, ROOT, Done, command, run
from tests.sidecar.support import serving

READING = (
    *("streams", "log", "read", "query", "changes", "show", "tree", "why", "state", "diff", "export"),
    *("intents", "checkpoints", "notices", "top", "costs", "dlq list"),
)
WRITING = ("serve", "prune", "forget")
TELLING = ("status", "doctor")
LOOKING = ("prune --older-than 1s", f"forget {STREAM}")
"""Without --yes they only read."""

ELSEWHERE = {"verify", "stop", "play", "demo", "install", "uninstall", "metrics", "agents", "send", "spawn"}
ELSEWHERE |= {"fork", "signal", "notify", "import", "replay", "inspect", "dlq show", "dlq redrive", "dlq drop"}
ELSEWHERE |= {"mirror status", "mirror verify", "mirror rebuild", "pin", "unpin", "name", "reservations"}
"""They do not open the log, or need more than a log and have tests of their own."""

BROKEN: tuple[State, ...] = (journal_gone, database_gone)


def commands() -> set[str]:
    names = {command.name or "" for command in app.registered_commands}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        names |= {f"{group.name} {command.name}" for command in group.typer_instance.registered_commands}
    return names


@dataclass(frozen=True)
class Sound:
    """A store that the tests damage copies of."""

    store: Path
    event: str


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Sound:
    store = tmp_path_factory.mktemp("sound") / "store"
    return Sound(store, make_store(store))


@pytest.fixture(scope="module")
def taken() -> Iterator[int]:
    """A port in use: a ``serve`` that gets past the log fails there instead of staying."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.fixture
def portless_home(home: Home, tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home without a log yet, whose port is taken."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    home.ensure_token(lambda: "a" * 64)
    home.config_path.write_text(f"[link]\nport = {taken}\n")
    return home


def put(home: Home, sound: Sound) -> Path:
    shutil.copytree(sound.store, home.store_path, dirs_exist_ok=True)
    return home.store_path


def everything(place: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, and every directory, so that files left by a command show, too."""
    found = (path for path in sorted(place.rglob("*")) if not is_empty_beside(path))
    return {str(path): path.read_bytes() if path.is_file() else None for path in found}


def present(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in commands()]


def arguments(name: str, sound: Sound) -> list[str]:
    more = {
        **{name: [STREAM] for name in ("log", "read", "export", "state")},
        **{name: [sound.event] for name in ("show", "why")},
        "diff": [STREAM, "ses_b"],
        "prune": ["--older-than", "1s", "--yes"],
        "forget": [STREAM, "--yes"],
    }
    return [*name.split(), *more.get(name, [])]


def is_sentence(done: Done, wanted: str) -> bool:
    """True if it failed with one line that matches ``wanted``, whose code docs/operations.md lists."""
    lines = done.err.splitlines()
    said = done.code == 1 and len(lines) == 1 and re.search(rf"^durable-stream: .*{wanted}", lines[0]) is not None
    return said and explained(lines[0])


def explained(sentence: str) -> bool:
    page = (ROOT / "docs" / "operations.md").read_text().split("## Error codes")[1]
    code = re.search(r" \[([a-z-]+)\]$", sentence)
    return code is not None and f"`{code[1]}`" in page


def told(done: Done) -> str:
    """The findings of ``status --json`` and ``doctor --json``."""
    found: list[Any] = done.objects()
    return "\n".join(text for one in found for text in one.get("problems", [f"{one.get('text')}; {one.get('hint')}"]))


def test_every_command_that_opens_the_log_is_asked() -> None:
    assert commands() - {*READING, *WRITING, *TELLING, *ELSEWHERE} == set(), "add it to one of the tables"


@pytest.mark.parametrize("state", BROKEN)
def test_every_command_refuses_alike(portless_home: Home, sound: Sound, state: State) -> None:
    store = put(portless_home, sound)
    state(store)
    before = snapshot(store)
    for name in present((*READING, "serve", "prune", "forget")):
        done = run(portless_home.path, *arguments(name, sound))
        if name != "why" or state is not journal_gone:  # what it shows is all in the database
            assert is_sentence(done, REFUSED[state]), (name, done.err)
    for look in LOOKING[:1]:
        assert is_sentence(done := run(portless_home.path, *look.split()), REFUSED[state]), done
    [row] = re.findall("^log +(.*)$", run(portless_home.path, "status").out, re.M)
    assert row.endswith("see above") and "0 records" not in row, row
    assert snapshot(store) == before


@pytest.mark.parametrize("state", REFUSED)
def test_every_state_is_refused_in_one_sentence(portless_home: Home, sound: Sound, state: State) -> None:
    home, store, wanted = portless_home.path, put(portless_home, sound), REFUSED[state]
    state(store)
    before = snapshot(store)
    for name in ("streams", "serve"):
        assert is_sentence(done := run(home, name), wanted), (name, done)
    for name in TELLING:
        done = run(home, name, "--json")
        assert done.code == 1 and done.err == "" and re.search(wanted, told(done)), (name, told(done))
    done = run(home, "verify")
    assert done.code == 1 and snapshot(store) == before
    is_finding = state not in NOT_OURS and re.search("^(missing|corrupt|torn): ", done.out, re.M) is not None
    assert is_finding or is_sentence(done, wanted), done
    if state in LOST and (missing := re.match(r"records \d+ to \d+", wanted)):
        assert missing[0] in done.out, "the same numbers everywhere"


def test_what_is_refused_does_not_even_get_a_lock(tmp_path: Path, sound: Sound) -> None:
    home = Home(tmp_path / "elsewhere")
    home.path.mkdir(mode=0o700)
    foreign_manifest(put(home, sound))
    (home.store_path / "lock").unlink(missing_ok=True)
    before = everything(home.path)
    for name in ("streams", *WRITING):
        assert run(home.path, *arguments(name, sound)).code == 1, name
        assert everything(home.path) == before, name


def test_a_directory_without_a_log_gets_none_from_commands_that_remove(tmp_path: Path) -> None:
    home = Home(tmp_path / "elsewhere")
    (home.store_path / "journal").mkdir(parents=True, mode=0o700)
    (home.store_path / "letters.new").write_text("somebody's")
    before = everything(home.path)
    for words in ("prune --older-than 1s", "prune --max-bytes 1 --yes", "forget ses_x --yes"):
        done = run(home.path, *words.split())
        assert done.code == 1 and "yet" in done.err and done.err.count("\n") == 1, done
        assert everything(home.path) == before, words


def test_a_lock_alone_is_a_store_that_was_never_used(portless_home: Home, sound: Sound) -> None:
    store = put(portless_home, sound)
    lock_alone(store)
    for name in ("streams", "query", "log"):
        done = run(portless_home.path, *arguments(name, sound))
        assert len(done.err.splitlines()) == 1 and "nothing was recorded" in done.err, (name, done)
    assert run(portless_home.path, "verify").code == 0 and snapshot(store) == {}


def test_a_lost_head_file_keeps_nobody_from_working(portless_home: Home, sound: Sound) -> None:
    store = put(portless_home, sound)
    head_gone(store)
    before = snapshot(store)
    assert run(portless_home.path, "streams").code == 0 == run(portless_home.path, "log", STREAM).code
    assert run(portless_home.path, "verify").code == 1 and snapshot(store) == before
    portless_home.config_path.unlink()
    with serving(portless_home):
        pass
    assert run(portless_home.path, "verify").code == 0, "the next start renews it"


def test_a_store_that_another_process_writes(
    portless_home: Home, sound: Sound, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = put(portless_home, sound)
    before = snapshot(store)
    lock = os.open(store / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in ("serve", "prune"):
            done = run(portless_home.path, *arguments(name, sound))
            wanted = r"being written by process \d+; .*\[(log-locked|sidecar-unavailable)\]"
            assert is_sentence(done, wanted), (name, done)
        assert run(portless_home.path, "streams").code == 0
    finally:
        os.close(lock)
    monkeypatch.setattr("sidecar.link.launch.START_SECONDS", 0.3)
    with portless_home.lock():
        for name in ("serve", "prune"):
            done = run(portless_home.path, *arguments(name, sound))
            assert is_sentence(done, r"another sidecar.* serving this home.*`durable-stream stop`"), (name, done)
        life.end_sidecars(portless_home)  # they wait for the lock
    assert snapshot(store) == before


def test_looking_at_a_log_changes_nothing_of_it(portless_home: Home, sound: Sound) -> None:
    store = put(portless_home, sound)
    before = snapshot(store)
    looks = [arguments(name, sound) for name in present((*READING, *TELLING, "verify"))]
    for look in (*looks, ["query", "--text", "n"]):
        done = run(portless_home.path, *look)
        assert done.code == 0 or look[0] in TELLING or look[0] == "diff", done
        assert snapshot(store) == before, look


def test_a_database_that_another_program_holds_is_waited_for_once(
    portless_home: Home, sound: Sound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.stores.sqlite.files.BUSY_MS", 20)
    waits: list[Path] = []
    connect = sqlite_files._connect_to_read

    def counted(path: Path, mode: str, damaged: bool) -> sqlite3.Connection:
        try:
            return connect(path, mode, damaged)
        except StoreLocked:
            waits.append(path)
            raise

    monkeypatch.setattr(sqlite_files, "_connect_to_read", counted)
    store = put(portless_home, sound)
    portless_home.config_path.write_text('[nats]\nmode = "embedded"\n')  # which a sidecar would start
    before = snapshot(store)
    other = sqlite3.connect(store / "log.db", isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    try:
        for name in ("streams", "log", *WRITING, *TELLING):
            is_telling = name in TELLING
            words = [name, "--json"] if is_telling else arguments(name, sound)
            done = run(portless_home.path, *words)
            if is_telling:
                assert "held by another program" in told(done), name
            else:
                assert is_sentence(done, r"log\.db is held by another program; close that program"), (name, done)
            assert len(waits) <= 1, (name, waits)
            waits.clear()
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert snapshot(store) == before


@pytest.mark.parametrize("part", [".", "lock"])
def test_a_store_that_is_closed_to_us(portless_home: Home, sound: Sound, part: str) -> None:
    store = put(portless_home, sound)
    (store / "lock").touch()
    # Root opens what is closed; without these two of its rights it is as anybody else.
    as_anybody = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    (store / part).chmod(0)
    answers = {}
    try:
        for name in ("status", "serve", "streams"):
            asked = [*as_anybody, *command(portless_home.path, *arguments(name, sound))]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=LIMIT_SECONDS, cwd=ROOT)
            answers[name] = Done(done.returncode, done.stdout, done.stderr)
    finally:
        (store / part).chmod(0o700)
    assert answers["status"].code == 1 and "cannot be written, so nothing is recorded" in answers["status"].out, answers
    assert is_sentence(answers["serve"], r"Permission denied; .*lack permission: choose another"), answers
    if part == ".":
        assert is_sentence(answers["streams"], r"Permission denied; .*lack permission: choose another"), answers


# Places that only the system can make: a read-only file system and a full one, in a mount namespace of their own


def in_a_place(kind: str, home: Home, sound: Sound) -> dict[str, Done]:
    """Run one command of each way to open the log, in a home on such a file system."""
    commands = {name: arguments(name, sound) for name in ("streams", "verify", "serve", "prune")}
    commands |= {name: [name, "--json"] for name in TELLING} | {look: look.split() for look in LOOKING}
    asked = {"kind": kind, "home": str(home.path), "commands": commands}
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    done = subprocess.run(
        [*unshare, sys.executable, "-m", "tests.sidecar.bad_places"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_SECONDS,
        cwd=ROOT,
    )
    assert done.returncode == 0, f"no mount namespace, or no file system in it: {done.stderr}"
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers.pop("changed") == []
    return {name: Done(*answer) for name, answer in answers.items()}


def test_a_read_only_file_system(portless_home: Home, sound: Sound) -> None:
    put(portless_home, sound)
    answers = in_a_place("read-only", portless_home, sound)
    for name in ("streams", "verify", *LOOKING):
        assert answers[name].code == 0, (name, answers[name])
    for name in ("serve", "prune"):
        wanted = r"Read-only file system\); it is mounted read-only: mount it writable"
        assert is_sentence(answers[name], wanted), (name, answers[name])
    for name in TELLING:
        assert answers[name].code == 1 and "is on a read-only file system" in told(answers[name]), answers[name]


def test_a_full_disk(portless_home: Home, sound: Sound) -> None:
    put(portless_home, sound)
    answers = in_a_place("full", portless_home, sound)
    for name in ("streams", "verify"):
        assert answers[name].code == 0, (name, answers[name])
    full = r"No space left on device; free \d+ MiB"
    for name in ("serve", "prune"):
        err = answers[name].err
        assert answers[name].code == 1 and err.count("\n") == 1 and re.search(full, err), (name, answers[name])
    for name in TELLING:
        assert answers[name].code == 1 and "0 MiB free" in told(answers[name]), answers[name]
