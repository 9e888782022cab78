"""The effects ``copy.make`` and ``copy.collect``, which make a phantom's private copy and collect its changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from sidecar.agents.effects.runner import EffectKind
from sidecar.background.copies.copies import Copies, CopyError
from sidecar.background.copies.setup import Setup
from sidecar.background.effects import Repeatable
from sidecar.background.hosts.host import Call, HostAbsent, HostError
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.intent_effects import COLLECT, ISOLATE
from sidecar.processes import end_left

log = logging.getLogger("sidecar.background")

REST_LOOKS: Final = 50
"""How many times a stopped session is checked until it is idle."""

MAX_ENDED: Final = 10

MAKE_SECONDS: Final = 900.0
"""How long a large copy may take, and what the commands changed in it."""

_POLL_SECONDS: Final = 0.1


class CopyActs:
    """What the effects do with copies.

    Args:
        runner: returns the plugin that runs the commands of an intent, or raises ``HostAbsent`` until there is one.
        is_wanted: says whether an intent is still to begin.
        project: returns the id of a directory's project in OpenCode; empty if unknown.
        listed: see ``Copies.make``.
    """

    def __init__(
        self,
        copies: Copies,
        hosts: Hosts,
        runner: Callable[[str], Awaitable[Call]],
        is_wanted: Callable[[str], bool],
        project: Callable[[str], str],
        setup: Setup,
        listed: Sequence[str] = (),
    ) -> None:
        self._copies, self._hosts, self._setup, self._listed = copies, hosts, setup, listed
        self._runner, self._is_wanted, self._project = runner, is_wanted, project

    @property
    def kinds(self) -> dict[str, EffectKind]:
        longest = MAKE_SECONDS + (self._setup.seconds if self._setup.commands else 0.0)
        return {
            ISOLATE: Repeatable(self.isolate, longest_seconds=longest),
            COLLECT: Repeatable(self.collect, longest_seconds=MAKE_SECONDS),
        }

    async def isolate(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``copy.make``: makes a copy, and makes it ready with the user's commands. The result is a ``Copy``. If there
        are commands, ``setup`` says what they did, and ``failed`` that one failed. The result is ``{}`` outside of a
        repository, unless ``always``, and ``absent`` if the intent waits for an OpenCode."""
        intent, directory = args["intent"], args["directory"]
        before = args.get("continues") or {}
        old = before.get("copy") or {}
        if old and before["kept"] and await self._copies.is_whole(old["name"]):
            return dict(old)
        if not args.get("always") and not await self._copies.has_repository(directory):
            return {}
        try:
            call = await self._runner(intent) if self._setup.commands else None
        except HostAbsent:
            return {"absent": True}
        if call is not None:
            await call("setup.stop", {"id": intent})  # of an attempt that was cut off
        made = await self._copies.make(
            intent,
            directory,
            listed=self._listed,
            project=self._project(directory),
            name=old.get("name", ""),
            restore=before["intent"] if old and before["saved"] else "",
        )
        if call is None:
            return made._asdict()
        runs, failed = await self._setup.run(call, intent, made, lambda: self._is_wanted(intent))
        if failed:
            await self._copies.discard(intent, made.name)
            return {"failed": failed, "setup": runs}
        await self._copies.settle(made.name)
        return {**made._asdict(), "setup": runs}

    async def collect(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``copy.collect``: stores the result. Result: see ``Copies.collect``, or ``{"error": text, "code": code}`` if
        the copy was left in place. Both with ``ended``: the processes that a tool left running in the copy, and that
        were ended before."""
        if args["session"] is not None:
            await self._rest(args["session"], args["work"], stop=args["stop"])
        ended = await asyncio.to_thread(end_left, self._copies.place(args["name"]).resolve())
        about = {"ended": ended[:MAX_ENDED]} if ended else {}
        try:
            found = await self._copies.collect(args["intent"], args["name"])
        except CopyError as error:
            found = {"error": str(error), "code": error.code}
        try:
            await self._hosts.forget(args["work"])
        except HostError as error:
            log.info("OpenCode still lists the directory %s (%s)", args["work"], error)
        return {**found, **about}

    async def _rest(self, session: str, directory: str, *, stop: bool) -> None:
        """See that nothing in the copy makes more changes: ``stop`` the session, and end what it left running.

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
                raise HostError("the session did not stop, so its copy was left in place")
        try:
            await host.leave(session, directory=directory, is_last=True)
        except HostError as error:
            if not error.permanent and await host.status(session) != "absent":
                raise
            log.info("OpenCode keeps the directory of session %s in memory (%s)", session, error)
