"""``Host`` on OpenCode 1, through the links of its plugins. A session is reached through the link to the process that
hosts the session.

A user's session is changed only through the OpenCode that hosts it, because OpenCode processes share no lock and do not
show messages that another process added. A phantom is hosted by a headless OpenCode.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.opencode.capture.shapes import is_abort
from bridge.opencode.capture.state import CaptureState, Turn
from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts import missing_features
from sidecar.background.hosts.calling import CALL_SECONDS, call
from sidecar.background.hosts.headless import Headless
from sidecar.background.hosts.host import Call, Host, HostAbsent, HostError, Look, Part, Status
from sidecar.background.hosts.identity import NOBODY
from sidecar.background.hosts.plugins import check_plugins
from sidecar.background.hosts.rights import Rights, Rule, for_originals, for_work
from sidecar.background.hosts.v1_ids import message_id, part_ids
from sidecar.processes import still_runs

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

SETTLE_MS: Final = 30_000
"""A prompt younger than this many ms may not have started its turn yet."""

_SAVED_SECONDS: Final = 3.0
"""How long OpenCode may take to save a prompt that it accepted."""

_CUT_OFF: Final = "the OpenCode that runs this work is not connected now"

LOOKED: Final = 300
"""How many of a session's newest messages are read to find out what the session did with its last prompt."""

HISTORY: Final = 60
"""How many of a session's newest messages are searched for a key."""


