"""``Host`` on OpenCode 2: through the HTTP API of the user's own service, which keeps sessions alive by itself.

The ids of phantom sessions and of messages are derived from the intent and from the effect's key. The service accepts
each id only once, so a retry changes nothing.

Measured on 2.0.15. A service that was killed or terminated continues its turns by itself: the session is active within
0.3 s after the service answers, also on a busy machine. So nothing is prompted again before the service has had several
seconds to continue.
See ``v2_turn.py`` for how a turn ends, and ``missing_features.py`` for what OpenCode 2 cannot do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from weakref import WeakValueDictionary

from bridge.opencode.capture.shapes import mapping
from bridge.opencode.capture.state import CaptureState
from sidecar.background.hosts import missing_features
from sidecar.background.hosts import v2_requests as requests
from sidecar.background.hosts.calling import call
from sidecar.background.hosts.host import Call, Host, HostAbsent, HostError, Look, Part, State, Status
from sidecar.background.hosts.plugins import PluginMissing, check_plugins
from sidecar.background.hosts.rights import Rights, Rule, for_originals, for_work
from sidecar.background.hosts.v2_ids import is_phantom, message_id, session_id
from sidecar.background.hosts.v2_requests import as_list, path_of
from sidecar.background.hosts.v2_turn import MARK, Turn, is_prompt, quiet_ms, turn_of
from sidecar.background.hosts.v2_variables import Variables
from sidecar.record.opencode2.http import ServiceClient, ServiceError
from sidecar.record.opencode2.registration import Registration, UnsafeService, place_of, read_registration

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

SETTLE_SECONDS: Final = 1.0
SETTLE_LOOKS: Final = 5
"""How many times to look, ``SETTLE_SECONDS`` apart, whether a prompt, or a turn that the service continues by itself,
has begun."""

LEFT_MS: Final = 300_000
"""For how many ms work whose last turn is over waits for the shell commands that it left running."""

_OVER: Final[tuple[State, ...]] = ("answered", "failed", "aborted", "stopped")
_SETTLED: Final[dict[str, State]] = {"waiting": "answered", "cut": "stopped", "open": "unanswered"}
"""What a turn's state means if it does not change: its subagents ended without a report, a person refused what the turn
asked, or nobody continues the turn."""


class V2Host(Host):
    """``Host`` on OpenCode 2. ``links`` returns the open links."""

    lacks, starts = missing_features.TWO, "subagent"

    def __init__(
        self,
        links: Callable[[], Iterable[ShimConnection]],
        state: CaptureState,
        now_ms: Callable[[], int],
        asked: Callable[[str], tuple[str, str] | None] = lambda _: None,
    ) -> None:
        """``asked`` says of a session at work which session asked for the work, and for which project."""
        self._links, self._state, self._now_ms, self._asked_by = links, state, now_ms, asked
        self.given = Variables(self._link)
        self._leaving = dict[str, tuple[ServiceClient, dict[str, Any]]]()
        """The directories that a service has forgotten but for its list, with their projects."""
        self._closing = set[str]()
        """The directories of which a service must hear nothing until ``forget``. A question about one would load it
        again, and one about a directory that goes meanwhile makes it one of no project, which the service keeps."""
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        """A lock for each directory about which a service is asked."""

    @property
    def is_there(self) -> bool:
        return bool(self._linked())

    def hosts(self, session: str) -> bool:
        known = self._state.sessions.get(session)
        return is_phantom(session) or (known is not None and bool(known.host))

    def knows(self, session: str) -> bool:
        """See ``Host``. The service makes tool calls as soon as it starts, but is heard of only a moment later."""
        return session in self._state.sessions

    # --- phantoms ---

    async def rights(
        self, session: str, agent: str | None, link: ShimConnection | None = None, work: str = ""
    ) -> Rights:
        client = await self._client(session)
        if (info := await requests.info(client, session)) is None:
            raise HostError("OpenCode 2 does not have this session", permanent=True)
        name = agent or info.get("agent")
        if not name:
            # A session for which nobody chose an agent. Its messages say which agent answered.
            said = await requests.messages(client, session)
            name = next((each["agent"] for each in reversed(said) if each.get("agent")), None)
        if not name:
            raise HostError("it is not known which agent this session runs", permanent=True)
        directory = str(mapping(info.get("location")).get("directory"))
        rules = await requests.rules_of(client, str(name), directory)
        return Rights(str(name), rules, requests.rules(info.get("permissions")))

    async def create(
        self,
        intent: str,
        *,
        title: str,
        directory: str,
        parent: str | None,
        agent: str | None = None,
        rights: Rights | None = None,
        project: str = "",
    ) -> str:
        """See ``Host``. The service answers a second request for the same id with the session that it has."""
        session, client = session_id(intent), await self._client(parent or "")
        if project not in ("", directory):
            asked, loaded = [await requests.plugins(client, each) for each in (project, directory)]
            try:
                check_plugins(asked, loaded, project, directory)
            except PluginMissing:
                await self._unload(client, directory)
                raise
        about = self.about(parent) if parent is not None else {}
        body: dict[str, Any] = {"id": session, "title": title, "location": {"directory": directory}}
        if chosen := _model(about.get("model")):
            body["model"] = chosen
        given, known = list[Rule](), list[Rule]()
        if rights is not None:
            body["agent"] = agent or rights.agent
            own = await requests.rules_of(client, body["agent"], directory)
            given, known = for_work(own, rights), [*own, *rights.rules, *rights.session]
        if project not in ("", directory):
            known = known or await requests.all_rules(client, agent, directory)
            # OpenCode 2 names a file inside of its location relatively to it, and any other file absolutely.
            given = [*given, *for_originals(known, lambda pattern: os.path.normpath(f"{project}/{pattern}"))]
        if given or rights is not None:
            body["permissions"] = [
                {"action": each.what, "resource": each.pattern, "effect": each.effect} for each in given
            ]
        await requests.change(client, "POST", "/api/session", body)
        await self.given.of(client, session, parent or session, project or directory)
        await self.given.tell(client, session)
        return session

    async def prompt(
        self,
        session: str,
        parts: Sequence[Part],
        *,
        directory: str,
        agent: str | None = None,
        model: str | None = None,
        reply: bool = True,
    ) -> bool:
        """See ``Host``. Parts with one key are one message; only the last message wakes the model.

        A message that is still in the session's inbox is sent again, because the service may have ended before the
        turn began. Nothing else would begin that turn.
        """
        client = await self._client(session)
        waiting = await self._inbox(client, session)
        by_key: dict[str, Part] = {}
        for part in parts:
            known = by_key.get(part.key)
            by_key[part.key] = known._replace(text=f"{known.text}\n{part.text}") if known else part
        parts = [each for key, each in by_key.items() if not (key and await self._is_saved(client, session, key))]
        is_new = any(not part.key or message_id(part.key) not in waiting for part in parts)
        if is_phantom(session) and is_new:
            if agent:
                await requests.change(client, "POST", f"{path_of(session)}/agent", {"agent": agent})
            if chosen := _model(model):
                await requests.change(client, "POST", f"{path_of(session)}/model", {"model": chosen})
        # Each queued message gets its own turn. But a note must start no turn, and several messages must share one
        # turn. The session is idle now, so its waiting messages are notes. A prompt joins a turn that the service has
        # just continued by itself.
        is_alone = reply and len(parts) == 1 and not waiting and not parts[0].is_prompt
        for count, part in enumerate(parts, 1):
            mark = {"key": part.key} | ({MARK: True} if part.is_prompt else {})
            ours = {"id": message_id(part.key), "metadata": {"durable_stream": mark}} if part.key else {}
            body = {
                **ours,
                "text": part.text,
                "delivery": "queue" if is_alone else "steer",
                "resume": reply and count == len(parts),
            }
            await requests.change(client, "POST", f"{path_of(session)}/prompt", body)
        return is_new

    async def holds(self, session: str, key: str, *, directory: str) -> bool:
        client = await self._client(session)
        # Check the inbox first: a message may move from there to the history between the two requests.
        return message_id(key) in await self._inbox(client, session) or await self._is_saved(client, session, key)

    async def abort(self, session: str, *, directory: str) -> None:
        """See ``Host``. Also stops the subagents, which the service lets go on. Also closes a turn that ended because a
        person refused something: otherwise the service would continue this turn after its next restart.
        """
        client = await self._client(session)
        try:
            below = [each for each in await self._active(client) if each != session and self._is_of(each, session)]
            for each in (*below, session):  # in this order, because a subagent reports to the session that it ended
                await requests.change(client, "POST", f"{path_of(each)}/interrupt")
            messages = await requests.messages(client, session) if is_phantom(session) else []
            turn = turn_of(messages)
            if turn is not None and turn.state == "cut" and session not in await self._active(client):
                # Sending a message that the session already has begins an empty turn, which calls no model.
                known = next(each for each in reversed(messages) if is_prompt(each))
                again = {"id": known["id"], "text": str(known.get("text"))}
                await requests.change(client, "POST", f"{path_of(session)}/prompt", again)
        except HostError as error:
            if not error.permanent:
                raise

    async def leave(self, session: str, *, directory: str, is_last: bool) -> None:
        client = await self._client(session)
        if is_last:
            await self._unload(client, directory)
            return
        for shell in await self._shells(client, session, directory):
            await requests.change(client, "DELETE", f"/api/shell/{shell}?{_at(directory)}")

    async def _unload(self, client: ServiceClient, directory: str) -> None:
        """Let the service forget a directory. This also ends all commands there, and reports nothing."""
        self._closing.add(directory)
        try:
            async with self._turn(directory):
                if await asyncio.to_thread(Path(directory).is_dir):
                    found = mapping(await requests.get(client, f"/api/location?{_at(directory)}"))
                    self._leaving[directory] = client, mapping(found.get("project"))
                await requests.change(client, "DELETE", f"/api/debug/location?{_at(directory)}")
        except BaseException:
            self._closing.discard(directory)
            raise

    def _turn(self, directory: str) -> asyncio.Lock:
        return self._asking.setdefault(directory, asyncio.Lock())

    async def forget(self, directory: str) -> None:
        """See ``Host``. The service keeps a directory in its list of the project's, until it looks which are gone."""
        self._closing.discard(directory)
        if directory not in self._leaving or await asyncio.to_thread(Path(directory).exists):
            return
        client, project = self._leaving.pop(directory)
        await requests.change(client, "POST", "/api/worktree/refresh", {"projectID": project.get("id")})
        snapshots = {"project": str(project.get("id")), "directory": str(project.get("directory"))}
        await call(self._link(client), "snapshots.remove", snapshots)

    async def _shells(self, client: ServiceClient, session: str, directory: str) -> dict[str, str]:
        """The shell commands that a session, and those below it, have running in a directory, by id."""
        async with self._turn(directory):
            if directory in self._closing or not await asyncio.to_thread(Path(directory).is_dir):
                return {}  # the service cannot say
            listed = mapping(await requests.find(client, f"/api/shell?{_at(directory)}"))
        found = [mapping(each) for each in as_list(listed.get("data"))]
        mine = [each for each in found if self._is_of(mapping(each.get("metadata")).get("sessionID"), session)]
        return {str(each.get("id")): str(each.get("command")) for each in mine}

    def _is_of(self, session: str | None, above: str) -> bool:
        """Whether a session is, or is below, another one."""
        while session is not None and session != above:
            known = self._state.sessions.get(session)
            session = known.parent if known is not None else None
        return session is not None

    async def look(self, session: str, *, directory: str) -> Look:
        """See ``Host``. Looks again while the service may be ending, or may be about to begin or continue a turn."""
        left = SETTLE_LOOKS
        while True:
            client = await self._client(session)
            if (info := await requests.info(client, session)) is None:
                return Look("gone")
            turn = turn_of(messages := await requests.messages(client, session))
            shells = await self._shells(client, session, directory) if turn is not None else {}
            if turn is not None and turn.state in _OVER:
                return Look(turn.state, turn.said, left=tuple(shells.values()))
            is_left = turn is not None and not shells.keys().isdisjoint(turn.running)
            if is_left and quiet_ms(messages[-1], 0, self._now_ms()) < LEFT_MS:
                return Look("busy")
            quiet, left = await self._quiet_ms(client, session, messages, turn), left - 1
            # The session of a turn that was cut is still active for a moment.
            if left == 0 or (quiet is not None and (turn is None or turn.state != "cut")):
                break
            await asyncio.sleep(SETTLE_SECONDS)
        if quiet is not None:
            return Look("busy", quiet_ms=quiet)
        if turn is not None:
            return Look(_SETTLED[turn.state], turn.said, left=tuple(shells.values()))
        if info.get("outcome"):
            return Look("stopped")  # a person has undone the turn, and with it the prompt
        return Look("unanswered" if await self._inbox(client, session) else "unprompted")

    async def _quiet_ms(
        self, client: ServiceClient, session: str, messages: list[dict[str, Any]], turn: Turn | None
    ) -> int | None:
        """For how long a session at work, or else its subagents, have shown no activity; ``None`` if nothing runs."""
        active, known, now = await self._active(client), self._state.sessions.get(session), self._now_ms()
        if session in active:
            recorded = known.turn.last_ms if known is not None and known.turn is not None else 0
            return quiet_ms(messages[-1] if messages else {}, recorded, now)
        children = [each for each in (turn.running if turn is not None else ()) if each in active]
        newest = [await requests.messages(client, child, count=1) for child in children]
        return min((quiet_ms(found[-1] if found else {}, 0, now) for found in newest), default=None)

    async def goes_on(self, session: str) -> bool:
        """See ``Host``. Also true if the session's work is over. Waits a while, so that a service that is ending can
        end, and a service that has just started can continue its turns.
        """
        await asyncio.sleep(SETTLE_SECONDS)
        return (await self.look(session, directory="")).state not in ("unanswered", "unprompted")

    # --- forks ---

    async def message_ids(self, session: str, *, directory: str) -> list[str] | None:
        client = await self._client(session)
        if await requests.info(client, session) is None:
            return None
        return await requests.message_ids(client, session)

    async def fork(self, session: str, before: str | None, *, directory: str) -> str:
        body = {"before": before} if before is not None else {}
        return await requests.make(await self._client(session), f"{path_of(session)}/fork", body)

    async def begin(self, session: str, title: str, *, directory: str) -> str:
        body = {"title": title, "location": {"directory": directory}}
        return await requests.make(await self._client(session), "/api/session", body)

    # --- any session ---

    async def status(self, session: str) -> Status:
        try:
            client = await self._client(session)
            return "busy" if session in await self._active(client) else "idle"
        except HostError:
            return "absent"

    async def toast(self, session: str, title: str, text: str) -> bool:
        return False

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        """See ``Host``. The model of OpenCode 2 does not read why a permission was refused, so the reason becomes
        a message of its own, which is there before the model continues.
        """
        client = await self._client(session)
        what = "permission" if kind == "permission" else "form"
        asked = await self._asked(client, session, what, request)
        if asked is None:
            return "gone"
        method, path, note = "POST", f"{path_of(session)}/{what}/{quote(request, safe='')}", ""
        body: dict[str, Any] | None
        if kind == "permission":
            body = {"decision": answer[0]}
            if why := "".join(answer[1:2]):
                note, body = await self._send_reason(client, session, request, why), body | {"message": why}
            path += "/reply"
        elif list(answer) == ["reject"]:
            method, body = "DELETE", None
        else:
            path, body = f"{path}/reply", {"answer": _filled(asked, answer)}
        try:
            await requests.send(client, method, path, body)
        except ServiceError as error:
            if note:
                await requests.change(client, "DELETE", note)
            is_settled = error.status in (requests.NOT_FOUND, requests.CONFLICT)
            if is_settled and await self._asked(client, session, what, request) is None:
                return "gone"  # somebody has answered in the meantime
            raise requests.refused(method, path, error) from None
        return "answered"

    async def _asked(self, client: ServiceClient, session: str, what: str, request: str) -> dict[str, Any] | None:
        return next((each for each in await requests.list_of(client, session, what) if each.get("id") == request), None)

    async def _send_reason(self, client: ServiceClient, session: str, request: str, why: str) -> str:
        """Tell a session's model why a request was refused. Returns the path of the message while it waits."""
        message = message_id(f"{request}:why")
        said = f"The user refused this tool call: {why}"
        prompt = {"id": message, "text": said, "description": "Refused", "delivery": "steer"}
        await requests.change(client, "POST", f"{path_of(session)}/synthetic", prompt)
        return f"{path_of(session)}/inbox/{message}"

    def waiting_for(self, link: ShimConnection, sessions: Collection[str]) -> list[str]:
        place = place_of(Path(link.identity.service))
        found = [(each, self._state.sessions.get(each)) for each in sessions]
        return [each for each, known in found if known is not None and known.host == place]

    # --- the service ---

    async def _inbox(self, client: ServiceClient, session: str) -> list[Any]:
        """The ids of messages that are in no turn yet, such as notes that wait for a message that wakes the model."""
        return [each.get("id") for each in await requests.list_of(client, session, "inbox")]

    async def _is_saved(self, client: ServiceClient, session: str, key: str) -> bool:
        return await requests.find(client, f"{path_of(session)}/message/{message_id(key)}") is not None

    async def _active(self, client: ServiceClient) -> dict[str, Any]:
        return mapping(mapping(await requests.get(client, requests.ACTIVE)).get("data"))

    async def runner(self, intent: str, parent: str | None, directory: str, environment: str) -> Call:
        client, session = await self._client(parent or ""), session_id(intent)
        link, variables = self._link(client), await self.given.of(client, session, parent or session, directory)
        more = {"variables": variables} if variables else {}
        return lambda method, args: call(link, method, args | more)

    def _link(self, client: ServiceClient) -> ShimConnection:
        """The link to the plugin of a service."""
        if (link := next((each for each in self._linked() if each.pid == client.pid), None)) is None:
            raise HostAbsent("the plugin of the OpenCode 2 service is not connected")
        return link

    def _linked(self) -> list[ShimConnection]:
        return [link for link in self._links() if link.is_open and link.identity.service]

    async def _client(self, session: str) -> ServiceClient:
        """The service that hosts a session. For a new session, it is the service of the parent, or else the only
        service. A session of ours at work gets its variables again if the service has ended since.
        """
        client = ServiceClient(await self._registration(session))
        if is_phantom(session) and (asked := self._asked_by(session)) is not None:
            await self.given.of(client, session, *asked)
            await self.given.tell(client, session)
        return client

    async def _registration(self, session: str) -> Registration:
        known = self._state.sessions.get(session)
        wanted = known.host if known is not None else ""
        for path in [Path(link.identity.service) for link in self._linked()]:
            if wanted and place_of(path) != wanted:
                continue
            try:
                registration = await asyncio.to_thread(read_registration, path)
            except UnsafeService as error:
                raise HostError(f"the OpenCode 2 service cannot be trusted: {error}") from None
            if registration is not None:
                return registration
        raise HostAbsent("the OpenCode 2 service that hosts this session is not running")


def _filled(form: dict[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """A form's answer, made from one text for each field: the label of a chosen option, or free text."""
    fields = [mapping(each) for each in as_list(form.get("fields"))]
    kinds = {str(each.get("type")) for each in fields}
    if len(fields) != len(answers) or not kinds <= {"string", "multiselect"}:
        raise HostError("this form can be answered only in the terminal of OpenCode 2", permanent=True)
    filled: dict[str, Any] = {}
    for field, answer in zip(fields, answers, strict=True):
        options = map(mapping, as_list(field.get("options")))
        value = next((each.get("value") for each in options if each.get("label") == answer), answer)
        filled[str(field.get("key"))] = [value] if field.get("type") == "multiselect" else value
    return filled


def _at(directory: str) -> str:
    return f"location[directory]={quote(directory, safe='')}"


def _model(name: str | None) -> dict[str, str] | None:
    provider, slash, model = (name or "").partition("/")
    return {"providerID": provider, "id": model} if slash else None
