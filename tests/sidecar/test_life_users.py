"""Several users on one machine: each has a home, and nobody serves, reads or harms another's.

Only root can make another user's home and, with setpriv, act as two users. Otherwise these tests use the root
directory as another user's home, and two homes of one user for two users.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.home import Home
from tests.sidecar.cli.helpers import run
from tests.sidecar.life import COMMAND, Shim, end_sidecars, recorded, run_as, sidecars
from tests.sidecar.support import wait_for

OTHERS = (65533, 65534)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="life-"))
    directory.chmod(0o711)
    yield directory
    for home in directory.iterdir():
        end_sidecars(Home(home))
    shutil.rmtree(directory)


def is_root() -> bool:
    return os.geteuid() == 0


def users() -> tuple[int | None, int | None]:
    """Two users, or ourselves twice."""
    return OTHERS if is_root() and shutil.which("setpriv") else (None, None)


def home_for(place: Path, name: str, user: int | None) -> Home:
    path = place / name
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user, -1)
    return Home(path)


@pytest.mark.parametrize("command", ["serve --idle-exit", "play", "doctor"])
def test_a_home_of_another_user_is_refused_in_words_and_stays_as_it_is(place: Path, command: str) -> None:
    home = home_for(place, "foreign", OTHERS[0]) if is_root() else Home("/")
    before = sorted(home.path.iterdir())
    recording = Path(__file__).parents[1] / "recordings" / "chat.jsonl"
    refused = run(home.path, *command.split(), *([str(recording)] if command == "play" else []))
    said = refused.out + refused.err
    assert refused.code == 1
    assert "owned by user" in said or "owned by another user" in said, said
    assert "choose another home" in said
    assert sorted(home.path.iterdir()) == before


def _has_one_sidecar(home: Home) -> bool:
    return len(sidecars(home)) == 1


async def test_two_users_record_side_by_side_and_cannot_read_each_other(place: Path, tmp_path: Path) -> None:
    pair = [(user, home_for(place, f"home{n}", user)) for n, user in enumerate(users())]
    linked = [Shim(home.path, user=user) for user, home in pair]
    try:
        for number, shim in enumerate(linked):
            shim.tell("events", **{"from": 100 * number + 1}, count=100)
        for shim in linked:
            shim.answer()
            shim.until("acked", 100)
        for (user, home), (other, _) in zip(pair, reversed(pair), strict=True):
            # On a busy machine a second one was started, too: it finds the first, and ends.
            wait_for(partial(_has_one_sidecar, home), "one sidecar is left")
            if user is None:
                continue
            owners = {path.stat().st_uid for path in [home.path, *home.path.rglob("*")]}
            assert owners == {user}
            assert not [path for path in home.path.rglob("*") if path.stat().st_mode & 0o077]
            for command in ("status", "serve"):
                refused = run_as(COMMAND, home, command, user=other)
                said = refused.stdout + refused.stderr
                assert refused.returncode and "Traceback" not in said, command
                assert "user" in said or "is not readable" in said, said
    finally:
        for shim in linked:
            shim.end()
    for number, (_, home) in enumerate(pair):
        # Not even root reads another user's store; a copy is its own.
        copy = Home(shutil.copytree(home.path, tmp_path / home.path.name, ignore=shutil.ignore_patterns("sock")))
        assert await recorded(copy) == dict.fromkeys(range(100 * number + 1, 100 * number + 101), 1)


def test_a_shim_that_is_given_the_home_of_another_user_leaves_it_alone_and_goes_on(place: Path) -> None:
    one, other = users()
    home = home_for(place, "home", one) if one is not None else Home("/")
    before = sorted(home.path.iterdir())
    shim = Shim(home.path, user=other, backoffMaxMs=20)
    try:
        shim.ask("events", **{"from": 1}, count=50)
        counters = shim.until("unsafe_files", 3)
        assert (counters["spawns"], counters["connects"], counters["hook_errors"], counters["spooled"]) == (0, 0, 0, 0)
    finally:
        shim.end()
    assert sorted(home.path.iterdir()) == before
    wait_for(lambda: sidecars(home) == {}, "nothing was started")
