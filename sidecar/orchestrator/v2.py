"""``Host`` on OpenCode 2: through the HTTP API of the user's own service, which keeps sessions alive by itself.

The ids of phantom sessions and of messages are derived from the intent and from the effect's key. The service accepts
each id only once, so a retry changes nothing.

Measured on preview next-16350. This preview drops the parent, title and metadata of a session that it creates, and has
no toasts: see ``lacks.py``. When the service starts again, it continues a turn that SIGTERM interrupted, but not a turn
that SIGKILL ended.

The released versions were not run; only their source was read. The released versions keep all of these fields, and use
other names for some requests: see ``v2_routes.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping, text
from bridge.opencode.capture.state import CaptureState
from sidecar.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.opencode2.registration import UnsafeService, place_of, read_registration
from sidecar.orchestrator import lacks
from sidecar.orchestrator.host import HostAbsent, HostError, Look, Part, Status
from sidecar.orchestrator.v2_routes import CANCEL_FORM, PENDING, TITLE, Answered, Route

PHANTOM: Final = "ses_ds2"
"""The beginning of every phantom's id."""

SETTLE_SECONDS: Final = 1.0
SETTLE_LOOKS: Final = 5
"""How many times to look, ``SETTLE_SECONDS`` apart, whether a prompt, or a turn that the service continues by itself,
has begun."""

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409


def session_id(intent: str) -> str:
    """The id of an intent's session."""
    return PHANTOM + sha256(intent.encode()).hexdigest()[:20]


def message_id(key: str) -> str:
    """The id of the message that carries a key."""
    return f"msg_{sha256(key.encode()).hexdigest()[:26]}"


