"""The effects of background work; for its copies, see ``copies/effects.py``. Most are one act on a host of
OpenCode, which finds out what of it has already happened.

Every message carries the key of its effect, and every session carries the id of its intent. So a host does nothing when
the same request is repeated after a crash or a lost answer. A toast is then shown again, and ``notify.send`` sends its
message again: nobody can ask a screen or a phone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import EffectKind, Reconciled
from sidecar.background.hosts.headless import LINK_SECONDS, START_SECONDS
from sidecar.background.hosts.host import Host, HostAbsent, HostError, Part
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.plugins import PluginMissing
from sidecar.background.hosts.rights import Rights
from sidecar.background.intents.intent_effects import ABORT, CHECK, CREATE, PROMPT
from sidecar.background.intents.texts import result_of
from sidecar.background.intents.watch import CHECKED
from sidecar.background.messages.answers import ANSWER
from sidecar.background.messages.deliver import WAKE
from sidecar.background.messages.person import SHOW
from sidecar.background.messages.wording import for_person
from sidecar.background.people import sentences
from sidecar.background.people.channels import Channels
from sidecar.background.unredacted import Said

log = logging.getLogger("sidecar.background")

SAVED_PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.4, *(0.5 for _ in range(18)))
"""The pauses, in seconds, after the looks for a message in the session's history: some 10 seconds in all."""

START_LONGEST: Final = START_SECONDS + 3 * LINK_SECONDS
"""How long an attempt may take that may have to wait for a headless OpenCode: for its start, its link, and the link of
the directory. On a busy machine, each takes long, and an attempt that is cut off counts."""

LATE_LOOKS: Final = 10
LATE_SECONDS: Final = 0.3
"""A session whose prompt was accepted a moment ago is checked ``LATE_LOOKS`` times, at intervals of
``LATE_SECONDS``.
"""


Act = Callable[[dict[str, Any], str], Awaitable[dict[str, Any]]]
"""Carries out an effect, given its arguments and key; returns its result."""


class Repeatable(EffectKind):
    """An effect that may simply be carried out again after an attempt that was cut off: ``act`` finds what it did, or a
    repetition changes nothing that matters."""

    is_repeatable = True

    def __init__(self, act: Act, effect_class: EffectClass = "idempotent", longest_seconds: float = 0.0) -> None:
        self._act, self.effect_class, self.longest_seconds = act, effect_class, longest_seconds

    async def run(self, effect: Effect, key: str) -> Any:
        return await self._act(effect.args, key)

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        return Reconciled(False)


class Prompt(Repeatable):
    """``opencode.prompt``. A prompt that was sent is not sent again, even if its words are no longer known."""

    def __init__(self, acts: HostActs) -> None:
        super().__init__(acts.prompt, longest_seconds=START_LONGEST)
        self._hosts = acts.hosts

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        args = effect.args
        present = await self._hosts.of(args["session"]).holds(args["session"], key, directory=args["directory"])
        return Reconciled(present, {"present": True})


