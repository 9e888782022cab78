"""The effects of the orchestration. Each effect is one act on a host, and has a reconciler that asks the host what has
already happened.

Every message carries the key of its effect, and every session carries the id of its intent. So a host does nothing when
the same request is repeated after a crash or a lost answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import Done, EffectKind, NotDone, Reconciled
from sidecar.background.hosts.host import Host, HostAbsent, Part
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.rights import Rights
from sidecar.background.intents.intent_effects import ABORT, CHECK, CREATE, PROMPT
from sidecar.background.intents.notices import WAKE
from sidecar.background.intents.watch import CHECKED
from sidecar.background.said import Said

KEPT_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, *(0.5 for _ in range(18)))
"""The pauses, in seconds, after the looks for a message in the session's history: some 10 seconds in all."""

LATE_LOOKS: Final = 10
LATE_SECONDS: Final = 0.3
"""A session whose prompt was accepted a moment ago is checked ``LATE_LOOKS`` times, at intervals of
``LATE_SECONDS``.
"""


class Repeatable:
    """An ``EffectKind`` whose effect may simply be carried out again after an attempt that was cut off: it finds
    what it did, or a repetition changes nothing that matters."""

    effect_class: EffectClass = "idempotent"
    is_repeatable = True

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        return NotDone()


class _Kind(Repeatable):
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts


class Create(_Kind):
    """``opencode.create``: creates a phantom session for an intent, or reaches the one that it continues. Result:
    ``{"session": id}``, or ``absent`` if the intent waits for an OpenCode."""

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        try:
            if known := args.get("session"):
                await self._hosts.of(known).holds(known, key, directory=args["directory"])
                return {"session": known}
            session = await self._hosts.new(args.get("parent")).create(
                args["intent"],
                title=args["title"],
                directory=args["directory"],
                parent=args.get("parent"),
                agent=args.get("agent"),
                rights=Rights.of(args["rights"]) if args.get("rights") else None,
            )
        except HostAbsent:
            return {"absent": True}
        return {"session": session}


class Prompt(_Kind):
    """``opencode.prompt``: sends a prompt to a phantom session. Result: ``held`` if the session already had the prompt,
    or needs none because OpenCode continues the session by itself; ``absent`` if the prompt is waiting for an OpenCode.
    """

    def __init__(self, hosts: Hosts, said: Said) -> None:
        super().__init__(hosts)
        self._said = said

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        text, host = self._said.restore(args.get("said", ""), args["text"]), self._hosts.of(args["session"])
        try:
            if args.get("waits") and await host.goes_on(args["session"]):
                return {"held": True}
            sent = await host.prompt(
                args["session"],
                [Part(text, key, is_prompt=True)],
                directory=args["directory"],
                agent=args.get("agent"),
                model=args.get("model"),
            )
        except HostAbsent:
            if not args.get("waits"):
                raise
            return {"absent": True}
        return {} if sent else {"held": True}

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        args = effect.args
        held = await self._hosts.of(args["session"]).holds(args["session"], key, directory=args["directory"])
        return Done({"held": True}) if held else NotDone()


class Abort(_Kind):
    """``opencode.abort``: stops a phantom session. With ``late``, also stops a turn that starts after the abort,
    because OpenCode had already accepted its prompt."""

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        session, directory = effect.args["session"], effect.args["directory"]
        host = self._hosts.of(session)
        await host.abort(session, directory=directory)
        for _ in range(LATE_LOOKS if effect.args.get("late") else 0):
            await asyncio.sleep(LATE_SECONDS)
            if await host.status(session) == "busy":
                await host.abort(session, directory=directory)
        return {}


class Wake(_Kind):
    """``opencode.wake``: sends notices to a user's session, only while the session is idle, and only through the host
    of the session.

    Result: ``{"status": "sent" | "busy" | "absent"}``, and after ``sent`` also ``kept``: whether the session's history
    has the message. A busy session or an absent OpenCode is not a failure. The agent tries again when the session's
    turn ends, or when an OpenCode for the session is connected again.
    """

    def __init__(self, hosts: Hosts, said: Said) -> None:
        super().__init__(hosts)
        self._said = said

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        session, host = args["session"], self._hosts.of(args["session"])
        status = await host.status(session)
        if status != "idle":
            return {"status": status}
        about = host.about(session)
        await host.prompt(
            session,
            [Part(self._said.in_message(each.get("said", ""), each["text"]), each["key"]) for each in args["texts"]],
            directory=about.get("directory", ""),
            agent=about.get("agent"),
            model=about.get("model"),
            reply=bool(args.get("wake", True)),
        )
        keys = [each["key"] for each in args["texts"]]
        return {"status": "sent", "kept": await is_kept(host, session, keys, about.get("directory", ""))}


async def is_kept(host: Host, session: str, keys: Sequence[str], directory: str) -> bool:
    """Whether a session's history has every message. OpenCode 1 saves a message a moment after it accepts it."""
    for pause in KEPT_PAUSES:
        held = [await host.holds(session, key, directory=directory) for key in keys]
        if all(held):
            return True
        await asyncio.sleep(pause)
    return False


class Check(_Kind):
    """``opencode.check``: asks what a phantom's session did, if the log does not show it. Result: a ``Look``."""

    effect_class: EffectClass = "safe"

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        look = await self._hosts.of(args["session"]).look(args["session"], directory=args["directory"])
        return {**look._asdict(), **{name: args[name] for name in CHECKED if name in args}}


def effect_kinds(hosts: Hosts, said: Said) -> Mapping[str, EffectKind]:
    one, other = Prompt(hosts, said), Wake(hosts, said)
    return {CREATE: Create(hosts), PROMPT: one, ABORT: Abort(hosts), WAKE: other, CHECK: Check(hosts)}
