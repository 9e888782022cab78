"""The effects that notify a person or bring a person's answer to OpenCode.

``opencode.toast`` and ``notify.send`` are at-least-once: nobody can ask a screen or a phone whether a message arrived,
so after an interrupted attempt the message is sent again. ``opencode.answer`` takes effect once: OpenCode accepts the
first answer to a request and refuses later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import EffectKind, Reconciled, Unknown
from sidecar.background.effects import Repeatable
from sidecar.background.hosts.host import Host
from sidecar.background.messages import for_person
from sidecar.background.people import teller
from sidecar.background.people.alerts import LOOK, SEND, TOAST
from sidecar.background.people.channels import Channels
from sidecar.background.people.checkpoints import ANSWER
from sidecar.background.said import Said


class Answering(Host, Protocol):
    """A host that can answer OpenCode's asks."""

    async def answer(self, session: str, request: str, kind: str, answer: list[str]) -> str:
        """Answer a ``permission`` (``once``, ``always``, or ``reject`` and a message) or a ``question``.

        Returns ``answered``, or ``gone`` if nothing is waiting for the answer.

        Raises:
            HostError: OpenCode could not be asked.
        """
        ...


class Toast:
    """``opencode.toast``: shows a toast in OpenCode. Result: ``{"shown": bool}``.

    ``keep`` gets each toast that the host cannot show, so that a terminal which reads them can. Nobody knows whether
    there is such a terminal, so these toasts do not count as shown.
    """

    effect_class: EffectClass = "idempotent"

    def __init__(self, host: Host, keep: Callable[[dict[str, str]], None]) -> None:
        self._host, self._keep = host, keep

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        toast = {name: effect.args[name] for name in ("session", "title", "text")}
        shown = await self._host.toast(**toast)
        if not shown:
            self._keep({"id": key, **toast})
        return {"shown": shown}

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        return Unknown("a toast leaves no trace that could be checked")


class Answer(Repeatable):
    """``opencode.answer``: answers an ask of OpenCode. Result: ``{"status": "answered" | "gone"}``.

    OpenCode refuses a second answer, and the captured events then show how the request was answered.
    """

    def __init__(self, host: Answering, said: Said) -> None:
        self._host, self._said = host, said

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        args = effect.args
        answer = [self._said.restore(args.get("said", ""), each) for each in args["answer"]]
        return {"status": await self._host.answer(args["session"], args["request"], args["kind"], answer)}


class Send:
    """``notify.send``: sends a message on a channel to a person. Result: ``{"channel": name}``."""

    effect_class: EffectClass = "idempotent"

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

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        return Unknown("a channel cannot be asked whether the message arrived")


class Look(Repeatable):
    """``opencode.look``: whether a terminal of OpenCode shows a session now. Result: ``{"looks": bool}``."""

    def __init__(self, shown: Callable[[], Iterable[str]]) -> None:
        self._shown = shown

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        return {"looks": effect.args["session"] in self._shown()}


def notify_kinds(
    host: Answering,
    channels: Channels,
    link: Callable[[str], str | None],
    keep: Callable[[dict[str, str]], None],
    said: Said,
    shown: Callable[[], Iterable[str]],
) -> Mapping[str, EffectKind]:
    """The effects, carried out on ``host`` and the configured channels. ``link`` makes the link that answers a
    checkpoint; for ``keep`` see ``Toast``. ``shown`` lists the sessions that terminals show now."""
    return {LOOK: Look(shown), TOAST: Toast(host, keep), ANSWER: Answer(host, said), SEND: Send(channels, link)}
