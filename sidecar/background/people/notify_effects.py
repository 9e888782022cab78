"""The effects that reach a person outside OpenCode, or carry out a person's decision.

``notify.send`` is at-least-once: nobody can ask a phone whether a message arrived, so after an interrupted attempt the
message is sent again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sidecar.agents.effects.policy import Effect
from sidecar.background.effects import Repeatable
from sidecar.background.messages import for_person
from sidecar.background.people import teller
from sidecar.background.people.channels import Channels
from sidecar.background.people.doubts import DECISIONS


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
