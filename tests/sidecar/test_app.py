"""The sidecar as a process: what it says and refuses, a recording over its kills, and ``serve --deterministic``."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bridge.opencode.link.frames import MAX_FRAME_BYTES
from sidecar.failure import Failure
from sidecar.home import Home
from sidecar.record.playing.play import play
from streams.identity import seeded_identity, system_identity
from streams.log.reader import LogReader
from tests.sidecar.cli.helpers import ROOT, run, run_process
from tests.sidecar.support import RECORDINGS, serving, wait_for

NONCE = system_identity().nonce


def test_serve_in_the_foreground_says_where_it_listens(home: Home, tmp_path: Path) -> None:
    with (tmp_path / "printed").open("w+") as printed, serving(home, output=printed) as info:
        wait_for(lambda: f"on port {info.port}" in (tmp_path / "printed").read_text(), "it says so")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"),
        ('{"t": 1}', "must be a JSON object"),
        ('{"id": "evt_1", "type": "session.created", "data": {}}', "must be a JSON object"),
        ('{"hook": "event", "t": -1}', "must be milliseconds"),
        ('{"hook": "event", "t": 99999999999999}', "after the year 2099"),
        pytest.param(f'{{"hook": "event", "t": 1, "input": "{"é" * MAX_FRAME_BYTES}"}}', "too long", id="long"),
    ],
)
async def test_what_is_no_recording_is_refused_and_nothing_is_sent(
    home: Home, tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"hook": "event", "t": 1, "input": null, "output": null}\n' + line + "\n")
    with pytest.raises(Failure, match=said) as raised:
        await play(home, path, nonce=NONCE)
    assert f"{path}:2" in str(raised.value)
    assert home.running() is None
    shown = run(home.path, "play", str(path))
    assert shown.code == 1 and said in shown.err and shown.err.endswith("[bad-recording]\n")


def test_the_demo_holds_and_leaves_nothing_behind(tmp_path: Path) -> None:
    shown = run_process(tmp_path / "unused", "demo")
    assert shown.code == 0, shown.out + shown.err
    assert "kill -9" in shown.out and "Nothing is missing, and nothing is duplicated." in shown.out
    assert not (tmp_path / "unused").exists()


FIRST, SECOND = RECORDINGS / "chat.jsonl", RECORDINGS / "task_parallel.jsonl"


async def hashes_of(path: Path, seed: int, *, between: Sequence[str] = ()) -> list[str]:
    """The hashes of all records that a deterministic sidecar made of two recordings and a command for an agent;
    ``between`` are commands of the command line."""
    home = Home(path)
    home.create()
    home.config_path.write_text('[worker]\nagents = ["watch.py:Reporter"]\n')
    shutil.copy(ROOT / "examples" / "watch.py", path / "watch.py")
    with serving(home, "--deterministic", "--seed", str(seed)):
        await play(home, FIRST, nonce=system_identity().nonce)
        for command in (*between, "send reporter hello {}"):
            assert run(home.path, *command.split()).code == 0
        await play(home, SECOND, nonce=system_identity().nonce)
    reader = LogReader(home.store_path)
    try:
        return [record.hash async for record in reader.read_all()]
    finally:
        await reader.close()


async def test_the_same_seed_gives_the_same_records(tmp_path: Path) -> None:
    first = await hashes_of(tmp_path / "1", 7)
    looks = ["status", "metrics", "streams"]
    assert first and await hashes_of(tmp_path / "2", 7, between=looks) == first, "who looks changes nothing"
    assert await hashes_of(tmp_path / "3", 8) != first
    tokens = {Home(tmp_path / name).read_token() for name in "12"}
    assert len(tokens) == 2 and seeded_identity(7).nonce() not in tokens, "a seed does not tell the token"
    refused = run_process(tmp_path / "1", "serve", "--deterministic")
    assert refused.code == 1 and "[home-not-empty]" in refused.err
    reader = LogReader(Home(tmp_path / "1").store_path)
    assert [record.hash async for record in reader.read_all()] == first
    await reader.close()


@pytest.mark.parametrize("arguments", [("--seed", "3"), ("--deterministic", "--seed", "many")])
def test_a_seed_needs_deterministic_mode(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run(tmp_path / "home", "serve", *arguments).code == 2
    assert not (tmp_path / "home").exists()
