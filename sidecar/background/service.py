"""Orchestration in the sidecar: the façade ``DurableStream``, the requests of the command line, and the clock."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from bridge.opencode.capture.emitter import Asked
from bridge.opencode.capture.state import CaptureState
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Agent
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import InputRefused
from sidecar.agents.runtime import Runtime
from sidecar.background.copies.copies import MAX_FILES, Copies
from sidecar.background.copies.effects import CopyActs
from sidecar.background.copies.setup import Setup
from sidecar.background.gardener import GardenerAgent
from sidecar.background.gate import Caller, of_person
from sidecar.background.hosts.headless import READY, READY_MEANS, Headless, Terminal
from sidecar.background.hosts.host import Call, HostError
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host
from sidecar.background.hosts.v2_ids import session_id
from sidecar.background.intents import causes
from sidecar.background.intents.afterwards import (
    ApplyArgs,
    CancelArgs,
    DiscardArgs,
    check_ended,
    check_waits,
    continues,
    copy_of,
)
from sidecar.background.intents.intents import NAME, IntentAgent
from sidecar.background.intents.lifecycle import ENDED, WORKING
from sidecar.background.intents.registering import RegisterArgs, ResumeArgs, check_agent, differences, title_of
from sidecar.background.intents.rows import as_row
from sidecar.background.intents.state import Intent
from sidecar.background.intents.works import Works
from sidecar.background.messages.deliver import waiting_sessions
from sidecar.background.people.people import People
from sidecar.background.people.terminals import CardFile, card_text
from sidecar.background.reading import read_intent
from sidecar.background.said import Said
from sidecar.background.tools import tools_json
from sidecar.components import in_background
from sidecar.config import Deed, PhantomConfig
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.select import matching, open_reader
from sidecar.registry import NoArgs, Requests
from streams.bus.command import Command
from streams.errors import CodedError
from streams.identity import Identity
from streams.system.files import write_durably

log = logging.getLogger("sidecar.background")

IDLE_STOP_SECONDS: Final = 120.0
"""How many seconds a headless OpenCode keeps running without work."""

LEFT_STOP_SECONDS: Final = 10.0
"""How many seconds it keeps running in a sandbox in which no other OpenCode is left."""

_TICK_SECONDS: Final = 1.0
_OFFER_SECONDS: Final = 10.0


def write_tools(home: Home, wanted: bool, more: Mapping[str, Any]) -> None:
    """Write the file that tells plugins which tools to register the next time they are loaded.

    If the file cannot be written, only the tools are missing.
    """
    path = home.path / "tools.json"
    text = json.dumps({**(tools_json() if wanted else {}), **more}, indent=1).encode()
    try:
        if not path.exists() or path.read_bytes() != text:
            write_durably(path, text)
    except OSError as error:
        log.warning("the model has no new tools: %s cannot be written (%s)", path, error.strerror)


class DurableStream:
    """A component: intents, phantoms and messages of one home. Attach the runtime before ``start``."""

    _runtime: Runtime

    def __init__(
        self,
        home: Home,
        config: PhantomConfig,
        notify: NotifyConfig,
        identity: Identity,
        nonce: Any,
        state: CaptureState,
        ingest: Any,
        clean: Callable[[Any], Any],
        has_plugin: Callable[[Path], bool] = lambda _directory: True,
        *,
        has_gardener: bool = False,
        scripts_may: Collection[Deed] = (),
    ) -> None:
        self.agent = IntentAgent(config)
        self.works = Works(lambda: self.data, state)
        self.links: Any = list
        self._home, self._config, self._identity, self._state = home, config, identity, state
        self.headless = Headless(home, lambda: self.links(), nonce, has_plugin)
        one = V1Host(
            lambda: self.links(),
            ingest.delivers,
            state,
            self.headless,
            lambda session: session in self.data.sessions,
            identity.now_ms,
            self._environment,
        )
        two = V2Host(lambda: self.links(), state, identity.now_ms, self.works.asked)
        self.hosts = Hosts(one, two)
        self.copies = Copies(home.path / "copies")
        watching = GardenerAgent(self.works.root, lambda session: self.hosts.of(session).ran_as(session))
        self._gardener = (watching,) if has_gardener else ()
        self._said = Said(clean, home.read_token)
        self.people = People(
            home,
            notify,
            identity,
            self.hosts,
            self._said,
            lambda: [link.here for link in self.links()],
            scripts_may,
            self.works.asker,
        )
        self._card = CardFile(home.path)
        self.more_tools: Mapping[str, Any] = {}
        """Tools that the model gets beside ours, in the form of ``tools_json``."""

    @property
    def always_isolates(self) -> bool:
        """Whether the user wants all background work in copies, whatever a model says."""
        return self._config.isolation == "copy"

    @property
    def agents(self) -> tuple[Agent, ...]:
        return (self.agent, self.people.messages, *self._gardener)

    @property
    def kinds(self) -> Mapping[str, EffectKind]:
        setup = Setup(self._config.setup)
        of = (self._runner, self._is_starting, self._project)
        acts = CopyActs(self.copies, self.hosts, *of, setup, self._config.copied)
        return {**acts.kinds, **self.people.kinds}

    @property
    def data(self) -> Any:
        return self.agent.data

    # --- life ---

    def attach(self, runtime: Runtime, worker: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Use this runtime, which runs ``agents``; ``worker`` returns the status of all agents."""
        self._runtime = runtime
        self.people.attach(runtime, worker)

    async def start(self, stack: AsyncExitStack) -> None:
        await asyncio.to_thread(write_tools, self._home, self._config.tools, self.more_tools)
        await self.people.start(stack)
        await self.copies.recover()
        await self.resume()
        in_background(stack, self._keep_time())
        in_background(stack, self.copies.keep_swept())

    def owes(self) -> bool:
        """See ``Component``: true for an intent that has not ended, or a message that can be delivered."""
        running = any(intent.state not in ENDED for intent in self.data.intents.values())
        return running or self.people.owes()

    async def rest(self) -> list[int]:
        """End each headless OpenCode that has no work. Returns the processes of those that go on. What is to be told
        needs none: the OpenCode whose session hears it starts another sidecar."""
        return await self.headless.rest({each.environment for each in self.data.unfinished()})

    async def _keep_time(self) -> None:
        """Send a tick when a deadline has passed, and stop the headless OpenCode when nothing needs it."""
        idle_since: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        offered = loop.time()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self._draw_card()
            deadline = self.agent.deadline()
            # Without a deadline, do not read the clock, because in a deterministic run each reading advances it.
            if deadline is not None and deadline <= (now := self._identity.now_ms()):
                await self.tell("tick", f"tick:{now}", {"now": now})
            try:
                await self.people.keep_time()
            except (RequestError, CodedError) as error:
                log.error("a tick was not handled: %s", error)
            if loop.time() > offered + _OFFER_SECONDS:
                offered = loop.time()
                await self._offer()
            for identity in await self.headless.watch():
                now = self._identity.now_ms()
                await self.tell("host.hung", f"hung:{identity}:{now}", {"environment": identity})
            wanted = {each.environment for each in self.data.unfinished()}
            idle = self.headless.idle(wanted) if not self.people.owes() else frozenset()
            limits = dict.fromkeys(idle, IDLE_STOP_SECONDS) | dict.fromkeys(self.headless.left(), LEFT_STOP_SECONDS)
            idle_since = {name: idle_since.get(name, loop.time()) for name in limits}
            late = {name for name, since in idle_since.items() if loop.time() - since > limits[name]}
            if late:
                await self.headless.stop(late)

    async def _offer(self) -> None:
        """Let work go on that waits for an OpenCode, if one is open: it may have linked just before the work was known
        to wait, and so it links no more."""
        waiting = {each.environment for each in self.data.unfinished() if each.waits}
        links = [link for link in self.links() if link.is_open] if waiting else []
        if found := sorted(waiting.intersection([await self.hosts.at(link).know(link) for link in links])):
            about = {"sessions": [], "environments": found}
            await self.tell("host.ready", f"host:{self._identity.ulid()}", about)

    async def _draw_card(self) -> None:
        asks = self.people.messages.data.questions()
        text = card_text(self.data.unfinished(), asks, self.people.toasts)
        if text != self._card.written:
            await asyncio.to_thread(self._card.write, text)

    async def tell(self, type_: str, key: str, payload: dict[str, Any]) -> None:
        """Tell the agent ``intents`` what happened; returns when that is durable. A failure is only logged."""
        try:
            await self._runtime.command(NAME, Command(key, type_, payload, actor="sidecar", sender="sidecar"))
        except CodedError as error:
            log.error("%s was not handled: %s", type_, error)

    async def _runner(self, intent: str) -> Call:
        known: Intent = self.data.intents[intent]
        return await self.hosts.new(known.parent).runner(intent, known.parent, known.directory, known.environment)

    def _project(self, directory: str) -> str:
        """The id that OpenCode gives to a directory's project; empty if it is in none, or is not known."""
        sessions = self._state.sessions
        known = (found.project for each in sessions.having("directory", directory) if (found := sessions.look(each)))
        return next((each for each in known if each not in (None, "", "global")), None) or ""

    def _is_starting(self, intent: str) -> bool:
        return intent in self.data.intents and self.data.intents[intent].state == "starting"

    # --- observe, register_intent, resume ---

    async def observe(self, link: Any) -> None:
        """Handle a new link of an OpenCode: deliver what is waiting for its sessions, and check whether work in these
        sessions has stopped."""
        host = self.hosts.at(link)
        environment = await host.know(link)
        waiting = waiting_sessions(self.people.messages.data)
        at_work = {i.session for i in self.data.intents.values() if i.state in WORKING and i.session is not None}
        wanted = sorted(host.waiting_for(link, waiting | at_work))
        hosted = any(i.waits and i.environment == environment for i in self.data.unfinished())
        if wanted or hosted:
            about = {"sessions": wanted, "environments": [environment] if hosted else []}
            await self.tell("host.ready", f"host:{self._identity.ulid()}", about)
        await self.people.reached(wanted)

    async def resume(self) -> None:
        """Continue the work that earlier processes left unfinished: check every session that was at work.

        Other agents get the event ``resume`` with the ids of these ``intents``. Without such work, nothing happens.
        """
        if self.data.unfinished():
            await self.tell("sidecar.started", f"started:{self._identity.ulid()}", {})

    async def register_intent(
        self,
        given: RegisterArgs,
        *,
        link: Any = None,
        agent: str | None = None,
        by: str = "user",
        before: Intent | None = None,
        call: str | None = None,
    ) -> Intent:
        """Register work that survives every process; returns when it is durable. The same key returns the same intent.

        The work may do no more than the session ``given.parent``, which asks for it on a ``link`` while it runs an
        ``agent``, with the tool call ``call``. Without a parent, the work may do what OpenCode's configuration says.
        Work that continues ``before`` may do what that session may do.

        Raises:
            HostError: what the parent may do is not known, so nothing was registered.
            RequestError: the parent may not start the agent ``given.agent``, so nothing was registered.
            InputRefused, AgentFailed, StreamError: nothing was registered. The code ``key-conflict`` means that the key
                was already used for different work, ``redacted-argument`` that the log cannot hold an argument.
        """
        key = given.key or self._identity.ulid()
        intent = f"int_{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        found: Intent | None = self.data.intents.get(intent)
        rights = None
        if found is None and given.parent is not None and before is None:
            host = self.hosts.of(given.parent)
            rights = await host.rights(given.parent, agent, link)
            if given.agent not in (None, rights.agent):
                check_agent(rights.effect(host.starts, given.agent or ""), given.agent or "", is_person=call is None)
        environment = found.environment if found is not None else ""
        if before is not None:
            environment = before.environment
        elif found is None:
            environment = await self._identity_for(given, link)
        if self._said.redacts([given.directory, given.agent, given.models]):
            reason = "the directory, the agent or a model contains what redaction replaces, so it cannot be recorded"
            raise InputRefused("redacted-argument", f"{reason}; see `[redact]` in config.toml")
        if found is None and given.variables and given.parent is None:  # a terminal asks
            self.hosts.two.given.keep((before and before.session) or session_id(intent), given.variables)
        (prompt,), said = self._said.keep("prompt", [given.prompt])
        asking = rights.agent if rights is not None else found.agent if found is not None else None
        payload = {
            "intent": intent,
            "prompt": prompt,
            "title": given.title or title_of(prompt),
            "directory": given.directory,
            "parent": given.parent,
            "agent": given.agent or asking,
            "rights": rights.as_json() if rights is not None else {},
            "models": list(given.models),
            "wall_ms": round(given.minutes * 60_000),
            "max_tokens": given.tokens,
            "max_cost": given.cost,
            "isolation": given.isolation or self._config.isolation,
            "environment": environment,
            # A person continues the work, so nothing above it can stop it.
            "above": list(self.works.above(given.parent)) if before is None else [],
            "root": self._root(given.parent) if before is None else before.root,
            "continues": continues(before) if before is not None else {},
        } | ({"said": said} if said else {})
        about, cause, trace = causes.of_call(self._state.sessions.get(given.parent or ""), call, before)
        if found is None:
            command = Command(f"register:{intent}", "intent.register", payload | about, actor=by)
            command = replace(command, causation_id=cause, traceparent=trace or None)
            try:
                await self._runtime.command(NAME, command)
            except InputRefused as error:
                if error.code != "key-conflict":
                    raise
        # If the key was used long ago, its intent is no longer in the state, but it is still in the log.
        found = self.data.intents.get(intent) or await read_intent(open_reader(self._home.store_path), intent)
        if found is None:
            raise InputRefused("no-intent", f"the key was already used for {intent}, which is no longer in the log")
        if differs := differences(found, payload):
            other = f"this key already started {found.id}, which is different work (it differs in {', '.join(differs)})"
            raise InputRefused("key-conflict", f"{other}; use a new key")
        return found

    async def _identity_for(self, given: RegisterArgs, link: Any) -> str:
        """The identity for new work: that of the session or the terminal that asks for it."""
        host = self.hosts.of(given.parent) if given.parent is not None else self.hosts.new(None)
        if given.parent is not None or given.terminal is None or host is not self.hosts.one:
            return await host.identity_of(given.parent, link)
        return await self._of_terminal(given.terminal)

    async def _of_terminal(self, told: Terminal) -> str:
        if identity := await self.headless.of_terminal(told):
            return identity
        raise RequestError("rights-unknown", "the terminal is in a sandbox, and no OpenCode was started there")

    async def _ready_for(self, told: Terminal) -> dict[str, bool]:
        return await self.headless.ready_for(told) if self.hosts.new(None) is self.hosts.one else READY

    def asked(self, session: str, mark: str) -> Asked | None:
        return self.people.messages.data.asked(mark) or causes.asked(self.data, session, mark)

    def _environment(self, work: str) -> str:
        intent = self.works.intent(work) or self.data.intents.get(work)
        return intent.environment if intent is not None else ""

    def _root(self, session: str | None) -> str | None:
        known = self._state.sessions.get(session) if session is not None else None
        return known.root if known is not None else session

    def of_caller(self, session: str) -> Caller:
        """What a session may name. This is the only way from an id that a model names to a thing."""
        return Caller(session, self.works, self.people.messages.data)

    def find(self, given: str) -> Intent:
        """The intent that a person names. For a model, see ``of_caller``."""
        found: Intent = of_person(self.data.intents.values(), given, "intent")
        return found

    async def cancel(self, intent: Intent, reason: str) -> None:
        """Cancel an intent and everything that it started; returns when that is durable.

        Raises:
            InputRefused, AgentFailed, StreamError: nothing was recorded.
        """
        payload = {"intent": intent.id, "reason": reason}
        await self._runtime.command(NAME, Command(f"cancel:{intent.id}", "intent.cancel", payload))

    # --- requests ---

    def register(self, requests: Requests) -> None:
        only = self.people.answerers.only
        requests.register("spawn", RegisterArgs, only("spawn", self._request_spawn), "the intent: `id`, `state`, …")
        requests.register("terminal", Terminal, only("spawn", self._ready_for), READY_MEANS)
        requests.register("intents", NoArgs, lambda _: self.status(), "`intents`, oldest first; `notices`")
        requests.register("intent_cancel", CancelArgs, only("cancel", self._request_cancel), "the intent")
        requests.register(
            "intent_apply",
            ApplyArgs,
            only("apply", self._request_apply),
            "the intent; `changed`: some of the files that it changed; `count`: how many, 0 if it was so before",
        )
        requests.register("intent_resume", ResumeArgs, only("spawn", self._request_resume), "the intent, which goes on")
        requests.register(
            "intent_discard",
            DiscardArgs,
            only("discard", self._request_discard),
            "`changes`: if some are removed; `copy`: the copy that is removed, empty if there is none",
        )
        self.people.register(requests)

    async def _request_spawn(self, args: RegisterArgs) -> dict[str, Any]:
        before = None
        if args.continues is not None:
            before = self._ended(args)
            isolation = "copy" if before.copy else "shared"
            kept = {"parent": before.parent, "agent": before.agent, "directory": before.directory}
            models = args.models or before.models
            args = args.model_copy(update={**kept, "models": models, "isolation": isolation})
        if not await asyncio.to_thread(Path(args.directory).is_dir):
            raise RequestError("not-found", f"{args.directory}: this directory does not exist")
        if odd := next((model for model in args.models if "/" not in model), None):
            raise RequestError("bad-arguments", f"{odd[:60]!a} names no provider; write a model as PROVIDER/MODEL")
        if args.parent is not None and before is None:
            args = args.model_copy(update={"parent": self._session(args.parent)})
        try:
            intent = await self.register_intent(args, before=before)
            if intent.state == "refused":
                raise RequestError("intent-refused", f"the work was not started ({intent.code}): {intent.reason}")
            return as_row(intent)
        except HostError as error:
            why = f"what the session {args.parent} may do is not known, so the work may do nothing: {error}"
            raise RequestError("rights-unknown", why) from None

    def _ended(self, args: RegisterArgs) -> Intent:
        if args.parent or args.agent or args.isolation:
            why = "work that continues has the parent, agent and isolation of before; leave these arguments out"
            raise RequestError("bad-arguments", why)
        before = self.find(args.continues or "")
        check_ended(self.data, before)
        if before.session is None:
            raise RequestError("no-session", f"{before.id} has no session that could go on; start new work")
        return before

    def _session(self, given: str) -> str:
        """The id of a recorded session; ``given`` is the id, or a unique beginning or end of it."""
        found = matching(given, self._state.sessions)
        if len(found) != 1:
            several = "more than one recorded session matches" if found else "no recorded session matches"
            raise RequestError("not-found", f"{several} {given[:60]!a}; `durable-stream tree` shows the sessions")
        return found[0]

    async def _request_cancel(self, args: CancelArgs) -> dict[str, Any]:
        intent = self.find(args.intent)
        if intent.state in ENDED:
            raise RequestError("has-ended", f"{intent.id} has already ended: {intent.state}")
        await self.cancel(intent, "cancelled by the user")
        return as_row(self.data.intents[intent.id])

    async def _request_resume(self, args: ResumeArgs) -> dict[str, Any]:
        """Give work that waits for an OpenCode to the terminal that asks. It may then do what that terminal may do."""
        intent = self.find(args.intent)
        host = self.hosts.of(intent.session) if intent.session is not None else self.hosts.new(intent.parent)
        check_waits(intent, host is self.hosts.one)
        identity = await self._of_terminal(args.terminal)
        payload = {"intent": intent.id, "environment": identity}
        await self._runtime.command(NAME, Command(f"resume:{self._identity.ulid()}", "intent.resume", payload))
        return as_row(self.data.intents[intent.id])

    async def _request_apply(self, args: ApplyArgs) -> dict[str, Any]:
        """Apply the changes of an intent to the user's files, or take them back. Idempotent."""
        intent = self.find(args.intent)
        if not intent.changes.get("saved"):
            why = (
                f"the changes of {intent.id} were discarded"
                if intent.discarded
                else f"{intent.id} changed nothing in its copy"
                if intent.state in ENDED
                else f"{intent.id} is still running, so its changes are not saved yet"
            )
            raise RequestError("no-changes", why)
        changed = await (self.copies.undo if args.undo else self.copies.apply)(intent.id)
        type_ = "intent.apply" if await self.copies.is_applied(intent.id) else "intent.undo"
        command = Command(f"{type_}:{intent.id}:{self._identity.ulid()}", type_, {"intent": intent.id})
        await self._runtime.command(NAME, command)
        return {**as_row(self.data.intents[intent.id]), "changed": changed[:MAX_FILES], "count": len(changed)}

    async def _request_discard(self, args: DiscardArgs) -> dict[str, Any]:
        """Remove an ended intent's saved changes, and its copy if it was kept. Idempotent."""
        intent = self.find(args.intent)
        check_ended(self.data, intent)
        has_changes, copy = bool(intent.changes.get("saved")), copy_of(self.data, intent)
        if not args.preview and (has_changes or copy):
            await self.copies.discard(intent.id, intent.copy["name"] if copy else "")
            await self._runtime.command(NAME, Command(f"discard:{intent.id}", "intent.discard", {"intent": intent.id}))
        return {"id": intent.id, "changes": has_changes, "copy": copy}

    def status(self) -> dict[str, Any]:
        return {
            "intents": [as_row(intent) for intent in self.data.intents.values()],
            "notices": [asdict(each) for each in self.people.messages.data.messages.values() if not each.is_for_person],
            "headless": sorted(self.headless.pids),
        }
