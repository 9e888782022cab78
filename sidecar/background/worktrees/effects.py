"""The effects ``worktree.add`` and ``worktree.collect``, which create a phantom's worktree and collect the phantom's
changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sidecar.agents.effects.runner import EffectKind
from sidecar.background.effects import Repeatable
from sidecar.background.hosts.host import HostAbsent, HostError
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.intent_effects import COLLECT, ISOLATE
from sidecar.background.worktrees.setup import Setup, end
from sidecar.background.worktrees.worktrees import WorktreeError, Worktrees
from sidecar.processes import end_left

log = logging.getLogger("sidecar.background")

REST_LOOKS: Final = 50
"""How many times a stopped session is checked until it is idle."""

MAX_ENDED: Final = 10

MAKE_SECONDS: Final = 300.0
"""How long git may need for a large worktree, and for what the commands changed in it."""

_POLL_SECONDS: Final = 0.1


class WorktreeActs:
    """What the effects do with worktrees.

    ``variables`` returns the environment of the OpenCode that asked for an intent, or raises ``HostAbsent`` until one
    that has it is open. ``is_wanted`` says whether an intent is still to begin.
    """

    def __init__(
        self,
        worktrees: Worktrees,
        hosts: Hosts,
        variables: Callable[[str], Awaitable[Mapping[str, str]]],
        is_wanted: Callable[[str], bool],
        setup: Setup,
    ) -> None:
        self._worktrees, self._hosts, self._setup = worktrees, hosts, setup
        self._variables, self._is_wanted = variables, is_wanted

    @property
    def kinds(self) -> dict[str, EffectKind]:
        longest = MAKE_SECONDS + (self._setup.seconds if self._setup.commands else 0.0)
        return {
            ISOLATE: Repeatable(self.isolate, longest_seconds=longest),
            COLLECT: Repeatable(self.collect),
        }

    async def isolate(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``worktree.add``: creates a worktree, and makes it ready with the user's commands. The result is a
        ``Worktree``. If there are commands, ``setup`` says what they did, and ``failed`` that one failed. The result is
        ``{}`` without a git repository, and ``absent`` if the intent waits for an OpenCode."""
        intent = args["intent"]
        note = self._worktrees.root(intent).with_suffix(".setup")
        await asyncio.to_thread(end, note)
        before = args.get("continues")
        if not before or not before["worktree"]:  # the work before had no worktree
            before = None
        elif await self._worktrees.kept(before):
            return dict(before["worktree"])
        try:
            variables = await self._variables(intent) if self._setup.commands else {}
        except HostAbsent:
            return {"absent": True}
        made = await self._worktrees.add(intent, args["directory"], before)
        if made is None or not self._setup.commands:
            return {} if made is None else made._asdict()
        runs, failed = await self._setup.run(
            Path(made.root), made.top, variables, note, lambda: self._is_wanted(intent)
        )
        if failed:
            await self._worktrees.discard(intent, made.root, made.repository)
            return {"failed": failed, "setup": runs}
        return {**(await self._worktrees.settle(intent, made))._asdict(), "setup": runs}

    async def collect(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``worktree.collect``: saves the changes. Result: see ``Worktrees.collect``, or ``{"error": text,
        "code": code}`` if the worktree was left in place. Both with ``ended``: the processes that a tool left running
        in the worktree, and that were ended before."""
        if args["session"] is not None:
            await self._rest(args["session"], args["work"], stop=args["stop"])
        name = args.get("name") or args["intent"]
        ended = await asyncio.to_thread(end_left, self._worktrees.root(name).resolve())
        about = {"ended": ended[:MAX_ENDED]} if ended else {}
        try:
            found = await self._worktrees.collect(
                args["intent"], args["repository"], args["base"], args.get("folder"), name
            )
        except WorktreeError as error:
            return {"error": str(error), "code": error.code, **about}
        return {**found, **about}

    async def _rest(self, session: str, directory: str, *, stop: bool) -> None:
        """See that nothing in the worktree makes more changes: ``stop`` the session, and end what it left running.

        Raises:
            HostError: the session, or what it left running, may still be working.
        """
        host = self._hosts.of(session)
        for _ in range(REST_LOOKS if stop else 0):
            try:
                await host.abort(session, directory=directory)
            except HostError as error:
                log.info("session %s was not stopped (%s)", session, error)
            if await host.status(session) != "busy":
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            if stop:
                raise HostError("the session did not stop, so its worktree was left in place")
        try:
            await host.leave(session, directory=directory, is_last=True)
        except HostError as error:
            if not error.permanent and await host.status(session) != "absent":
                raise
            log.info("OpenCode keeps the directory of session %s in memory (%s)", session, error)
