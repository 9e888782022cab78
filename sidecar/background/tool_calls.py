"""Answers calls of the model's tools, and of the command ``/background``, each with a text."""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import Any, Final, NamedTuple

from bridge.opencode.capture.state import CaptureState
from bridge.opencode.link.protocol import CallError, RequestError
from sidecar.background import background_command, tools
from sidecar.background.hosts.host import HostError
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.registration import DEFAULT_MINUTES, RegisterArgs
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import notice_text
from sidecar.background.messages.deliver import notice_id
from sidecar.background.messages.wording import inline
from sidecar.background.model_tools import ModelTools
from sidecar.background.own_ids import Caller
from sidecar.background.people.answerers import IN_OPENCODE
from sidecar.background.people.people import AnswerArgs, counted
from sidecar.background.service import BackgroundWork
from sidecar.components import until
from sidecar.link.links import ShimConnection
from streams.errors import CodedError
from streams.identity import Identity
from streams.lineage import traceparent

KNOWN_SECONDS: Final = 15.0
"""How many seconds a tool call waits until its session is recorded."""


MOST_WAITS: Final = 50
"""How many calls of ``wait_for`` a session, together with its background tree, may make at the same time."""


class _Call(NamedTuple):
    """A call of a tool: the id that OpenCode gave the call, the session, and the user message that the session was
    answering.

    A local model may give all calls of a step one id, or an empty one. So ``key`` names the arguments, too: only the
    same call with the same arguments is the same.
    """

    id: str
    key: str
    session: str
    turn: str | None


