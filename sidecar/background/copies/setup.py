"""The user's own commands that make a new copy ready to work in, such as ``npm ci``.

They run before the agent starts. The plugin of the OpenCode in which the work runs starts them (see
``plugin-shim/src/copies.js``), so they may do what the work may do. It stops them if its link to the sidecar closes.
The next sidecar makes the copy again and runs them again. So a command never runs twice at the same time, and never in
a copy in which an agent works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sidecar.background.copies.work import Copy
from sidecar.background.hosts.host import Call

MAX_OUTPUT: Final = 4000
"""How much of the end of a failed command's output is kept, in characters."""

SETUP_SECONDS: Final = 600.0
"""How long all commands of ``setup`` may take together."""

MAX_DONE: Final = 400
"""The same for a command that did not fail. All of it stays in the state of the agent ``intents``."""


class Setup(NamedTuple):
    """The commands of ``[phantom] setup``, which together may take so many seconds."""

    commands: Sequence[str] = ()
    seconds: float = SETUP_SECONDS

    async def run(
        self, call: Call, intent: str, copy: Copy, wanted: Callable[[], bool]
    ) -> tuple[list[dict[str, Any]], str]:
        """Have a plugin run the commands in a copy, one after the other, until one fails.

        Args:
            call: calls the plugin.
            wanted: whether the work is still wanted. If not, the commands are stopped.

        Returns what the commands did: ``{command, code, seconds, output}`` for each that began, where ``code`` is
        ``None`` if the command was stopped; and why the copy is not ready, empty if it is.
        """
        loop = asyncio.get_running_loop()
        began, runs = loop.time(), list[dict[str, Any]]()
        for command in self.commands:
            start = loop.time()
            args = {"id": intent, "command": command, "directory": copy.root, "project": copy.top}
            while (ended := await call("setup.run", args)) is None and wanted():
                if loop.time() - began > self.seconds:
                    break
            if ended is None:
                ended = await call("setup.stop", {"id": intent})
            code, said = ended["code"], _tail(ended["output"], MAX_OUTPUT if ended["code"] != 0 else MAX_DONE)
            runs.append({"command": command, "code": code, "seconds": round(loop.time() - start, 1), "output": said})
            if code is None:
                late = f"took more than {self.seconds / 60:g} minutes"
                return runs, f"setup: `{command}` {late if wanted() else 'was stopped'}"
            if code != 0:
                last = next((line for line in reversed(said.splitlines()) if line.strip()), "it printed nothing")
                return runs, f"setup: `{command}` ended with code {code}: {last.strip()[:300]}"
        return runs, ""


def _tail(output: str, most: int) -> str:
    return output if len(output) <= most else "…" + output[-most:]
