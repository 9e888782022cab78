"""Reads old sessions of OpenCode 1 from an OpenCode server that is started for this purpose and records nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from bridge.opencode.capture.history import HISTORY_INSTANCE, session_items
from bridge.opencode.capture.shapes import mapping, number, text
from sidecar.failure import Failure
from sidecar.home import Home
from sidecar.record.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.record.opencode2.registration import Registration
from sidecar.record.playing.play import PlayResult, play

START_SECONDS: Final = 60.0
END_SECONDS: Final = 10.0

_MOST_SESSIONS: Final = 1_000_000
_LISTENING: Final = re.compile(rb"listening on http://127\.0\.0\.1:(\d+)")
_QUIET: Final = {
    "DURABLE_STREAM": "off",
    "OPENCODE_PURE": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}


async def import_opencode_1(
    home: Home,
    program: str,
    known: Collection[str],
    *,
    excludes: Callable[[str], bool],
    nonce: Callable[[], str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[int, PlayResult | None]:
    """Record the sessions of OpenCode 1 that are not ``known``. Return how many there were, and what was played into
    the log.

    The sessions pass through a file that only this user can read, and that is deleted at the end.

    Raises:
        Failure: OpenCode's server does not start or answer.
    """
    with tempfile.TemporaryDirectory(prefix="durable-stream-") as directory:
        recording = Path(directory) / "history.jsonl"
        async with _server(program, Path(directory), nonce(), environ) as client:
            try:
                count = await _write(client, recording, known, excludes)
            except (ServiceError, ServiceGone) as error:
                raise Failure("no-history", f"could not read the sessions of {program}: {error}") from None
        if not count:
            return 0, None
        return count, await play(home, recording, nonce=nonce, instance=HISTORY_INSTANCE)


async def _write(
    client: ServiceClient,
    recording: Path,
    known: Collection[str],
    excludes: Callable[[str], bool],
) -> int:
    answer = await client.get(f"/experimental/session?limit={_MOST_SESSIONS}")
    infos = [info for info in map(mapping, answer if isinstance(answer, list) else []) if text(info.get("id"))]
    infos.sort(key=lambda info: number(mapping(info.get("time")).get("created")) or 0)
    wanted = [info for info in infos if info["id"] not in known and not excludes(text(info.get("directory")) or "")]
    descriptor = os.open(recording, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
        for info in wanted:
            messages = await client.get(f"/session/{quote(info['id'], safe='')}/message")
            for item in session_items(info, messages if isinstance(messages, list) else []):
                line = {"t": item.t, "hook": item.hook, "input": item.input, "output": item.output}
                file.write(f"{json.dumps(line)}\n")
    return len(wanted)


@asynccontextmanager
async def _server(
    program: str, directory: Path, password: str, environ: Mapping[str, str]
) -> AsyncIterator[ServiceClient]:
    """An OpenCode server without plugins, in an empty directory. Only this process can log in to it."""
    empty = directory / "empty"
    empty.mkdir()
    process = await asyncio.create_subprocess_exec(
        program,
        *("serve", "--hostname", "127.0.0.1", "--port", "0"),
        cwd=empty,
        env={**environ, **_QUIET, "OPENCODE_SERVER_PASSWORD": password},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        port = await _port(process, program)
        yield ServiceClient(Registration("history", "", "127.0.0.1", port, process.pid, password))
    finally:
        await _end(process)


async def _port(process: asyncio.subprocess.Process, program: str) -> int:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            while line := await process.stdout.readline():
                if (found := _LISTENING.search(line)) is not None:
                    return int(found[1])
    except (TimeoutError, ValueError):
        pass
    raise Failure("no-history", f"`{program} serve` does not start: run this command yourself to see why")


async def _end(process: asyncio.subprocess.Process) -> None:
    for number_ in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number_)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
                return
