"""What this home asks of other machines for the command line and for models, and what it does for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, ValidationError

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.inputs import digest
from sidecar.background.copies.copies import MAX_FILES
from sidecar.background.elsewhere import Elsewhere, Spawned
from sidecar.background.people.answerers import Answerers
from sidecar.background.service import BackgroundWork
from sidecar.config import Deed
from sidecar.link.local import ASKER
from sidecar.mirror.asking import TOLD, Asks, accepted
from sidecar.mirror.service import NatsService
from sidecar.registry import Args, Requests
from streams.identity import Identity

if TYPE_CHECKING:
    from sidecar.mirror.machines import Machines

MORE_SECONDS: Final = 5.0
"""How long a request waits for its answer, before it is said to be queued."""

QUESTIONS: Final = frozenset({"intents", "checkpoints", "intent_changes"})
"""The requests of a home that only read, so that every machine may send them."""

_DEEDS: Final[dict[str, Deed]] = {"answer": "answer", "cancel": "cancel", "spawn": "spawn"}
"""What only a person may ask another machine for, as of this one."""


class MachineAskArgs(Args):
    machine: str = Field(min_length=1, max_length=100, description="its name")
    name: Literal["answer", "cancel", "checkpoints", "intent_changes", "intents", "signal", "spawn"] = Field(
        description="what it is asked for"
    )
    args: dict[str, Any] = Field(default={}, description="the arguments of the request there")
    session: str | None = Field(default=None, max_length=200, description="the session here that gets the result")
    key: str | None = Field(default=None, max_length=300, description="requests with the same key count once")


class MachineApplyArgs(Args):
    machine: str = Field(min_length=1, max_length=100, description="its name")
    intent: str = Field(max_length=100, description="the intent's id there, or a unique prefix of it")
    directory: str = Field(max_length=8192, description="the project here that is changed, absolute")
    undo: bool = Field(default=False, description="take back what was applied last")


class MachineRequests(Elsewhere):
    def __init__(
        self,
        nats: NatsService,
        asks: Asks,
        durable: BackgroundWork,
        answerers: Answerers,
        requests: Requests,
        identity: Identity,
    ) -> None:
        self._nats, self._asks, self._durable, self._identity = nats, asks, durable, identity
        self._answerers, self._requests = answerers, requests
        does = "`value`: what it answered; or `queued`: true, if it is away; `id`: the request's"
        requests.register("machine_ask", MachineAskArgs, self.ask, does)
        applied = "`id`, `directory`; `changed`: some of the files; `count`: how many, 0 if it was so before"
        requests.register("machine_apply", MachineApplyArgs, answerers.only("apply", self.apply), applied)

    # --- asking ---

    async def ask(self, args: MachineAskArgs) -> dict[str, Any]:
        by = "user"
        if (deed := _DEEDS.get(args.name)) is not None:
            about, words = str(args.args.get("checkpoint") or ""), args.args.get("answer") or ()
            by = (await self._answerers.judged(deed, about, words)).by
        machines = self._machines(args.machine)
        if args.name in QUESTIONS:
            return {"id": "", "queued": False, "value": await machines.question(args.machine, args.name, args.args)}
        given = dict(args.args)
        if args.name == "cancel" and (waiting := self._asks.waiting(args.machine, str(given.get("intent")))):
            await machines.withdraw(waiting)
            return {"id": waiting.id, "queued": False, "value": {"id": waiting.id, "state": "withdrawn"}}
        if args.name == "spawn":
            session = self._durable.session(args.session) if args.session is not None else None
            given |= await self._durable.machines.about(session, given.get("agent"))
            return await self._send(args.machine, args.name, given, args.key, session=session, by=by)
        return await self._send(args.machine, args.name, given, args.key, by=by)

    async def apply(self, args: MachineApplyArgs) -> dict[str, Any]:
        """Apply the changes of an intent of another machine to files here, or take them back. Idempotent."""
        copies, machine = self._durable.copies, args.machine
        if args.undo:
            name = await copies.unpacked(machine, args.intent, args.directory)
            changed = await copies.undo(name)
        else:
            asked = {"intent": args.intent, "packed": True}
            found = await self._machines(machine).question(machine, "intent_changes", asked)
            name = await copies.unpack(machine, str(found["id"]), str(found["changes"]), args.directory)
            changed = await copies.apply(name)
        about = {"id": name, "directory": await asyncio.to_thread(copies.top_of, name)}
        return {**about, "changed": changed[:MAX_FILES], "count": len(changed)}

    async def spawn(self, machine: str, args: dict[str, Any], key: str, session: str) -> dict[str, Any]:
        self._machines(machine)
        return await self._send(machine, "spawn", args, key, session=session, by="process")

    async def tell(self, machine: str, name: str, args: dict[str, Any], key: str) -> None:
        # It is recorded, and leaves as soon as the machines can reach each other.
        await self._asks.send(machine, name, args, key, by="process")

    def _machines(self, machine: str) -> Machines:
        """Raises ``RequestError`` if other machines cannot be reached, or ``machine`` is this one."""
        if (machines := self._nats.machines) is None:
            why = 'machines reach each other over a NATS server: set `mode = "external"` in [nats] in config.toml'
            raise RequestError("nats-off", f"{why}, and run `durable-stream stop`")
        if taken := self._nats.machine_taken():
            raise RequestError("not-owner", taken)
        if machine == machines.name:
            raise RequestError("bad-arguments", f"{machine} is this machine: leave out `--on`")
        return machines

    async def _send(
        self, machine: str, name: str, args: dict[str, Any], key: str | None, *, session: str | None = None, by: str
    ) -> dict[str, Any]:
        machines = self._machines(machine)
        await machines.check_known(machine)
        id_ = await self._asks.send(machine, name, args, key or self._identity.ulid(), session=session, by=by)
        answer = await self._asks.answer(id_, MORE_SECONDS)
        if answer is None:
            return {"id": id_, "queued": True, "value": None}
        return {"id": id_, "queued": False, "value": accepted(machine, answer)}

    # --- what others ask ---

    async def read(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        """Answer a question of another machine. Raises ``RequestError``."""
        if name not in QUESTIONS:
            raise RequestError("unknown-request", f"no question is named {name[:60]!a}")
        found = await self._requests.answer(name, args)
        return {"intents": found["intents"]} if name == "intents" else found

    async def do(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        """Do the request of another machine, which it may send. Raises ``RequestError``."""
        if name in TOLD:
            return await self._told(machine, name, args)
        if name == "spawn":
            here = self._nats.machines.name if self._nats.machines is not None else ""
            asker = ASKER.get()
            asked_by = {"machine": machine, "ask": asker.id if asker is not None else "", "on": here}
            args = await asyncio.to_thread(_spawn, asked_by, args)
        return await self._requests.answer(name, args)

    async def _told(self, machine: str, name: str, args: dict[str, Any]) -> Any:
        sent = await self._asks.find(str(args.get("ask")))
        if sent is None or (sent.machine, sent.name) != (machine, "spawn"):
            raise RequestError("not-asked", f"nobody here asked {machine[:100]!a} for this work")
        await self._durable.machines.told(name, sent.id, machine, sent.session, sent.ts, args)
        return {}


def _spawn(asked_by: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the request ``spawn`` for work that another machine asks for."""
    key = str(args.pop("key", ""))
    try:
        given = Spawned.model_validate(args)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))[:80]}: {each['msg'][:200]}" for each in error.errors())
        raise RequestError("bad-arguments", f"invalid arguments: {faults[:1000]}") from None
    directory = Path(given.directory).expanduser()
    if not directory.is_absolute():
        raise RequestError("bad-arguments", f"{given.directory[:200]!a} is not absolute; name a directory there")
    asked_by |= {"session": given.session, "depth": given.depth}
    if given.root:  # all work of that root counts together here
        asked_by["root"] = f"int_{digest(chr(0).join((asked_by['machine'], given.root)).encode())[:12]}"
    about = given.model_dump(exclude={"session", "root", "depth"})
    return {**about, "directory": str(directory), "key": key, "asked_by": asked_by}
