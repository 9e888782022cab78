"""The effects that notify a person or bring a person's answer to OpenCode.

``opencode.toast`` and ``notify.send`` are at-least-once: nobody can ask a screen or a phone whether a message arrived,
so after an interrupted attempt the message is sent again. ``opencode.answer`` takes effect once: OpenCode accepts the
first answer to a request and refuses later ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sidecar.agents.effects.policy import Effect
from sidecar.background.effects import Repeatable
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.messages import for_person
from sidecar.background.people import teller
from sidecar.background.people.channels import Channels
from sidecar.background.people.doubts import DECISIONS
from sidecar.background.said import Said


class Toast(Repeatable):
    """``opencode.toast``: shows a toast in OpenCode. Result: ``{"shown": bool}``.

    ``keep`` gets each toast that the host cannot show, so that a terminal which reads them can. Nobody knows whether
    there is such a terminal, so these toasts do not count as shown.
    """

    def __init__(self, hosts: Hosts, keep: Callable[[dict[str, str]], None]) -> None:
        self._hosts, self._keep = hosts, keep

    async def run(self, effect: Effect, key: str) -> dict[str, Any]:
        toast = {name: effect.args[name] for name in ("session", "title", "text")}
        shown = await self._hosts.of(toast["session"]).toast(**toast)
        if not shown:
            self._keep({"id": key, **toast})
        return {"shown": shown}


class Answer(Repeatable):
    """``opencode.answer``: answers an ask of OpenCode. Result: ``{"status": "answered" | "gone"}``.

    OpenCode refuses a second answer, and the captured events then show how the request was answered.
    """

    def __init__(self, hosts: Hosts, said: Said) -> None:
        self._hosts, self._said = hosts, said

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
