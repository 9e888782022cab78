"""``serve --deterministic``: the same recording and seed give the same records; secrets stay secret."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sidecar.home import Home
from sidecar.record.playing.play import play
from streams.identity import seeded_identity, system_identity
from streams.log.reader import LogReader
from tests.sidecar.cli.helpers import ROOT, run_process
from tests.sidecar.support import HANG_SECONDS, RECORDINGS, running, start

FIRST, SECOND = RECORDINGS / "chat.jsonl", RECORDINGS / "task_parallel.jsonl"


async def recorded(path: Path, seed: int, backend: str, *, between: Sequence[str] = ()) -> list[str]:
    """The hashes of all records that a deterministic sidecar made of two recordings and a command for an agent;
    ``between`` are commands of the command line."""
    home = Home(path)
    home.create()
    home.config_path.write_text(f'[store]\nbackend = "{backend}"\n[worker]\nagents = ["watch.py:Reporter"]\n')
    shutil.copy(ROOT / "examples" / "watch.py", path / "watch.py")
    process = start(home, "--deterministic", "--seed", str(seed))
    try:
        await asyncio.to_thread(running, home)
        await play(home, FIRST, nonce=system_identity().nonce)
        for command in (*between, "send reporter hello {}"):
            assert run_process(home.path, *command.split()).code == 0
        await play(home, SECOND, nonce=system_identity().nonce)
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)
    reader = LogReader(home.store_path)
    try:
        return [record.hash async for record in reader.read_all()]
    finally:
        await reader.close()


async def test_the_same_seed_gives_the_same_records_on_every_backend(tmp_path: Path) -> None:
    first = await recorded(tmp_path / "1", 7, "jsonl")
    looks = ["status", "metrics", "streams"]
    assert first and await recorded(tmp_path / "2", 7, "sqlite", between=looks) == first, "who looks changes nothing"
    assert await recorded(tmp_path / "3", 8, "jsonl") != first
    tokens = {Home(tmp_path / name).read_token() for name in "12"}
    assert len(tokens) == 2 and seeded_identity(7).nonce() not in tokens, "a seed does not tell the token"
    refused = await asyncio.to_thread(run_process, tmp_path / "1", "serve", "--deterministic")
    assert refused.code == 1 and "[home-not-empty]" in refused.err
    reader = LogReader(Home(tmp_path / "1").store_path)
    assert [record.hash async for record in reader.read_all()] == first
    await reader.close()


@pytest.mark.parametrize("arguments", [("--seed", "3"), ("--deterministic", "--seed", "many")])
def test_a_seed_needs_deterministic_mode(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert run_process(tmp_path / "home", "serve", *arguments).code == 2
    assert not (tmp_path / "home").exists()