class V2Host:
    """``Host`` on OpenCode 2. ``registrations`` returns the registration files of the services whose plugins are
    linked."""

    lacks = lacks.TWO

    def __init__(
        self, registrations: Callable[[], Iterable[Path]], state: CaptureState, now_ms: Callable[[], int]
    ) -> None:
        self._registrations, self._state, self._now_ms = registrations, state, now_ms
        self._answered = Answered()

    @property
    def is_there(self) -> bool:
        """Whether a service is announced."""
        return any(True for _ in self._registrations())

    def hosts(self, session: str) -> bool:
        """Whether a session belongs to OpenCode 2."""
        known = self._state.sessions.get(session)
        return session.startswith(PHANTOM) or (known is not None and bool(known.host))

    def knows(self, session: str) -> bool:
        """Whether a session is recorded, so that its service is known."""
        return session in self._state.sessions

    # --- phantoms ---

    async def create(
        self, intent: str, *, title: str, directory: str, parent: str | None, pid: int | None, model: str | None = None
    ) -> str:
        """See ``Host``. The service accepts each id only once. If the service drops the title of a new session, the
        title is set afterwards.
        """
        session, client = session_id(intent), await self._client(parent or "")
        about = self.about(parent) if parent is not None else {}
        body: dict[str, Any] = {
            "id": session,
            "title": title,
            "metadata": {"durable_stream": {"intent": intent}},
            "location": {"directory": directory},
        }
        if parent is not None and about.get("directory") == directory:
            # OpenCode 2 runs a child in its parent's directory, whatever location the child has, so set a parent only
            # if both agree.
            body["parentID"] = parent
        if chosen := _model(model or about.get("model")):
            body["model"] = chosen
        made = mapping(mapping(await _post(client, "/api/session", body)).get("data"))
        if made.get("title") != title:
            await _wanted(self._by_name(client, session, TITLE, {"title": title}))
        return session

    async def find(self, intent: str, *, directory: str, parent: str | None, pid: int | None) -> str | None:
        """See ``Host``."""
        session, client = session_id(intent), await self._client(parent or "")
        return session if await _get(client, _path(session)) is not None else None

    async def prompt(
        self,
        session: str,
        parts: Sequence[Part],
        *,
        directory: str,
        agent: str | None = None,
        model: str | None = None,
        reply: bool = True,
        pid: int | None = None,
    ) -> bool:
        """See ``Host``. Each part becomes a separate message; only the last message wakes the model."""
        client = await self._client(session)
        parts = [part for part in parts if not await self.holds(session, part.key, directory=directory)]
        if session.startswith(PHANTOM):
            if agent:
                await _post(client, f"{_path(session)}/agent", {"agent": agent})
            if chosen := _model(model):
                await _post(client, f"{_path(session)}/model", {"model": chosen})
        # Each queued message gets its own turn. But a note must start no turn, and several messages must share one
        # turn. The session is idle now, so its pending messages are notes.
        is_alone = reply and len(parts) == 1 and not await self._pending(client, session)
        for count, part in enumerate(parts, 1):
            body = {
                "id": message_id(part.key),
                "text": part.text,
                "metadata": {"durable_stream": {"key": part.key}},
                "delivery": "queue" if is_alone else "steer",
                "resume": reply and count == len(parts),
            }
            await _post(client, f"{_path(session)}/prompt", body)
        return bool(parts)

    async def holds(self, session: str, key: str, *, directory: str, pid: int | None = None) -> bool:
        """See ``Host``."""
        client, message = await self._client(session), message_id(key)
        # Check the pending list first: a message may move from that list to the history between the two requests.
        if message in await self._pending(client, session):
            return True
        return await _get(client, f"{_path(session)}/message/{message}") is not None

    async def abort(self, session: str, *, directory: str) -> None:
        """See ``Host``."""
        try:
            await _post(await self._client(session), f"{_path(session)}/interrupt", None)
        except HostError as error:
            if not error.permanent:
                raise

    async def look(self, session: str, *, directory: str) -> Look:
        """See ``Host``."""
        client, known = await self._client(session), self._state.sessions.get(session)
        last = await _newest(client, session)
        if last is None:
            return Look("gone")
        for _ in range(SETTLE_LOOKS):
            if await self._is_active(client, session):
                recorded = known.turn.last_ms if known is not None and known.turn is not None else 0
                return Look("busy", quiet_ms=_quiet_ms(last, recorded, self._now_ms()))
            if last.get("type") == "assistant":
                break
            await asyncio.sleep(SETTLE_SECONDS)
            last = await _newest(client, session) or {}
        else:
            return Look("unanswered" if last else "unprompted")
        if not _is_over(last):
            # Only the service's log says whether a person stopped the turn, and it may not have been read that far yet.
            is_told = known is None or known.turn is None
            return Look("busy" if _is_cut_short(last) and not is_told else "unanswered")
        said = [text(each.get("text")) or "" for each in map(mapping, _list(last.get("content")))]
        return Look("answered", "\n".join(filter(None, said)))

    async def goes_on(self, session: str) -> bool:
        """See ``Host``. Waits a while, so that a service that is ending can end, and a service that has just started
        can continue its turns.
        """
        for _ in range(SETTLE_LOOKS):
            await asyncio.sleep(SETTLE_SECONDS)
            client = await self._client(session)
            if await self._is_active(client, session) or _is_over(await _newest(client, session)):
                return True
        return False

    # --- any session ---

    async def status(self, session: str) -> Status:
        """See ``Host``."""
        try:
            client = await self._client(session)
            return "busy" if await self._is_active(client, session) else "idle"
        except HostError:
            return "absent"

    async def toast(self, session: str, title: str, text: str) -> bool:
        """See ``Host``. Always false, because a service has no screen."""
        return False

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        """See ``Answering``."""
        client = await self._client(session)
        waiting = f"{_path(session)}/{'permission' if kind == 'permission' else 'form'}"
        listed = map(mapping, _list(mapping(await _get(client, waiting)).get("data")))
        asked = next((each for each in listed if each.get("id") == request), None)
        if asked is None:
            return "gone"
        reply = f"{waiting}/{quote(request, safe='')}/reply"
        if kind == "permission":
            # Released versions of OpenCode 2 call this field ``decision``, and the preview ``reply``, so send both.
            body = {"reply": answer[0], "decision": answer[0]} | ({"message": answer[1]} if answer[1:] else {})
            sending = _sent(client, "POST", reply, body)
        elif list(answer) == ["reject"]:
            sending = self._by_name(client, session, CANCEL_FORM, None, request)
        else:
            sending = _sent(client, "POST", reply, {"answer": _filled(asked, answer)})
        try:
            await sending
        except ServiceError as error:
            if error.status == _CONFLICT:
                return "gone"  # somebody has answered in the meantime
            raise HostError(f"OpenCode 2 answered {error}", permanent=400 <= error.status < 500) from None
        return "answered"

    def about(self, session: str) -> dict[str, Any]:
        """See ``Host``."""
        known = self._state.sessions.get(session)
        if known is None:
            return {}
        turn = known.turn or known.last_turn
        about: dict[str, Any] = {"directory": known.directory or ""}
        if turn is not None:
            model = turn.model or {}
            about["agent"] = turn.agent
            if model.get("provider") and model.get("model"):
                about["model"] = f"{model['provider']}/{model['model']}"
        return about

    def waiting_for(self, registration: str) -> list[str]:
        """The sessions of a service whose plugin has just linked."""
        place = place_of(Path(registration))
        return [session for session, known in self._state.sessions.items() if known.host == place]

    # --- the service ---

    async def _by_name(
        self,
        client: ServiceClient,
        session: str,
        names: tuple[Route, ...],
        body: dict[str, Any] | None,
        about: str = "",
    ) -> Any:
        """The answer to a request that has several names; raises ``ServiceError`` with status 404 if the service
        answers 404 to all of these names.
        """
        for route in self._answered.of(client.process, names):
            path = _path(session) + route.path.format(quote(about, safe=""))
            try:
                answer = await _sent(client, route.method, path, body)
            except ServiceError as error:
                if error.status != _NOT_FOUND:
                    raise
            else:
                self._answered.note(client.process, names, route)
                return answer
        raise ServiceError(_NOT_FOUND)

    async def _pending(self, client: ServiceClient, session: str) -> list[Any]:
        """The ids of messages that are in no turn yet, such as notes that wait for a message that wakes the model."""
        try:
            found = mapping(await self._by_name(client, session, PENDING, None)).get("data")
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                return []
            raise HostError(f"OpenCode 2 answered {error}") from None
        return [each.get("id") for each in map(mapping, _list(found))]

    async def _is_active(self, client: ServiceClient, session: str) -> bool:
        return session in mapping(mapping(await _get(client, "/api/session/active")).get("data"))

    async def _client(self, session: str) -> ServiceClient:
        """The service that hosts a session. For a new session, it is the service of the parent, or else the only
        service.
        """
        known = self._state.sessions.get(session)
        wanted = known.host if known is not None else ""
        for path in self._registrations():
            if wanted and place_of(path) != wanted:
                continue
            try:
                registration = await asyncio.to_thread(read_registration, path)
            except UnsafeService as error:
                raise HostError(f"the OpenCode 2 service cannot be trusted: {error}") from None
            if registration is not None:
                return ServiceClient(registration)
        raise HostAbsent("the OpenCode 2 service that hosts this session is not running")


