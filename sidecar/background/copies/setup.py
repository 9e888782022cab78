"""The user's own commands that make a new copy ready to work in, such as ``npm ci``.

They run before the agent starts, with the environment of the OpenCode that asked for the work. If the sidecar is killed
meanwhile, the next one ends what is left of them, makes the copy again and runs them again. So a command never runs
twice at the same time, and never in a copy in which an agent works.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, NamedTuple

from sidecar.background.hosts.environments import OURS
from sidecar.processes import mark_of

MAX_OUTPUT: Final = 4000
"""How much of the end of a failed command's output is kept, in characters."""

MAX_DONE: Final = 400
"""The same for a command that did not fail. All of it stays in the state of the agent ``intents``."""

_LOOK_SECONDS: Final = 0.5
_END_SECONDS: Final = 5.0

_SHELL: Final = ("/bin/sh", "-c", 'read -r _ && exec /bin/sh -c "$1" </dev/null', "sh")
"""Waits for a line, so that a command begins only after its process was noted, and never if the sidecar dies before."""

_AWAY: Final = (
    frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "OLDPWD"}) | OURS
)
"""Variables that would lead a command out of the copy, or that are not the user's."""


class Setup(NamedTuple):
    """The commands of ``[phantom] setup``, which together may take so many seconds."""

    commands: Sequence[str] = ()
    seconds: float = 600.0

    async def run(
        self, root: Path, project: str, variables: Mapping[str, str], note: Path, wanted: Callable[[], bool]
    ) -> tuple[list[dict[str, Any]], str]:
        """Run the commands in ``root``, a copy of ``project``, one after the other, until one fails.

        Args:
            note: the file that names the process while a command runs; see ``end``.
            wanted: whether the work is still wanted. If not, the commands are stopped.

        Returns what the commands did: ``{command, code, seconds, output}`` for each that began, where ``code`` is
        ``None`` if the command was stopped; and why the copy is not ready, empty if it is.
        """
        own = {name: value for name, value in variables.items() if name not in _AWAY}
        own |= {"PWD": str(root), "DURABLE_STREAM_PROJECT": project}
        loop = asyncio.get_running_loop()
        began, runs = loop.time(), list[dict[str, Any]]()
        for command in self.commands:
            start = loop.time()
            with TemporaryFile() as output:
                code = await _run(command, root, own, note, output, began + self.seconds, wanted)
                said = await asyncio.to_thread(_tail, output, MAX_OUTPUT if code != 0 else MAX_DONE)
            runs.append({"command": command, "code": code, "seconds": round(loop.time() - start, 1), "output": said})
            if code is None:
                late = f"took more than {self.seconds / 60:g} minutes ([phantom] setup_minutes)"
                return runs, f"setup: `{command}` {late if wanted() else 'was stopped'}"
            if code != 0:
                last = next((line for line in reversed(said.splitlines()) if line.strip()), "it printed nothing")
                return runs, f"setup: `{command}` ended with code {code}: {last.strip()[:300]}"
        return runs, ""


async def _run(
    command: str,
    root: Path,
    variables: Mapping[str, str],
    note: Path,
    output: IO[bytes],
    deadline: float,
    wanted: Callable[[], bool],
) -> int | None:
    """Run one command. Returns its code; ``None`` if it was stopped."""
    process = await asyncio.create_subprocess_exec(
        *(*_SHELL, command),
        cwd=root,
        env=dict(variables),
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        # What the command itself starts in the background may go on, but not if the command is stopped.
        await asyncio.to_thread(_note, note, process.pid)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        while process.returncode is None and wanted():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), min(left, _LOOK_SECONDS))
        return process.returncode
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await asyncio.to_thread(note.unlink, missing_ok=True)


def _note(note: Path, pid: int) -> None:
    note.write_text(json.dumps({"pid": pid, "mark": mark_of(pid)}))


def end(note: Path) -> None:
    """End a command that an earlier sidecar left running, with everything that it started.

    Raises:
        TimeoutError: the command does not end.
    """
    try:
        told = json.loads(note.read_text())
        pid, mark = int(told["pid"]), str(told["mark"])
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):  # a note that was cut off, so its command never began
        pid, mark = 0, ""
    if mark and mark_of(pid) == mark:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        deadline = time.monotonic() + _END_SECONDS
        while mark_of(pid) == mark:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {pid} of an earlier setup does not end")
            time.sleep(0.02)
    note.unlink(missing_ok=True)


def _tail(output: IO[bytes], most: int) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(size - 4 * most, 0))
    text = output.read().decode("utf-8", "replace")
    return text if len(text) <= most else "…" + text[-most:]