class V1Host(Host):
    """``Host`` on OpenCode 1. ``links`` returns the open links, and ``delivers`` says whether a link has ever delivered
    a hook."""

    lacks = missing_features.ONE

    def __init__(
        self,
        links: Callable[[], Iterable[ShimConnection]],
        delivers: Callable[[Any], bool],
        state: CaptureState,
        headless: Headless,
        is_phantom: Callable[[str], bool],
        now_ms: Callable[[], int],
        environment: Callable[[str], str] = lambda _: "",
    ) -> None:
        """``environment`` names the identity of an intent, or of a phantom's session."""
        self._now_ms, self._environment = now_ms, environment
        self._links, self._delivers, self._state, self._headless = links, delivers, state, headless
        self._is_phantom = is_phantom

    # --- phantoms ---

    async def rights(
        self, session: str, agent: str | None, link: ShimConnection | None = None, work: str = ""
    ) -> Rights:
        link = link or self._hosting(session)
        if link is None and work:
            link = await self._phantoms(self.about(session).get("directory", ""), work)
        if link is None:
            raise HostAbsent("the OpenCode that hosts this session is not connected")
        found = await call(link, "session.get", {"path": {"id": session}})
        about = found if isinstance(found, dict) else {}
        name = agent or self.about(session).get("agent") or about.get("agent")
        if not name:
            raise HostError("it is not known which agent this session runs", permanent=True)
        return Rights(name, await _rules_of(link, name, link.directory), _rules(about.get("permission")))

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
        link = await self._phantoms(directory, intent)
        listed = await call(link, "session.list", {"query": {"directory": directory}})
        for each in listed if isinstance(listed, list) else []:
            if isinstance(each, dict) and (each.get("metadata") or {}).get("intent") == intent:
                return str(each["id"])
        body: dict[str, Any] = {"title": title, "metadata": {"intent": intent}}
        if parent is not None:
            body["parentID"] = parent
            # OpenCode uses this model if neither the prompt nor the prompt's agent names one.
            provider, _, name = str(self.about(parent).get("model") or "").partition("/")
            if name:
                body["model"] = {"providerID": provider, "id": name}
        given, known = list[Rule](), list[Rule]()
        if rights is not None:
            own = await _rules_of(link, agent or rights.agent, directory)
            given, known = for_work(own, rights), [*own, *rights.rules, *rights.session]
        if project not in ("", directory):
            known = known or await _rules_of_all(link, agent, directory)
            given = [*given, *for_originals(known, _original(link.worktree, directory, project))]
        if given or rights is not None:
            body["permission"] = [
                {"permission": each.what, "pattern": each.pattern, "action": each.effect} for each in given
            ]
        asking = self._hosting(parent) if parent is not None else None
        if project and (asking is None or asking.directory != project):
            asking = await self._phantoms(project, intent)
        if asking is not None and asking is not link:
            check_plugins(await _plugins(asking), await _plugins(link), project, directory)
        return _made(await call(link, "session.create", {"body": body, "query": {"directory": directory}}))

    async def forget(self, directory: str) -> None:
        """See ``Host``. A headless OpenCode keeps what it opened for a directory, some 5 files, until then."""
        own = [each for each in self._acting() if each.identity.headless]
        for link in [each for each in own if each.directory == directory]:
            await call(link, "snapshots.remove", {"project": link.project, "directory": link.worktree})
            beside = (each for each in own if each.boot_id == link.boot_id and each is not link)
            if (other := next(beside, None)) is not None:  # its own link closes with the directory
                await call(other, "instance.dispose", {"query": {"directory": directory}})

    @property
    def is_there(self) -> bool:
        return any(link.is_open and link.directory for link in self._links())

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
        # Not through a person's OpenCode in which the phantom was opened after its end, perhaps without its directory.
        is_phantom = self._is_phantom(session)
        link = await (self._phantoms(directory, session) if is_phantom else self._of(session, directory))
        history = await self._history(link, session)
        present = _keys(history)
        wanted = [part for part in parts if part.key not in present]
        if not wanted:
            return False
        # The history may lack the prompt, because OpenCode may take seconds to save a prompt that it accepted. A second
        # prompt with the same ids changes nothing.
        known = [str((message.get("info") or {}).get("id")) for message in history]
        message = message_id(session, known, wanted[-1].key) if wanted[-1].key else None
        ids = dict(zip(parts, part_ids(message, [part.key for part in parts]), strict=True)) if message else {}
        body: dict[str, Any] = {
            "parts": [
                {
                    "type": "text",
                    "text": part.text,
                    "synthetic": bool(part.key) and not (is_phantom or part.is_shown),
                    **({"metadata": {"durable_stream": {"key": part.key}}} if part.key else {}),
                    **({"id": ids[part]} if ids else {}),
                }
                for part in wanted
            ]
        }
        if message:
            body["messageID"] = message
        if agent:
            body["agent"] = agent
        if model and "/" in model:
            provider, _, name = model.partition("/")
            body["model"] = {"providerID": provider, "modelID": name}
        if not reply:
            body["noReply"] = True
        await call(link, "session.promptAsync", {"path": {"id": session}, "body": body})
        return True

    async def holds(self, session: str, key: str, *, directory: str) -> bool:
        return key in _keys(await self._history(await self._of(session, directory), session))

    async def _history(self, link: ShimConnection, session: str) -> list[dict[str, Any]]:
        """A session's newest messages, oldest first."""
        found = await call(link, "session.messages", {"path": {"id": session}, "query": {"limit": HISTORY}})
        return found if isinstance(found, list) else []

    async def abort(self, session: str, *, directory: str) -> None:
        link = self._hosting(session)
        if link is None and self._is_phantom(session) and await self._headless.runs(self._environment(session)):
            # The headless OpenCode is running, but needs a moment to connect to a new sidecar, so wait for its link.
            link = await self._phantoms(directory, session)
        if link is not None:
            await call(link, "session.abort", {"path": {"id": session}})
        elif await self._is_cut_off(session):
            raise HostError(_CUT_OFF)

    async def look(self, session: str, *, directory: str) -> Look:
        look = await self._look(session, directory=directory)
        if look.state == "unprompted":  # OpenCode saves a prompt a moment after accepting it
            await asyncio.sleep(_SAVED_SECONDS)
            look = await self._look(session, directory=directory)
        return look

    async def _look(self, session: str, *, directory: str) -> Look:
        link = await self._of(session, directory)
        statuses = await call(link, "session.status", {})
        status = statuses.get(session) if isinstance(statuses, dict) else None
        try:
            found = await call(link, "session.messages", {"path": {"id": session}, "query": {"limit": LOOKED}})
        except HostError as error:
            if error.permanent:
                return Look("gone")
            raise
        infos = [message.get("info") or {} for message in (found if isinstance(found, list) else [])]
        prompted = max((n for n, info in enumerate(infos) if info.get("role") == "user"), default=-1)
        if isinstance(status, dict) and status.get("type") != "idle":
            quiet = 0 if status.get("type") == "retry" else _quiet_ms(found, self._now_ms())
            return Look("busy", quiet_ms=quiet)
        if prompted < 0 or not found[prompted].get("parts"):
            return Look("unprompted")
        last = infos[-1]
        if last.get("role") != "assistant":
            made = (last.get("time") or {}).get("created", 0)
            return Look("busy" if self._now_ms() - made < SETTLE_MS else "unanswered")
        fault = last.get("error") or {}
        over = fault or last.get("finish") in ("stop", "length")
        if not over or not (last.get("time") or {}).get("completed"):
            return Look("unanswered")
        if is_abort(fault):
            return Look("aborted")
        if fault:
            return Look("failed", str((fault.get("data") or {}).get("message") or fault.get("name") or ""))
        texts = [part.get("text", "") for part in found[-1].get("parts", []) if part.get("type") == "text"]
        return Look("answered", "\n".join(texts))

    async def goes_on(self, session: str) -> bool:
        return False

    # --- forks ---

    async def message_ids(self, session: str, *, directory: str) -> list[str] | None:
        try:
            found = await call(self._forking(session, directory), "session.messageIds", {"path": {"id": session}})
        except HostError as error:
            if error.permanent:
                return None
            raise
        return [str(each) for each in found] if isinstance(found, list) else []

    async def fork(self, session: str, before: str | None, *, directory: str) -> str:
        body = {"messageID": before} if before is not None else {}
        link = self._forking(session, directory)
        return _made(await call(link, "session.fork", {"path": {"id": session}, "body": body}))

    async def begin(self, session: str, title: str, *, directory: str) -> str:
        return _made(await call(self._forking(session, directory), "session.create", {"body": {"title": title}}))

    def _forking(self, session: str, directory: str) -> ShimConnection:
        """The user's OpenCode that makes a fork in a directory: the one that hosts the session, or else the newest.

        Unlike a change, a copy needs no particular process. A headless one would end when no background work is left.
        """
        if (near := self._near(directory)) is None:
            raise HostAbsent(f"no OpenCode is open in {directory}")
        hosting = self._hosting(session)
        is_near = hosting is not None and hosting.directory == directory and not hosting.identity.headless
        return hosting if hosting is not None and is_near else near

    # --- any session ---

    async def status(self, session: str) -> Status:
        link = self._hosting(session)
        if link is None:
            if await self._is_cut_off(session):
                raise HostError(_CUT_OFF)
            return "absent"
        found = await call(link, "session.status", {})
        state = found.get(session) if isinstance(found, dict) else None
        return "busy" if isinstance(state, dict) and state.get("type") != "idle" else "idle"

    async def toast(self, session: str, title: str, text: str) -> bool:
        link = self._hosting(session)
        if link is None or link.identity.headless:  # a person sees what an OpenCode of the person's own shows
            link = self._near(str(self.about(session).get("directory")))
        if link is None:
            return False
        await call(link, "tui.showToast", {"body": {"title": title, "message": text, "variant": "info"}})
        return True

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        link = self._hosting(session)
        if link is None:
            raise HostError("the OpenCode that asked is not connected")
        reject = bool(answer) and answer[0] == "reject"
        args: dict[str, Any]
        if kind == "question":
            method = "question.reject" if reject else "question.reply"
            args = {"request_id": request} | ({} if reject else {"answers": [[each] for each in answer]})
        else:
            method = "permission.reply"
            args = {"session_id": session, "permission_id": request, "response": answer[0]}
            if answer[1:]:
                args["message"] = answer[1]
        try:
            await link.call(method, args, timeout=CALL_SECONDS)
        except CallError as error:
            if error.status == 404:
                return "gone"
            raise HostError(f"{method}: {error}", permanent=error.status == 400) from None
        return "answered"

    async def know(self, link: ShimConnection) -> str:
        return await self._headless.know(link)

    async def identity_of(self, session: str | None, link: ShimConnection | None) -> str:
        if session is not None and self._is_phantom(session):
            return self._environment(session)
        link = link or (self._hosting(session) if session is not None else None)
        if link is not None:
            return await self._headless.know(link)
        if session is not None:
            raise HostError("the OpenCode that hosts this session is not connected")
        return await self._headless.own() or NOBODY

    def ran_as(self, session: str) -> str:
        known = self._state.sessions.get(session)
        turn = (known.turn or known.last_turn) if known is not None else None
        return self._headless.was(turn.boot) if turn is not None else NOBODY

    async def runner(self, intent: str, parent: str | None, directory: str, environment: str) -> Call:
        return partial(call, await self._headless.link(directory, environment))

    def waiting_for(self, link: ShimConnection, sessions: Collection[str]) -> list[str]:
        return [each for each in sessions if each in self._state.sessions and self._would_host(each, link)]

    def _would_host(self, session: str, link: ShimConnection) -> bool:
        hosting = self._hosting(session)
        if hosting is None and self._is_phantom(session):
            # An OpenCode of the same identity may start a headless one that continues the session.
            return self._environment(session) == self._headless.identity_of(link)
        return hosting is link

    # --- who hosts what ---

    def _hosting(self, session: str) -> ShimConnection | None:
        """The link to the process that hosts a session; ``None`` while no process may act on it.

        The host is the process that last ran a turn of the session or sent its first hook. If that process has ended,
        the host is the user's newest OpenCode in the same directory. If that process is still running but not linked,
        it is only reconnecting, so there is no link.
        """
        known = self._state.sessions.get(session)
        if known is None:
            return None
        links = self._acting()
        turn = known.turn or known.last_turn
        boots = {turn.boot} if turn is not None else known.boots
        for link in links:
            if link.boot_id in boots and link.directory == known.directory:
                return link
        if self._is_phantom(session):
            return None
        return self._near(known.directory) if not self._still_runs(turn) else None

    def _near(self, directory: str | None) -> ShimConnection | None:
        """The link to the newest OpenCode that a person opened in a directory."""
        near = [each for each in self._acting() if each.directory == directory and not each.identity.headless]
        return near[-1] if near else None

    def _acting(self) -> list[ShimConnection]:
        """The links that may be asked to act. If a process has two plugin instances for a directory, it is only the one
        that delivers."""
        opened = [link for link in self._links() if link.is_open]
        alone = Counter((link.pid, link.directory) for link in opened)
        return [link for link in opened if self._delivers(link) or alone[link.pid, link.directory] == 1]

    async def _is_cut_off(self, session: str) -> bool:
        """Whether background work may run in a process that is not linked now. Called only if no link hosts the
        session.
        """
        if not self._is_phantom(session):
            return False
        known = self._state.sessions.get(session)
        turn = (known.turn or known.last_turn) if known is not None else None
        return self._still_runs(turn) if turn is not None else await self._headless.runs(self._environment(session))

    def _still_runs(self, turn: Turn | None) -> bool:
        """Whether the process of a turn runs. The pid is that of the sidecar's pid namespace (see ``handler.py``)."""
        return turn is not None and turn.pid is not None and still_runs(turn.pid, turn.started_ms)

    async def _of(self, session: str, directory: str) -> ShimConnection:
        link = self._hosting(session)
        if link is not None:
            return link
        if self._is_phantom(session) or session not in self._state.sessions:
            return await self._phantoms(directory, session)
        raise HostError("the OpenCode that hosts this session is not connected")

    async def _phantoms(self, directory: str, work: str) -> ShimConnection:
        """The link to the OpenCode that hosts an intent, or a phantom's session, for a directory; a headless one is
        started if needed."""
        link: ShimConnection = await self._headless.link(directory, self._environment(work))
        return link