class HostActs:
    """What the effects do on the hosts. ``keep`` gets each toast that no host can show, so that a terminal which reads
    them can. Nobody knows whether there is such a terminal, so these toasts do not count as shown.
    """

    def __init__(self, hosts: Hosts, said: Said, keep: Callable[[dict[str, str]], None]) -> None:
        self.hosts, self._said, self._keep = hosts, said, keep

    @property
    def kinds(self) -> dict[str, EffectKind]:
        return {
            CREATE: Repeatable(self.create, longest_seconds=START_LONGEST),
            PROMPT: Prompt(self),
            ABORT: Repeatable(self.abort, longest_seconds=START_LONGEST),
            CHECK: Repeatable(self.check, "safe", longest_seconds=START_LONGEST),
            WAKE: Repeatable(self.wake),
            SHOW: Repeatable(self.toast),
            ANSWER: Repeatable(self.answer),
        }

    async def toast(self, given: Mapping[str, Any], key: str) -> dict[str, Any]:
        """``opencode.toast``: shows the ``title`` and ``text`` in a ``session``. Result: ``{"shown": bool}``."""
        toast = {name: str(given[name]) for name in ("session", "title", "text")}
        shown = await self.hosts.of(toast["session"]).toast(**toast)
        if not shown:
            self._keep({"id": key, **toast})
        return {"shown": shown}

    async def create(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.create``: creates a phantom session for an intent, or reaches the one that it continues, and shows
        the ``toast``. Result: ``{"session": id}``, ``absent`` if the intent waits for an OpenCode, or ``missing`` if
        a plugin is, with the reason."""
        try:
            if session := args.get("session"):
                await self.hosts.of(session).holds(session, key, directory=args["directory"])
            else:
                parent, rights = args.get("parent"), None
                if args.get("rights"):
                    rights = Rights.of(args["rights"])
                elif parent:  # an agent of ours asked for the work, such as the gardener
                    rights = await self.hosts.of(parent).rights(parent, None, work=args["intent"])
                session = await self.hosts.new(parent).create(
                    args["intent"],
                    title=args["title"],
                    directory=args["directory"],
                    parent=parent,
                    agent=args.get("agent"),
                    rights=rights,
                    project=args.get("project", ""),
                )
        except HostAbsent:
            return {"absent": True}
        except PluginMissing as error:
            return {"missing": str(error)}
        if toast := args.get("toast"):
            try:
                await self.toast(toast, key)
            except HostError as error:
                log.info("nobody was shown that %s started (%s)", args["intent"], error)
        return {"session": session}

    async def prompt(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.prompt``: sends a prompt to a phantom session. Result: ``present`` if the session already had the
        prompt, or needs none because OpenCode continues the session by itself; ``absent`` if the prompt is waiting for
        an OpenCode."""
        text, host = self._said.restore(args.get("said", ""), args["text"]), self.hosts.of(args["session"])
        try:
            if args.get("waits") and await host.goes_on(args["session"]):
                return {"present": True}
            sent = await host.prompt(
                args["session"],
                [Part(text, key, is_prompt=True)],
                directory=args["directory"],
                agent=args.get("agent"),
                model=args.get("model"),
            )
        except HostAbsent:
            return {"absent": True}
        return {} if sent else {"present": True}

    async def abort(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.abort``: stops a phantom session, and what it left running. With ``late``, also stops a turn that
        starts after the abort, because OpenCode had already accepted its prompt. With ``isolated``, the end of its
        copy follows, which ends what it left running, and reports nothing to the session."""
        session, directory = args["session"], args["directory"]
        host = self.hosts.of(session)
        await host.abort(session, directory=directory)
        if not args.get("isolated"):
            await host.leave(session, directory=directory, is_last=False)
        for _ in range(LATE_LOOKS if args.get("late") else 0):
            await asyncio.sleep(LATE_SECONDS)
            if await host.status(session) == "busy":
                await host.abort(session, directory=directory)
        return {}

    async def wake(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.wake``: sends messages to a user's session, only while the session is idle, and only through the
        host of the session.

        Result: ``{"status": "sent" | "busy" | "absent"}``, and after ``sent`` also ``saved``: whether the session's
        history has the message. A busy session or an absent OpenCode is not a failure. The agent tries again when the
        session's turn ends, or when an OpenCode for the session is connected again.
        """
        session, host = args["session"], self.hosts.of(args["session"])
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
        return {"status": "sent", "saved": await is_saved(host, session, keys, about.get("directory", ""))}

    async def check(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.check``: asks what a phantom's session did, if the log does not show it. Result: a ``Look``, whose
        text is cut as a result, because the log keeps no effect's result that is much longer."""
        look = await self.hosts.of(args["session"]).look(args["session"], directory=args["directory"])
        look = look._replace(text=result_of(self._said.clean(look.text), args["session"]))
        return {**look._asdict(), **{name: args[name] for name in CHECKED if name in args}}

    async def answer(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.answer``: answers an ask of OpenCode. Result: ``{"status": "answered" | "gone"}``.

        OpenCode refuses a second answer, and the captured events then show how the request was answered.
        """
        answer = [self._said.restore(args.get("said", ""), each) for each in args["answer"]]
        session = args["session"]
        return {"status": await self.hosts.of(session).answer(session, args["request"], args["kind"], answer)}


async def is_saved(host: Host, session: str, keys: Sequence[str], directory: str) -> bool:
    """Whether a session's history has every message. OpenCode 1 saves a message a moment after it accepts it."""
    for pause in SAVED_PAUSES:
        present = [await host.holds(session, key, directory=directory) for key in keys]
        if all(present):
            return True
        await asyncio.sleep(pause)
    return False


async def send(
    channels: Channels, link: Callable[[str], str | None], args: Mapping[str, Any], key: str
) -> dict[str, Any]:
    """``notify.send``: sends a message on a channel to a person. Result: ``{"channel": name}``."""
    given = args.get("checkpoints", ())
    links = {each: url for each in given if (url := link(each))}
    text = for_person(args["text"], link=links.get(given[0]) if len(given) == 1 else None)
    if since := args.get("since"):
        text = f"{text}\n\nWaiting {sentences.since(since)}."
    if given and not links:
        text += "\n" + "\n".join(f"`durable-stream checkpoints {each}` shows how to answer it." for each in given)
    if len(given) > 1 and links:
        text = "\n".join([text, "", *(f"Answer {each}: {url}" for each, url in links.items())])
    await channels.send(args["channel"], args["title"], text)
    return {"channel": args["channel"]}
