"""The effects of background work; for its worktrees, see ``worktrees/effects.py``. Most are one act on a host of
OpenCode, which finds out what of it has already happened.

Every message carries the key of its effect, and every session carries the id of its intent. So a host does nothing when
the same request is repeated after a crash or a lost answer. A toast is then shown again, and ``notify.send`` sends its
message again: nobody can ask a screen or a phone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import Done, EffectKind, NotDone, Reconciled
from sidecar.background.hosts.host import Host, HostAbsent, HostError, Part
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.rights import Rights
from sidecar.background.intents.intent_effects import ABORT, CHECK, CREATE, PROMPT, WAKE
from sidecar.background.intents.watch import CHECKED
from sidecar.background.messages import for_person
from sidecar.background.people import teller
from sidecar.background.people.alerts import TOAST
from sidecar.background.people.channels import Channels
from sidecar.background.people.checkpoints import ANSWER
from sidecar.background.people.doubts import DECISIONS
from sidecar.background.said import Said

log = logging.getLogger("sidecar.background")

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


class Toast(_Kind):
    """``opencode.toast``: shows a toast in OpenCode. Result: ``{"shown": bool}``.

    ``keep`` gets each toast that the host cannot show, so that a terminal which reads them can. Nobody knows whether
    there is such a terminal, so these toasts do not count as shown.
    """

    def __init__(self, hosts: Hosts, keep: Callable[[dict[str, str]], None]) -> None:
        super().__init__(hosts)
        self._keep = keep

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        return {"shown": await self.show(effect.args, key)}

    async def show(self, given: Mapping[str, Any], key: str) -> bool:
        """Show the ``title`` and ``text`` in a ``session``.

        Raises:
            HostError: the host cannot be asked.
        """
        toast = {name: str(given[name]) for name in ("session", "title", "text")}
        shown = await self._hosts.of(toast["session"]).toast(**toast)
        if not shown:
            self._keep({"id": key, **toast})
        return shown


class Create(_Kind):
    """``opencode.create``: creates a phantom session for an intent, or reaches the one that it continues, and shows the
    ``toast``. Result: ``{"session": id}``, or ``absent`` if the intent waits for an OpenCode."""

    def __init__(self, hosts: Hosts, toast: Toast) -> None:
        super().__init__(hosts)
        self._toast = toast

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        try:
            if session := args.get("session"):
                await self._hosts.of(session).holds(session, key, directory=args["directory"])
            else:
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
        if toast := args.get("toast"):
            try:
                await self._toast.show(toast, key)
            except HostError as error:
                log.info("nobody was shown that %s started (%s)", args["intent"], error)
        return {"session": session}


class _Speaking(_Kind):
    def __init__(self, hosts: Hosts, said: Said) -> None:
        super().__init__(hosts)
        self._said = said


class Prompt(_Speaking):
    """``opencode.prompt``: sends a prompt to a phantom session. Result: ``held`` if the session already had the prompt,
    or needs none because OpenCode continues the session by itself; ``absent`` if the prompt is waiting for an OpenCode.
    """

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


class Wake(_Speaking):
    """``opencode.wake``: sends notices to a user's session, only while the session is idle, and only through the host
    of the session.

    Result: ``{"status": "sent" | "busy" | "absent"}``, and after ``sent`` also ``kept``: whether the session's history
    has the message. A busy session or an absent OpenCode is not a failure. The agent tries again when the session's
    turn ends, or when an OpenCode for the session is connected again.
    """

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


class Answer(_Speaking):
    """``opencode.answer``: answers an ask of OpenCode. Result: ``{"status": "answered" | "gone"}``.

    OpenCode refuses a second answer, and the captured events then show how the request was answered.
    """

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        answer = [self._said.restore(args.get("said", ""), each) for each in args["answer"]]
        session = args["session"]
        return {"status": await self._hosts.of(session).answer(session, args["request"], args["kind"], answer)}


class Resolve(Repeatable):
    """``effect.resolve``: carries out what a person decided about an effect in doubt. Result: as ``opencode.answer``.

    The decision is in the log in one batch with this request, so it survives every process. The ledger knows each
    decision by its mark, so it is carried out once.
    """

    def __init__(self, resolve: Callable[..., Awaitable[bool]]) -> None:
        self._resolve = resolve

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        which, how = {**args["effect"], "request": args["request"]}, DECISIONS[args["answer"][0]]
        return {"status": "answered" if await self._resolve(which, how, by=args["by"], mark=key) else "gone"}


class Send(Repeatable):
    """``notify.send``: sends a message on a channel to a person. Result: ``{"channel": name}``."""

    def __init__(self, channels: Channels, link: Callable[[str], str | None] = lambda checkpoint: None) -> None:
        self._channels, self._link = channels, link

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        given = args.get("checkpoints") or [args.get("checkpoint")]
        links = {each: link for each in given if each and (link := self._link(each))}
        one = next(iter(links.values())) if len(given) == 1 and links else None
        text = for_person(args["text"], link=one)
        if since := args.get("since"):
            text = f"{text}\n\nWaiting {teller.since(since)}."
        if len(given) > 1 and links:
            text = "\n".join([text, "", *(f"Answer {each}: {link}" for each, link in links.items())])
        await self._channels.send(args["channel"], args["title"], text)
        return {"channel": args["channel"]}


class Look(Repeatable):
    """``opencode.look``: whether a terminal of OpenCode shows a session now. Result: ``{"looks": bool}``."""

    def __init__(self, shown: Callable[[], Iterable[str]]) -> None:
        self._shown = shown

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        return {"looks": effect.args["session"] in self._shown()}


def effect_kinds(hosts: Hosts, said: Said, toasts: Callable[[dict[str, str]], None]) -> Mapping[str, EffectKind]:
    """The kinds that act on a host; ``toasts`` gets each toast that no host can show."""
    toast = Toast(hosts, toasts)
    return {
        CREATE: Create(hosts, toast),
        PROMPT: Prompt(hosts, said),
        ABORT: Abort(hosts),
        CHECK: Check(hosts),
        WAKE: Wake(hosts, said),
        TOAST: toast,
        ANSWER: Answer(hosts, said),
    }