async def _get(client: ServiceClient, path: str) -> Any:
    """The answer to a ``GET``; ``None`` if the service answers 404."""
    try:
        return await client.get(path)
    except ServiceError as error:
        if error.status == _NOT_FOUND:
            return None
        raise HostError(f"OpenCode 2 answered {error}") from None
    except (ServiceGone, UnsafeService) as error:
        raise HostError(f"the request to the OpenCode 2 service failed: {error}") from None


async def _post(client: ServiceClient, path: str, body: dict[str, Any] | None) -> Any:
    return await _wanted(_sent(client, "POST", path, body))


async def _wanted(sending: Awaitable[Any]) -> Any:
    """The answer to a request that changes something."""
    try:
        return await sending
    except ServiceError as error:
        if error.status == _CONFLICT:
            return None  # the message already exists under the same id
        raise HostError(f"OpenCode 2 answered {error}", permanent=400 <= error.status < 500) from None


async def _sent(client: ServiceClient, method: str, path: str, body: dict[str, Any] | None) -> Any:
    try:
        return await client.send(method, path, body)
    except (ServiceGone, UnsafeService) as error:
        raise HostError(f"the request to the OpenCode 2 service failed: {error}") from None


def _filled(form: dict[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """A form's answer, made from one text for each field: the label of a chosen option, or free text."""
    fields = [mapping(each) for each in _list(form.get("fields"))]
    kinds = {str(each.get("type")) for each in fields}
    if len(fields) != len(answers) or not kinds <= {"string", "multiselect"}:
        raise HostError("this form can be answered only in the terminal of OpenCode 2", permanent=True)
    filled: dict[str, Any] = {}
    for field, answer in zip(fields, answers, strict=True):
        options = map(mapping, _list(field.get("options")))
        value = next((each.get("value") for each in options if each.get("label") == answer), answer)
        filled[str(field.get("key"))] = [value] if field.get("type") == "multiselect" else value
    return filled


def _quiet_ms(last: dict[str, Any], recorded_ms: int, now: int) -> int:
    """How many ms ago the newest part of a session's last message began or ended; 0 while a tool is running.

    ``recorded_ms``: the time of the newest record. While a provider is being retried, the silence is counted from the
    time of that record.
    """
    times: list[Any] = [recorded_ms, *mapping(last.get("time")).values(), mapping(last.get("retry")).get("at")]
    for part in map(mapping, _list(last.get("content"))):
        if mapping(part.get("state")).get("status") == "running":
            return 0
        times += mapping(part.get("time")).values()
    newest = max(int(each) for each in times if isinstance(each, (int, float)))
    return max(now - newest, 0) if newest else 0


async def _newest(client: ServiceClient, session: str) -> dict[str, Any] | None:
    """A session's newest message; empty if the session has no message, and ``None`` if there is no such session."""
    found = await _get(client, f"{_path(session)}/message?order=desc&limit=1")
    return None if not found else next(map(mapping, _list(mapping(found).get("data"))), {})


def _is_over(message: dict[str, Any] | None) -> bool:
    """Whether a message is the last answer of a turn."""
    last = message or {}
    is_final = last.get("type") == "assistant" and last.get("finish") in ("stop", "length", "error")
    return is_final and not _is_cut_short(last)


def _is_cut_short(message: dict[str, Any]) -> bool:
    """Whether an answer was interrupted by a person, or by the end of its service (if the service could still record
    the interruption).
    """
    return mapping(message.get("error")).get("type") == "aborted"


def _path(session: str) -> str:
    return f"/api/session/{quote(session, safe='')}"


def _model(name: str | None) -> dict[str, str] | None:
    provider, slash, model = (name or "").partition("/")
    return {"providerID": provider, "id": model} if slash else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
