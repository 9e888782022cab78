"""Who gave an answer, as far as this machine can tell, and whether whoever it is may answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from bridge.opencode.link.protocol import RequestError
from sidecar.link.caller import PEER, Caller, find_caller

log = logging.getLogger("sidecar.background")

_PURPOSE: Final = "durable-stream answer from the list 1"


class Who(NamedTuple):
    """``by`` and ``via`` as in ``Checkpoint``."""

    by: str
    via: dict[str, Any]


LINK: Final = Who("link", {"channel": "link"})
IN_OPENCODE: Final = Who("user", {"channel": "opencode"})


class Answerers:
    """``linked`` returns the pids of the linked OpenCode processes; ``token`` reads the home's token."""

    def __init__(self, linked: Callable[[], Iterable[int]], may_answer: bool, token: Callable[[], str]) -> None:
        self._linked, self._may_answer, self._token = linked, may_answer, token

    async def of_command(self, checkpoint: str, answer: Sequence[str], proof: str) -> Who:
        """Who gave this answer with the command line. ``proof`` shows that a person gave it in OpenCode's terminal.

        Raises:
            RequestError: an OpenCode started the process, and the setting does not allow that.
        """
        caller = await self._caller()
        if caller is None:
            return Who("process", {"channel": "command-line"})
        pid, tty, is_below = caller
        if proof and hmac.compare_digest(proof, proof_of(self._token(), checkpoint, answer)):
            return Who("user", {"channel": "list", "pid": pid})
        via = {"channel": "command-line", "pid": pid, "tty": tty}
        if not is_below:
            return Who("user" if tty else "process", via)
        if self._may_answer:
            return Who("agent", via)
        log.warning("refused an answer to %s: an OpenCode started process %d, which gave it", checkpoint, pid)
        raise RequestError(
            "agent-answer",
            f"{checkpoint} was not answered: an OpenCode started this command, and a model must not answer for a "
            "person; answer in OpenCode or in another terminal, or set `agents_may_answer = true` in [link]",
        )

    async def refuse_agent(self, what: str) -> None:
        """Refuse a request that only a person may send, if an OpenCode started the process that sent it; ``what`` says
        what was not done.

        Raises:
            RequestError: it did, and the setting does not allow that.
        """
        caller = await self._caller()
        if caller is not None and caller.is_below_opencode and not self._may_answer:
            log.warning("%s: an OpenCode started process %d, which asked for it", what, caller.pid)
            why = "an OpenCode started this command, and a model must not decide this for a person"
            raise RequestError("agent-answer", f"{what}: {why}; run it in another terminal")

    async def _caller(self) -> Caller | None:
        peer = PEER.get()
        return None if peer is None else await asyncio.to_thread(find_caller, peer, frozenset(self._linked()))


def proof_of(token: str, checkpoint: str, answer: Sequence[str]) -> str:
    """The proof that the list in OpenCode's terminal sends with an answer."""
    text = "\0".join((_PURPOSE, checkpoint, *answer)).encode("utf-8", "surrogatepass")
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()
