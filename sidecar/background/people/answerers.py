"""Who asks for something that only a person may ask for, as far as this machine can tell, and whether they may.

A person sits at a terminal whose foreground process asks, or uses OpenCode's own terminal, the page or the phone's
link. Models run commands without a terminal. This is a fence for them, not a lock: a process of the same user can make
a terminal of its own and leave everything that shows where it comes from.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeVar

from bridge.opencode.link.protocol import RequestError
from sidecar.config import Deed
from sidecar.link.local import ASKER, PEER
from sidecar.processes import is_below, place_of

log = logging.getLogger("sidecar.background")

A = TypeVar("A")

_PURPOSE: Final = "durable-stream answer from the list 1"


class Who(NamedTuple):
    """``by`` and ``via`` as in ``Message``."""

    by: str
    via: dict[str, Any]


LINK: Final = Who("link", {"channel": "link"})
IN_OPENCODE: Final = Who("user", {"channel": "opencode"})


class Answerers:
    """``linked`` returns the pids of the linked OpenCode processes; ``scripts_may`` is what needs no person; ``token``
    reads the home's token."""

    def __init__(
        self, linked: Callable[[], Iterable[int]], scripts_may: Collection[Deed], token: Callable[[], str]
    ) -> None:
        self._linked, self._scripts_may, self._token = linked, scripts_may, token

    def only(self, deed: Deed, handler: Callable[[A], Any]) -> Callable[[A], Awaitable[Any]]:
        """The handler of a request, which may be async, that only those may send who may do the deed."""

        async def judged(args: A) -> Any:
            await self.judged(deed, getattr(args, "intent", ""), (), getattr(args, "proof", ""))
            found = handler(args)
            return await found if isawaitable(found) else found

        return judged

    async def judged(
        self, deed: Deed, about: str, words: Sequence[str] = (), proof: str = "", channel: str = "command-line"
    ) -> Who:
        """Who asks for the deed. ``proof`` shows that a person asked in the list of OpenCode's terminal.

        Raises:
            RequestError: they may not.
        """
        if (asker := ASKER.get()) is not None:  # `[machines]` says what is allowed there
            by = "user" if asker.by == "user" else "process"
            return Who(by, {"channel": "machine", "machine": asker.machine})
        if (pid := PEER.get()) is None:
            return Who("process", {"channel": "nats"})  # `[worker]` says what is allowed there
        if proof and hmac.compare_digest(proof, proof_of(self._token(), about, words)):
            return Who("user", {"channel": "list", "pid": pid})
        place, why = await asyncio.to_thread(at_terminal, pid, frozenset(self._linked()))
        via = {"channel": channel, "pid": pid, "tty": place}
        if not why:
            return Who("user", via)
        if deed in self._scripts_may:
            return Who("process", via)
        log.warning("refused to %s: process %d asked, and %s", deed, pid, why)
        raise RequestError(
            "needs-person",
            f"only a person may {deed}, and {why}; run the command in the foreground of your own terminal (`ssh -t`), "
            f'or use the page or OpenCode; scripts need `scripts_may = ["{deed}"]` in [link] of config.toml',
        )


def at_terminal(pid: int, linked: Collection[int]) -> tuple[str, str]:
    """The terminal of a process, and why this shows no person; empty if it does."""
    if (place := place_of(pid) if pid else None) is None:
        return "", "the system does not say which process asks"
    if not place.terminal:
        return "", "the command has no terminal"
    if place.foreground != place.group:
        return place.terminal, "the command is not in its terminal's foreground"
    groups = {beside.group for beside in map(place_of, linked) if beside is not None}
    if place.group in groups or is_below(pid, linked):
        return place.terminal, "an OpenCode started the command"
    return place.terminal, ""


def proof_of(token: str, about: str, words: Sequence[str]) -> str:
    """The proof that the list in OpenCode's terminal sends with an answer, or, without ``words``, a cancellation."""
    text = "\0".join((_PURPOSE, about, *words)).encode("utf-8", "surrogatepass")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()