def _made(session: Any) -> str:
    if not isinstance(session, dict) or not isinstance(session.get("id"), str):
        raise HostError("OpenCode created no session")
    return str(session["id"])


def _keys(history: list[dict[str, Any]]) -> set[str]:
    return {
        mark["key"]
        for message in history
        for part in message.get("parts", [])
        if isinstance(mark := (part.get("metadata") or {}).get("durable_stream"), dict) and mark.get("key")
    }


def _quiet_ms(messages: list[dict[str, Any]], now: int) -> int:
    """How many ms ago the newest part of a session's history began or ended; 0 while a tool is running."""
    newest = 0
    for message in messages[-2:]:
        times = [(message.get("info") or {}).get("time")]
        for part in message.get("parts") or []:
            state = part.get("state") or {}
            if state.get("status") == "running":
                return 0
            times += [part.get("time"), state.get("time")]
        given = [value for time in times for value in (time or {}).values() if isinstance(value, (int, float))]
        newest = max([newest, *map(int, given)])
    return max(now - newest, 0) if newest else 0


async def _rules_of(link: ShimConnection, agent: str, directory: str) -> tuple[Rule, ...]:
    listed = await call(link, "app.agents", {"query": {"directory": directory}})
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and each.get("name") == agent:
            return _rules(each.get("permission"))
    raise HostError(f"OpenCode has no agent {agent[:60]!a} for this project", permanent=True)


