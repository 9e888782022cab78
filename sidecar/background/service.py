"""Orchestration in the sidecar: the façade ``BackgroundWork``, and the clock."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bridge.opencode.capture.emitter import Asked
from bridge.opencode.capture.state import CaptureState
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import Agent
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.inputs import InputRefused
from sidecar.agents.runtime import Runtime
from sidecar.background.copies.copies import Copies
from sidecar.background.copies.effects import CopyActs
from sidecar.background.copies.setup import Setup
from sidecar.background.elsewhere import Elsewhere
from sidecar.background.gardener import GardenerAgent
from sidecar.background.hosts.headless import Headless, Terminal
from sidecar.background.hosts.host import Call
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host
from sidecar.background.hosts.v2_ids import session_id
from sidecar.background.intents import causes
from sidecar.background.intents.afterwards import (
    continues,
)
from sidecar.background.intents.intents import NAME, IntentAgent
from sidecar.background.intents.lifecycle import ENDED, WORKING
from sidecar.background.intents.registration import RegisterArgs, check_agent, differences, title_of
from sidecar.background.intents.rows import as_row
from sidecar.background.intents.state import Intent, State
from sidecar.background.intents.works import Works
from sidecar.background.machines import OtherMachines
from sidecar.background.messages.deliver import waiting_sessions
from sidecar.background.own_ids import Caller, of_person
from sidecar.background.people.people import People, TeamDoubts
from sidecar.background.people.terminals import CardFile, card_text
from sidecar.background.reading import read_intent
from sidecar.background.reservations.agent import ReservationAgent
from sidecar.background.reservations.desk import Commanded, Desk
from sidecar.background.tools import tools_json
from sidecar.background.unredacted import Said
from sidecar.components import in_background
from sidecar.config import Deed, PhantomConfig
from sidecar.home import Home
from sidecar.link.links import ShimConnection
from sidecar.notify_config import NotifyConfig
from sidecar.read.find_by_id import matching, open_reader
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


def write_tools(home: Home, wanted: bool, more: Mapping[str, Any], *, machines: bool = False) -> None:
    """Write the file that tells plugins which tools to register the next time they are loaded. ``machines``: whether
    this home reaches others.

    If the file cannot be written, only the tools are missing.
    """
    path = home.path / "tools.json"
    text = json.dumps({**(tools_json(machines=machines) if wanted else {}), **more}, indent=1).encode()
    try:
        if not path.exists() or path.read_bytes() != text:
            write_durably(path, text)
    except OSError as error:
        log.warning("the model has no new tools: %s cannot be written (%s)", path, error.strerror)


class BackgroundWork:
    """A component: intents, phantoms and messages of one home.

    ``links`` returns the open links, and ``delivers`` whether one has ever delivered a hook. ``runtime`` returns the
    runtime that runs ``agents``, and ``worker`` the status of all agents. ``more_tools`` are tools that the model gets
    beside ours, in the form of ``tools_json``. ``machine`` is what others call this machine; ``others`` returns the
    other machines, and ``reaches_others`` says whether there are any.
    beside ours, in the form of ``tools_json``. ``machine`` is what others call this machine.
    ``reserving`` returns what runs the agents ``shared``; ``runtime`` does if it is ``None``.
    """

    def __init__(
        self,
        home: Home,
        config: PhantomConfig,
        notify: NotifyConfig,
        identity: Identity,
        nonce: Callable[[], str],
        state: CaptureState,
        clean: Callable[[Any], Any],
        has_plugin: Callable[[Path], bool] = lambda _directory: True,
        *,
        links: Callable[[], Sequence[ShimConnection]],
        delivers: Callable[[ShimConnection], bool],
        runtime: Callable[[], Runtime],
        worker: Callable[[], Mapping[str, Any]] = dict,
        more_tools: Mapping[str, Any] = MappingProxyType({}),
        has_gardener: bool = False,
        scripts_may: Collection[Deed] = (),
        machine: str,
        others: Callable[[], Elsewhere] | None = None,
        reaches_others: bool = False,
        team: Callable[[], TeamDoubts | None] = lambda: None,
        reserving: Callable[[], Commanded] | None = None,
    ) -> None:
        self.agent = IntentAgent(config)
        self._reaches_others = reaches_others
        self.works = Works(lambda: self.data, state)
        self.links, self.runtime, self._more_tools = links, runtime, more_tools
        self._home, self._config, self._identity, self._state = home, config, identity, state
        self.headless = Headless(home, links, nonce, has_plugin)
        one = V1Host(
            links,
            delivers,
            state,
            self.headless,
            lambda session: session in self.data.sessions,
            identity.now_ms,
            self._environment,
        )
        two = V2Host(links, state, identity.now_ms, self.works.asked)
        self.hosts = Hosts(one, two)
        self.machines = OtherMachines(self.hosts, self.works, lambda: self.data, runtime, others)
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
            runtime,
            worker,
            lambda: [link.here for link in links()],
            scripts_may,
            self.works.asker,
            team,
        )
        self._reserving = ReservationAgent()
        self.reservations = Desk(
            machine,
            os.path.realpath(home.path / "copies"),
            self.works,
            state,
            identity,
            reserving or runtime,
            self._reserving,
            links,
            refuses=config.reservations == "refuse",
        )
        self._card = CardFile(home.path)

    @property
    def always_isolates(self) -> bool:
        """Whether the user wants all background work in copies, whatever a model says."""
        return self._config.isolation == "copy"

    @property
    def agents(self) -> tuple[Agent, ...]:
        return (self.agent, self.people.messages, *self._gardener)

    @property
    def shared(self) -> tuple[Agent, ...]:
        """The agents that a whole team may share."""
        return (self._reserving,)

    @property
    def kinds(self) -> Mapping[str, EffectKind]:
        setup = Setup(self._config.setup)
        of = (self._runner, self._is_starting, self._project)
        acts = CopyActs(self.copies, self.hosts, *of, setup, self._config.copied)
        return {**acts.kinds, **self.people.kinds, **self.machines.kinds}

    @property
    def data(self) -> State:
        return self.agent.data

    # --- life ---

    async def start(self, stack: AsyncExitStack) -> None:
        write = partial(write_tools, machines=self._reaches_others)
        await asyncio.to_thread(write, self._home, self._config.tools, self._more_tools)
        await self.people.start(stack)
        await self.copies.recover()
        await self.resume()
        in_background(stack, self._keep_time())
        in_background(stack, self.reservations.keep())
        in_background(stack, self.copies.keep_swept())

    def owes(self) -> bool:
        """See ``Component``: true for an intent that has not ended, or a message that can be delivered."""
        running = any(intent.state not in ENDED for intent in self.data.intents.values())
        return running or self.people.owes()

    async def rest(self) -> list[int]:
        """End each headless OpenCode that has no work. Returns the processes of those that go on. A notification
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

    async def command(self, command: Command) -> None:
        """Send a command to the agent ``intents``; returns when its results are durable."""
        await self.runtime().command(NAME, command)

    async def tell(self, type_: str, key: str, payload: dict[str, Any]) -> None:
        """Tell the agent ``intents`` what happened; returns when that is durable. A failure is only logged."""
        try:
            await self.command(Command(key, type_, payload, actor="sidecar", sender="sidecar"))
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

    def session(self, given: str) -> str:
        """The id of a recorded session; ``given`` is the id, or a unique beginning or end of it.

        Raises:
            RequestError: there is no such session, or several.
        """
        found = matching(given, self._state.sessions)
        if len(found) != 1:
            several = "more than one recorded session matches" if found else "no recorded session matches"
            raise RequestError("not-found", f"{several} {given[:60]!a}; `durable-stream tree` shows the sessions")
        return found[0]

    # --- observe, register_intent, resume ---

    async def observe(self, link: ShimConnection) -> None:
        """Handle a new link of an OpenCode: tell it what is reserved, deliver what is waiting for its sessions, and
        check whether work in these sessions has stopped."""
        await self.reservations.push()
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
        link: ShimConnection | None = None,
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
        elif found is None and before is None:
            rights = self.machines.rights_of(given.rights)
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
            **({"asked_by": given.asked_by, "root": given.asked_by.get("root")} if given.asked_by else {}),
        } | ({"said": said} if said else {})
        about, cause, trace = causes.of_call(self._state.sessions.get(given.parent or ""), call, before)
        if found is None:
            command = Command(f"register:{intent}", "intent.register", payload | about, actor=by)
            command = replace(command, causation_id=cause, traceparent=trace or None)
            try:
                await self.command(command)
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

    async def _identity_for(self, given: RegisterArgs, link: ShimConnection | None) -> str:
        """The identity for new work: that of the session or the terminal that asks for it."""
        host = self.hosts.of(given.parent) if given.parent is not None else self.hosts.new(None)
        if given.parent is not None or given.terminal is None or host is not self.hosts.one:
            return await host.identity_of(given.parent, link)
        return await self.of_terminal(given.terminal)

    async def of_terminal(self, terminal: Terminal) -> str:
        if identity := await self.headless.of_terminal(terminal):
            return identity
        raise RequestError("rights-unknown", "the terminal is in a sandbox, and no OpenCode was started there")

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
        await self.command(Command(f"cancel:{intent.id}", "intent.cancel", payload))

    def status(self) -> dict[str, Any]:
        return {
            "intents": [as_row(intent) for intent in self.data.intents.values()],
            "notices": [asdict(each) for each in self.people.messages.data.messages.values() if not each.is_for_person],
            "headless": sorted(self.headless.pids),
        }