class ToolCalls:
    def __init__(
        self, durable: BackgroundWork, state: CaptureState, identity: Identity, others: ModelTools | None = None
    ) -> None:
        self._durable, self._state, self._identity = durable, state, identity
        self._others = others
        self._waits: Counter[str] = Counter()
        """How many calls of ``wait_for`` are waiting, by the session at the top of their tree."""

    async def call(self, link: ShimConnection, name: str, args: dict[str, Any], context: dict[str, Any]) -> str:
        """Answer a call of one of our tools; return a text for the model.

        Raises:
            CallError: the call failed; the model reads the text.
        """
        try:
            if name == background_command.COMMAND:
                return await self._background(str(args.get("text") or ""))
            is_other = self._others is not None and name in self._others.tools
            checked = None if is_other else tools.check(name, args)
            session = str(context.get("sessionID") or "")
            if not await until(lambda: self._durable.hosts.at(link).knows(session), KNOWN_SECONDS):
                raise RequestError("not-recorded", "this session is not recorded yet; try again")
            if not session:
                raise RequestError("no-session", "this call names no session")
            given = sha256(f"{name} {json.dumps(args, sort_keys=True)}".encode()).hexdigest()[:16]
            key = f"{session}:{context.get('messageID')}:{context.get('callID')}:{given}"
            call = _Call(str(context.get("callID") or ""), key, session, self._state.turn_of(session))
            mine = self._durable.of_caller(session)
            match checked:
                case None:
                    return await self._call_other(name, args, call, context)
                case tools.SpawnArgs():
                    return await self._spawn(link, call, checked, context)
                case tools.StatusArgs():
                    return self._listing(mine.started(), checked.unfinished)
                case tools.ResultArgs():
                    return await self._result(mine.intent(checked.intent), call)
                case tools.CancelArgs():
                    intent = mine.intent(checked.intent)
                    await self._durable.cancel(intent, "cancelled by the model")
                    return f"{intent.id} is being cancelled."
                case tools.NotifyArgs():
                    return await self._durable.people.notify(session, checked, call.key)
                case tools.AskArgs():
                    return await self._durable.people.ask(session, checked, call.id, call.turn or "")
                case tools.WaitArgs():
                    if self._waits[root := mine.root()] >= MOST_WAITS:
                        many = f"{MOST_WAITS} calls of this session and its background work wait"
                        raise RequestError("too-many-waits", many)
                    with counted(self._waits, root):
                        return await self._wait_for(checked, call, mine)
                case tools.ReadArgs():
                    return await self._durable.people.read(checked, session)
                case tools.ReserveArgs():
                    where = self._directory(link, session, context)
                    return await self._durable.reservations.reserve(session, where, checked)
                case tools.ReleaseArgs():
                    where = self._directory(link, session, context)
                    return await self._durable.reservations.release(session, where, checked)
        except RequestError as error:
            raise CallError("tool", f"{error} [{error.code}]") from None
        except (CodedError, HostError) as error:
            raise CallError("tool", str(error)) from None
        raise AssertionError(name)

    async def _call_other(self, name: str, args: dict[str, Any], call: _Call, context: dict[str, Any]) -> str:
        assert self._others is not None
        root = self._durable.of_caller(call.session).root()
        known = self._state.sessions.get(call.session)
        return await self._others.call(
            self._durable.runtime(),
            name,
            args,
            call.key,
            call.turn or call.session,
            actor=str(context.get("agent") or "agent"),
            traceparent=traceparent(root, call.session),
            project=known.project if known is not None else None,
        )

    async def _spawn(self, link: ShimConnection, call: _Call, args: tools.SpawnArgs, context: dict[str, Any]) -> str:
        session = call.session
        if args.on is not None:
            return await self._spawn_elsewhere(link, call, args, context)
        given_models = _models(args)
        # Another agent may have its own model, which the parent's model must not replace.
        is_other = args.agent not in (None, context.get("agent"))
        about = self._durable.hosts.of(session).about(session)
        own = None if is_other else about.get("model")
        given = RegisterArgs(
            prompt=args.prompt,
            title=args.title,
            directory=self._directory(link, session, context),
            parent=session or None,
            agent=args.agent,
            models=given_models or ([own] if own else []),
            minutes=args.minutes or DEFAULT_MINUTES,
            tokens=args.tokens or 0,
            cost=args.cost or 0.0,
            isolation="copy" if self._durable.always_isolates else args.isolation,
            key=call.key,
        )
        agent = str(context.get("agent") or "")
        intent = await self._durable.register_intent(
            given, link=link, agent=agent or None, by=agent or "model", call=call.id
        )
        if intent.state == "refused":
            return f"Not started ({intent.code}): {intent.reason}. Do the work yourself, or tell the user."
        return f"Started {intent.id} in the background. Its result will come as a message; go on with your work."

    def _directory(self, link: ShimConnection, session: str, context: dict[str, Any]) -> str:
        about = self._durable.hosts.of(session).about(session)
        return str(about.get("directory") or context.get("directory") or link.directory)

    async def _spawn_elsewhere(
        self, link: ShimConnection, call: _Call, args: tools.SpawnArgs, context: dict[str, Any]
    ) -> str:
        machine, _, directory = (args.on or "").partition(":")
        directory = directory or self._directory(link, call.session, context)
        given: dict[str, Any] = {"prompt": args.prompt, "title": args.title, "directory": directory}
        given |= {"agent": args.agent, "models": _models(args), "minutes": args.minutes or DEFAULT_MINUTES}
        given |= {"tokens": args.tokens or 0, "cost": args.cost or 0.0, "isolation": args.isolation}
        agent = str(context.get("agent") or "") or None
        given |= await self._durable.machines.about(call.session, args.agent, agent, link, is_person=False)
        found = await self._durable.machines.others.spawn(machine, given, call.key, call.session)
        told = "Its result will come as a message; go on with your work."
        if found["queued"]:
            return f"{inline(machine)} is away, and starts it when it is back. {told}"
        return f"Started {found['value']['id']} on {inline(machine)}. {told}"

    async def _background(self, text: str) -> str:
        verb, target, answer = background_command.parse(text)
        match verb:
            case "list":
                waiting, now = await self._durable.people.waiting(), self._identity.now_ms()
                return background_command.listing(self._durable.data.intents.values(), waiting, now)
            case "cancel":
                intent = self._durable.find(target)
                await self._durable.cancel(intent, "cancelled by the user")
                return f"{intent.id} is being cancelled."
            case "answer":
                row = await self._durable.people.answer(
                    AnswerArgs(checkpoint=target, answer=[answer]),
                    IN_OPENCODE,
                    most=background_command.MAX_ASK,
                )
                return f"{row['id']} answered: {answer}"
        return background_command.USAGE

    def _listing(self, mine: list[Intent], unfinished: bool) -> str:
        if unfinished:
            mine = [intent for intent in mine if intent.state not in ENDED]
        if not mine:
            return "No background work was started from this session."
        now = self._identity.now_ms()
        lines = [f"{i.id} {i.state} {max(now - i.created, 0) // 1000}s {inline(i.title)}" for i in mine[-20:]]
        return "\n".join(lines)

    async def _result(self, intent: Intent, call: _Call) -> str:
        if intent.state not in ENDED:
            return f"{intent.id} is {intent.state}; its result will come as a message."
        # If the call's turn was stopped in the meantime, no model reads this result, so it is not recorded as delivered
        # to the model.
        is_returned = intent.parent == call.session and call.turn == self._state.turn_of(call.session)
        if is_returned and call.id and call.turn is not None:
            await self._durable.people.returned(notice_id(intent.id), call.session, call.id, call.turn)
        return notice_text(intent, intent.state, {"reason": intent.reason, "changes": intent.changes})

    async def _wait_for(self, args: tools.WaitArgs, call: _Call, mine: Caller) -> str:
        people = self._durable.people
        if args.what.startswith("chk_"):
            known = mine.checkpoint(args.what)
            return await people.wait_for_checkpoint(known, call.session, call.id, call.turn or "", args.seconds)
        if not args.what.startswith("int_"):
            return await people.wait_for_signal(args.what, call.session, mine.root(), args.seconds)
        intent = mine.intent(args.what)
        ended = await until(lambda: self._durable.data.intents[intent.id].state in ENDED, args.seconds)
        intent = self._durable.data.intents[intent.id]
        if not ended:
            return f"{intent.id} is still {intent.state}. Call wait_for again, or go on: its result comes by itself."
        return await self._result(intent, call)


def _models(args: tools.SpawnArgs) -> list[str]:
    return [each.strip() for each in (args.model or "").split(",") if each.strip()]
