"""Sidecars and links for tests: real processes, and a fake link without a socket."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from bridge.opencode.link.protocol import CallError
from sidecar.home import Home, SidecarInfo
from tests.sidecar.cli.helpers import command

REPOSITORY = Path(__file__).parents[2]
RECORDINGS = REPOSITORY / "tests" / "recordings"
HANG_SECONDS = 120.0


def start(home: Home, *arguments: str, output: int | IO[str] = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start ``serve`` and return at once; its output goes to ``output``."""
    words = command(home.path, "serve", *arguments)
    return subprocess.Popen(words, stdout=output, stderr=output, text=True, cwd=REPOSITORY)


@contextmanager
def serving(home: Home, *arguments: str, output: int | IO[str] = subprocess.DEVNULL) -> Iterator[SidecarInfo]:
    """A sidecar that serves ``home`` in the block, and ends after it by SIGTERM, if it has not ended."""
    process = start(home, *arguments, output=output)
    try:
        yield running(home)
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)


def wait_for(look: Callable[[], Any], what: str, *, every_s: float = 0.01) -> Any:
    """Poll another process's files until ``look`` returns something; rarely if looking is expensive."""
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(every_s)
    raise AssertionError(f"{what}: not within {HANG_SECONDS:g} s")


def running(home: Home) -> SidecarInfo:
    """Wait until a sidecar serves ``home``."""
    info: SidecarInfo = wait_for(home.running, "a sidecar runs")
    return info


def spool_line(seq: int, item: dict[str, Any]) -> str:
    """A line of a spool as the shim writes it, without its newline."""
    text = json.dumps(item)
    return f'{{"seq":{seq},"sum":"{crc32(f"{seq},{text}".encode()):08x}","item":{text}}}'


class FakeLink:
    """A link without a socket: it notes finished items and answers calls from a table."""

    def __init__(self, boot_id: str = "b" * 32, instance: str = "1" * 16, directory: str = "/home/ada") -> None:
        self.boot_id, self.instance, self.directory = boot_id, instance, directory
        self.is_open = True
        self.finished: set[int] = set()
        self.calls: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self._news = asyncio.Event()

    async def call(self, method: str, args: dict[str, Any], timeout: float = 10.0) -> Any:
        self.calls.append((method, args))
        answer = self.answers.get(method)
        if callable(answer):
            answer = answer(args)
        if isinstance(answer, CallError):
            raise answer
        if answer is None:
            raise CallError("unavailable", "this link has no OpenCode")
        return answer

    def finish(self, seqs: Iterable[int]) -> None:
        self.finished.update(seqs)
        self._news.set()

    async def until(self, seqs: Iterable[int]) -> None:
        """Wait until these items are finished."""
        wanted = set(seqs)
        async with asyncio.timeout(HANG_SECONDS):
            while not wanted <= self.finished:
                self._news.clear()
                await self._news.wait()