async def _rules_of_all(link: ShimConnection, agent: str | None, directory: str) -> list[Rule]:
    """The rules of an agent, or of all if none is named."""
    listed = await call(link, "app.agents", {"query": {"directory": directory}})
    named = [each for each in listed if agent in (None, each.get("name"))] if isinstance(listed, list) else []
    return [rule for each in named for rule in _rules(each.get("permission"))]


def _original(top: str, directory: str, project: str) -> Callable[[str], str]:
    """How a copy, whose repository is at ``top``, names a file that the project's repository names: OpenCode 1 names
    files relatively to the repository."""
    below = os.path.realpath(project)

    def original(pattern: str) -> str:
        if not directory.endswith(below) or not f"{directory}/".startswith(f"{top.rstrip('/')}/"):
            raise HostError(f"{directory} does not copy {project} in {top}, so its rules are unknown", permanent=True)
        return os.path.relpath(Path(top[len(directory) - len(below) :] or "/", pattern), top)

    return original


async def _plugins(link: ShimConnection) -> list[str]:
    """The plugins that an OpenCode has loaded for the directory of a link."""
    listed = await call(link, "plugin.list", {})
    return [each["name"] for each in (listed if isinstance(listed, list) else []) if not each.get("error")]


def _rules(listed: Any) -> tuple[Rule, ...]:
    return tuple(Rule(each["permission"], each["pattern"], each["action"]) for each in listed or ())
