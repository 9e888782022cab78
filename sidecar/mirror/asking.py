"""What this home asks of other machines: each request in the log, until its answer is there, too.

The log is the outbox. ``request.sent`` is recorded before anything is sent, and ``request.returned`` when the answer
has come, under keys made of the request's id. So a request survives every process, and its answer counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.inputs import ADAPTER, digest
from streams.event import StreamEvent
from streams.identity import Identity
from streams.query import Filter
from streams.store import Record, StreamStore
from streams.trace import made_trace

STREAM: Final = "system/requests"
"""The requests of other programs and machines, and those of this home to other machines."""

SHORTEST: Final = 4
"""How many characters of a request's id name it, at least."""

SENT: Final = "request.sent"
RETURNED: Final = "request.returned"

TOLD: Final = frozenset({"asks", "wake"})
"""The requests that tell the machine which asked for work what the work asks, and how it ended. They are allowed
because that machine asked for the work."""


def accepted(machine: str, answer: Mapping[str, Any]) -> Any:
    """The value of an answer.

    Raises:
        RequestError: the machine refused.
    """
    if answer.get("status") == "accepted":
        return answer.get("value")
    raise RequestError(str(answer.get("error_code") or "bad-answer"), f"{machine}: {answer.get('error') or 'refused'}")


class Sent(NamedTuple):
    """A request of this home. ``session`` gets the result of the work that it starts; ``by`` is who asked, ``user`` or
    ``process``; ``ts`` is in ms UTC."""

    id: str
    machine: str
    name: str
    args: dict[str, Any]
    by: str
    session: str | None
    ts: int
    traceparent: str | None

    @staticmethod
    def of(event: StreamEvent) -> Sent:
        given = event.payload
        names = ("id", "machine", "name", "args", "by", "session")
        return Sent(**{name: given[name] for name in names}, ts=event.ts, traceparent=event.traceparent)


class Asks:
    """The requests of a home. Bound to one event loop; call ``start`` before anything else."""

    def __init__(self, store: StreamStore, identity: Identity, clean: Callable[[Any], Any]) -> None:
        self._store, self._identity, self._clean = store, identity, clean
        self.pending: dict[str, Sent] = {}
        """The requests without an answer, oldest first."""
        self.news = asyncio.Event()
        """Set when there is one more."""
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def start(self) -> None:
        """Raises ``StreamError`` if the log cannot be read."""
        async for record in self._store.query(Filter(types=(SENT, RETURNED))):
            event = record.event
            if "id" not in event.payload:  # forgotten
                continue
            if event.type == SENT:
                self.pending[event.payload["id"]] = Sent.of(event)
            else:
                self.pending.pop(event.payload["id"], None)

    async def send(
        self, machine: str, name: str, args: dict[str, Any], key: str, *, session: str | None = None, by: str = "user"
    ) -> str:
        """Ask a machine for something; returns the request's id when the request is durable. The same ``key`` for the
        same machine is the same request.

        Raises:
            RequestError: nothing was sent. ``key-conflict``: the key was used for another request;
                ``redacted-argument``: the log cannot hold an argument, and secrets do not leave this machine.
            StreamError: the log cannot be written.
        """
        if self._clean(args) != args:
            why = "an argument has what redaction hides, and that does not leave this machine; see `[redact]`"
            raise RequestError("redacted-argument", f"nothing was sent to {machine}: {why} in config.toml")
        id_ = digest(f"{machine}\0{key}".encode("utf-8", "surrogatepass"))
        about = {"id": id_, "machine": machine, "name": name, "args": args, "by": by, "session": session}
        record = await self._record(SENT, id_, by, about, str(made_trace(id_)))
        if _same(record.event.payload) != _same(about):
            raise RequestError("key-conflict", f"this key was already used for another request to {machine}")
        if not record.duplicate:
            self.pending[id_] = Sent.of(record.event)
            self.news.set()
        return id_

    async def answer(self, id_: str, seconds: float) -> dict[str, Any] | None:
        """The answer to a request; ``None`` if there is none within ``seconds``."""
        waiting = self._waiting.setdefault(id_, asyncio.get_running_loop().create_future())
        known = await self._store.find(f"{RETURNED}:{id_}")
        if known is not None:
            self._waiting.pop(id_, None)
            return known.event.payload
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(waiting)
        except TimeoutError:
            return None

    async def returned(self, machine: str, id_: str, answer: dict[str, Any]) -> bool:
        """Record what a machine answered; false if this home did not ask that machine for it.

        Raises:
            StreamError: the log cannot be read or written.
        """
        sent = await self.find(id_)
        if sent is None or sent.machine != machine:
            return False
        about = {"id": id_, "machine": machine, "name": sent.name, **self._clean(answer)}
        record = await self._record(RETURNED, id_, machine, about, sent.traceparent)
        self.pending.pop(id_, None)
        if (waiting := self._waiting.pop(id_, None)) is not None and not waiting.done():
            waiting.set_result(record.event.payload)
        return True

    async def find(self, id_: str) -> Sent | None:
        """A request of this home. Raises ``StreamError`` if the log cannot be read."""
        record = await self._store.find(f"{SENT}:{id_}")
        return Sent.of(record.event) if record is not None and "machine" in record.event.payload else None

    def waiting(self, machine: str, id_: str) -> Sent | None:
        """The request without an answer to a machine, whose id begins so, if there is one."""
        found = [each for each in self.pending.values() if each.machine == machine and each.id.startswith(id_)]
        return found[0] if len(found) == 1 and len(id_) >= SHORTEST else None

    def status(self) -> list[dict[str, Any]]:
        """The requests without an answer: ``id``, ``machine``, ``name`` and ``ts``."""
        return [{"id": one.id, "machine": one.machine, "name": one.name, "ts": one.ts} for one in self.pending.values()]

    async def _record(self, type_: str, id_: str, actor: str, payload: dict[str, Any], trace: str | None) -> Record:
        key = f"{type_}:{id_}"
        event = self._identity.stamp(
            {
                "type": type_,
                "stream_id": STREAM,
                "idempotency_key": key,
                "actor": actor,
                "source": {"agent": "machines", "adapter": ADAPTER},
                "traceparent": trace or str(made_trace(key)),
                "payload": payload,
            }
        )
        return (await self._store.append([event], on_known="keep_first"))[0]


Answer = Callable[[str, str, dict[str, Any]], Awaitable[Any]]
"""Answers a machine's question, or does its request: the machine, the name, the arguments. Raises ``RequestError``."""


def _same(payload: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two requests with one key have in common. What the session may do can change in between."""
    args = {name: value for name, value in payload.get("args", {}).items() if name not in ("rights", "root", "depth")}
    return payload.get("name"), args, payload.get("session")


class ForOthers(NamedTuple):
    """What this home has for other machines: ``allowed`` is what they may do, by machine; ``read`` answers their
    questions, and ``do`` does their requests."""

    asks: Asks
    allowed: Mapping[str, Collection[str]]
    read: Answer
    do: Answer
