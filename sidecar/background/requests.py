"""The requests of the command line about background work: start, cancel, resume, apply, take back and discard."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from bridge.opencode.link.protocol import RequestError
from sidecar.background.copies.copies import MAX_FILES
from sidecar.background.hosts.headless import READY, READY_MEANS, Terminal
from sidecar.background.hosts.host import HostError
from sidecar.background.intents.afterwards import (
    ApplyArgs,
    CancelArgs,
    ChangesArgs,
    DiscardArgs,
    check_ended,
    check_saved,
    check_waits,
    copy_of,
)
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.registration import RegisterArgs, ResumeArgs
from sidecar.background.intents.rows import as_row
from sidecar.background.intents.state import Intent
from sidecar.background.machines import rights_unknown
from sidecar.background.reservations.desk import FreeArgs
from sidecar.background.service import BackgroundWork
from sidecar.registry import NoArgs, Requests
from streams.bus.command import Command
from streams.identity import Identity


class WorkRequests:
    def __init__(self, durable: BackgroundWork, identity: Identity) -> None:
        self._durable, self._identity = durable, identity

    async def _ready_for(self, asking: Terminal) -> dict[str, bool]:
        hosts = self._durable.hosts
        return await self._durable.headless.ready_for(asking) if hosts.new(None) is hosts.one else READY

    def register(self, requests: Requests) -> None:
        only = self._durable.people.answerers.only
        requests.register("spawn", RegisterArgs, only("spawn", self._spawn), "the intent: `id`, `state`, …")
        requests.register("terminal", Terminal, only("spawn", self._ready_for), READY_MEANS)
        requests.register("intents", NoArgs, lambda _: self._durable.status(), "`intents`, oldest first; `notices`")
        changes = "`id`; `changes`: the diff, or, if they are packed, what `machine_apply` reads"
        requests.register("intent_changes", ChangesArgs, self._changes, changes)
        requests.register("intent_cancel", CancelArgs, only("cancel", self._cancel), "the intent")
        requests.register(
            "intent_apply",
            ApplyArgs,
            only("apply", self._apply),
            "the intent; `changed`: some of the files that it changed; `count`: how many, 0 if it was so before",
        )
        requests.register("intent_resume", ResumeArgs, only("spawn", self._resume), "the intent, which goes on")
        requests.register(
            "intent_discard",
            DiscardArgs,
            only("discard", self._discard),
            "`changes`: if some are removed; `copy`: the copy that is removed, empty if there is none",
        )
        self._durable.people.register(requests)
        desk, held = self._durable.reservations, "`reservations`: what is held, oldest first"
        requests.register("reservations", NoArgs, lambda _: {"reservations": desk.rows()}, held)
        requests.register("reservation_release", FreeArgs, only("release", desk.free), "`reservations`: what was held")

    async def _spawn(self, args: RegisterArgs) -> dict[str, Any]:
        before = None
        if args.continues is not None:
            before = self._ended(args)
            isolation = "copy" if before.copy else "shared"
            same = {"parent": before.parent, "agent": before.agent, "directory": before.directory}
            models = args.models or before.models
            args = args.model_copy(update={**same, "models": models, "isolation": isolation})
        if not await asyncio.to_thread(Path(args.directory).is_dir):
            raise RequestError("not-found", f"{args.directory}: this directory does not exist")
        if odd := next((model for model in args.models if "/" not in model), None):
            raise RequestError("bad-arguments", f"{odd[:60]!a} names no provider; write a model as PROVIDER/MODEL")
        if args.parent is not None and before is None:
            args = args.model_copy(update={"parent": self._durable.session(args.parent)})
        try:
            by = f"machine:{args.asked_by['machine']}" if args.asked_by else "user"
            intent = await self._durable.register_intent(args, before=before, by=by)
            if intent.state == "refused":
                raise RequestError("intent-refused", f"the work was not started ({intent.code}): {intent.reason}")
            return as_row(intent)
        except HostError as error:
            raise rights_unknown(args.parent, error) from None

    def _ended(self, args: RegisterArgs) -> Intent:
        if args.parent or args.agent or args.isolation:
            why = "work that continues has the parent, agent and isolation of before; leave these arguments out"
            raise RequestError("bad-arguments", why)
        before = self._durable.find(args.continues or "")
        check_ended(self._durable.data, before)
        if before.session is None:
            raise RequestError("no-session", f"{before.id} has no session that could go on; start new work")
        return before

    async def _cancel(self, args: CancelArgs) -> dict[str, Any]:
        intent = self._durable.find(args.intent)
        if intent.state in ENDED:
            raise RequestError("has-ended", f"{intent.id} has already ended: {intent.state}")
        await self._durable.cancel(intent, "cancelled by the user")
        return as_row(self._durable.data.intents[intent.id])

    async def _resume(self, args: ResumeArgs) -> dict[str, Any]:
        """Give work that waits for an OpenCode to the terminal that asks. It may then do what that terminal may do."""
        intent = self._durable.find(args.intent)
        hosts = self._durable.hosts
        host = hosts.of(intent.session) if intent.session is not None else hosts.new(intent.parent)
        check_waits(intent, host is hosts.one)
        identity = await self._durable.of_terminal(args.terminal)
        payload = {"intent": intent.id, "environment": identity}
        await self._durable.command(Command(f"resume:{self._identity.ulid()}", "intent.resume", payload))
        return as_row(self._durable.data.intents[intent.id])

    async def _changes(self, args: ChangesArgs) -> dict[str, Any]:
        intent = self._durable.find(args.intent)
        check_saved(intent)
        copies = self._durable.copies
        return {"id": intent.id, "changes": await (copies.packed if args.packed else copies.diff)(intent.id)}

    async def _apply(self, args: ApplyArgs) -> dict[str, Any]:
        """Apply the changes of an intent to the user's files, or take them back. Idempotent."""
        intent = self._durable.find(args.intent)
        check_saved(intent)
        changed = await (self._durable.copies.undo if args.undo else self._durable.copies.apply)(intent.id)
        type_ = "intent.apply" if await self._durable.copies.is_applied(intent.id) else "intent.undo"
        command = Command(f"{type_}:{intent.id}:{self._identity.ulid()}", type_, {"intent": intent.id})
        await self._durable.command(command)
        return {**as_row(self._durable.data.intents[intent.id]), "changed": changed[:MAX_FILES], "count": len(changed)}

    async def _discard(self, args: DiscardArgs) -> dict[str, Any]:
        """Remove an ended intent's saved changes, and its copy if it was same. Idempotent."""
        intent = self._durable.find(args.intent)
        check_ended(self._durable.data, intent)
        has_changes, copy = bool(intent.changes.get("saved")), copy_of(self._durable.data, intent)
        if not args.preview and (has_changes or copy):
            await self._durable.copies.discard(intent.id, intent.copy["name"] if copy else "")
            await self._durable.command(Command(f"discard:{intent.id}", "intent.discard", {"intent": intent.id}))
        return {"id": intent.id, "changes": has_changes, "copy": copy}
