"""The effects ``worktree.add`` and ``worktree.collect``, which create a phantom's worktree and collect the phantom's
changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from sidecar.orchestrator.host import Host, HostError
from sidecar.orchestrator.intent_effects import COLLECT, ISOLATE
from sidecar.orchestrator.worktrees import WorktreeError, Worktrees
from sidecar.runtime.effects.policy import Effect, EffectClass
from sidecar.runtime.effects.runner import EffectKind, NotDone, Reconciled

log = logging.getLogger("sidecar.orchestrator")

REST_LOOKS: Final = 50
"""How many times a stopped session is checked until it is idle."""

_POLL_SECONDS: Final = 0.1


class Isolate:
    """``worktree.add``: creates a worktree. Result: ``{directory, root, base}``, or ``{}`` if there is no git
    repository."""

    effect_class: EffectClass = "idempotent"

    def __init__(self, worktrees: Worktrees) -> None:
        self._worktrees = worktrees

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        """See ``EffectKind``."""
        found = await self._worktrees.add(effect.args["intent"], effect.args["directory"])
        return {} if found is None else found._asdict()

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        """See ``EffectKind``. The worktree can be created again, because nobody uses it before this effect has
        ended."""
        return NotDone()


class Collect:
    """``worktree.collect``: saves the changes. Result: see ``Worktrees.collect``, or ``{"error": text,
    "code": code}`` if the worktree was left in place."""

    effect_class: EffectClass = "idempotent"

    def __init__(self, worktrees: Worktrees, host: Host) -> None:
        self._worktrees, self._host = worktrees, host

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        """See ``EffectKind``."""
        args = effect.args
        if args["session"] is not None and args["stop"]:
            await self._rest(args["session"], args["work"])
        try:
            return await self._worktrees.collect(args["intent"], args["repository"], args["base"], args.get("folder"))
        except WorktreeError as error:
            return {"error": str(error), "code": error.code}

    async def _rest(self, session: str, directory: str) -> None:
        """Stop the session, so that it makes no more changes.

        Raises:
            HostError: the session may still be working.
        """
        try:
            await self._host.abort(session, directory=directory)
        except HostError as error:
            log.info("session %s was not stopped (%s)", session, error)
        for _ in range(REST_LOOKS):
            if await self._host.status(session) != "busy":
                return
            await asyncio.sleep(_POLL_SECONDS)
        raise HostError("the session did not stop, so its worktree was left in place")

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        """See ``EffectKind``. Repeating the effect gives the same result."""
        return NotDone()


def worktree_kinds(worktrees: Worktrees, host: Host) -> Mapping[str, EffectKind]:
    """Both effects, by kind."""
    return {ISOLATE: Isolate(worktrees), COLLECT: Collect(worktrees, host)}
