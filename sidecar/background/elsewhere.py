"""Background work that one machine asks for and another one does: what travels between the two. Pure.

The work's end travels as facts, not as a text: the machine that asked makes the message for its session itself, so no
other machine can put words of ours into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol

from pydantic import Field, ValidationError

from bridge.opencode.link.protocol import RequestError
from sidecar.background.intents.registration import DEFAULT_MINUTES
from sidecar.background.intents.state import Intent
from sidecar.background.intents.texts import notice_text
from sidecar.background.messages.message import Message
from sidecar.background.people import sentences
from sidecar.read.ask_text import on_one_line
from sidecar.read.wording import cut_middle
from sidecar.registry import Args

TELL: Final = "machine.tell"
"""The effect that tells the machine which asked for work what the work asks, and how it ended."""

WAKE: Final = "wake"
ASKS: Final = "asks"
"""What it tells: the names of the requests."""

MAX_QUESTION: Final = 350
"""Maximum length of a question in the text about it, in characters."""

_TOLD: Final = ("id", "title", "directory", "result", "resumes", "hangs", "steps", "copy", "overlaps")
"""What of an intent the message about its end needs."""


class AskersRights(Args):
    """What a session on another machine may do: ``Rights.as_json``, and the version of OpenCode whose rules these
    are."""

    opencode: Literal[1, 2]
    agent: str = Field(max_length=200)
    rules: list[tuple[str, str, str]] = Field(max_length=10_000)
    session: list[tuple[str, str, str]] = Field(max_length=10_000)


class Spawned(Args):
    """What a machine may say of work that another one asks it for."""

    prompt: str = Field(min_length=1, max_length=100_000)
    title: str = Field(default="", max_length=100)
    directory: str = Field(max_length=8192)
    agent: str | None = Field(default=None, max_length=100)
    models: list[str] = Field(default=[])
    minutes: float = Field(default=DEFAULT_MINUTES, gt=0, le=1440)
    tokens: int = Field(default=0, ge=0)
    cost: float = Field(default=0.0, ge=0)
    isolation: Literal["auto", "copy", "shared"] | None = None
    rights: AskersRights | None = None
    session: str = Field(default="", max_length=200)
    """The session that asks; empty: a person does."""
    root: str = Field(default="", max_length=200)
    """The root of the session that asks."""
    depth: int = Field(default=0, ge=0, le=1000)
    """How many pieces of work led to that session."""


class Elsewhere(Protocol):
    """The other machines."""

    async def spawn(self, machine: str, args: dict[str, Any], key: str, session: str) -> dict[str, Any]:
        """Ask a machine for work whose result a session here gets: ``value`` (the intent), or ``queued``.

        Raises:
            RequestError: the machine refused, or cannot be asked.
        """

    async def tell(self, machine: str, name: str, args: dict[str, Any], key: str) -> None:
        """Tell a machine, now or when it can be reached, about work that it asked for. Idempotent by ``key``."""


def ended(intent: Intent, state: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """The effect's arguments: that work ended in a state. ``about`` has the other fields of its last event."""
    told = {name: getattr(intent, name) for name in _TOLD}
    names = ("reason", "result", "changes", "left")
    how = {name: about[name] for name in names if name in about}
    args = {"ask": intent.asked_by["ask"], "state": state, "intent": told, "about": how}
    return {"machine": intent.asked_by["machine"], "name": WAKE, "key": intent.id, "args": args}


def asks(asked_by: Mapping[str, str], question: Mapping[str, Any]) -> dict[str, Any]:
    """The effect's arguments: that work of another machine asks a person. ``question`` is a ``message.queued``."""
    about = {name: question.get(name) or default for name, default in _ASKED.items()}
    args = {"ask": asked_by["ask"], "question": {"id": question["message"], **about}}
    return {"machine": asked_by["machine"], "name": ASKS, "key": question["message"], "args": args}


_ASKED: Final[dict[str, Any]] = {"kind": "", "text": "", "options": [], "always": [], "work": "", "directory": ""}


class _Told(Args):
    id: str = Field(pattern=r"^int_[0-9a-f]{1,64}$")
    title: str
    directory: str
    result: str
    resumes: int
    hangs: int
    steps: int
    copy_: dict[str, Any] = Field(alias="copy")
    overlaps: dict[str, str]


class _Question(Args):
    id: str = Field(pattern=r"^chk_[0-9a-f]{1,64}$")
    kind: Literal["ask", "effect", "permission", "question"]
    text: str
    options: list[str]
    always: list[str]
    work: str
    directory: str


class _Asks(Args):
    ask: str
    question: _Question


class _Ended(Args):
    ask: str
    state: Literal["completed", "failed"]
    intent: _Told
    about: dict[str, Any]


def told(args: Mapping[str, Any], machine: str, ask: str, session: str | None, created: int) -> dict[str, Any]:
    """What the agent ``messages`` gets about work that ended on a machine; ``session`` gets the result, if any.

    Raises:
        RequestError: the arguments do not describe an end (``bad-arguments``).
    """
    try:
        found = _Ended.model_validate(args)
        about = {name.removesuffix("_"): value for name, value in found.intent.model_dump().items()}
        intent = Intent(**about, prompt="", parent=session, created=created)
        intent.asked_by = {"machine": "", "ask": ask, "on": machine}
        text = notice_text(intent, found.state, found.about)
    except (ValidationError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise RequestError(
            "bad-arguments", f"the arguments do not describe an end of work ({type(error).__name__})"
        ) from None
    known: dict[str, Any] = {"intent": intent.id, "state": found.state, "title": intent.title, "parent": session}
    known |= {"directory": f"{intent.directory} on {machine}", "created": created}
    known |= {"reason": str(found.about.get("reason") or "")}
    known |= {"gist": on_one_line(str(found.about.get("result") or intent.result))[:300]}
    if session is not None:
        known["notice"] = {"message": f"ntc_{ask[:12]}", "to": session, "text": text, "wake": True, "more": False}
    return known


def asked(args: Mapping[str, Any], machine: str, session: str | None) -> dict[str, Any]:
    """The command ``message.raise`` about what work on a machine asks; the screen of ``session`` shows it, if any.

    Raises:
        RequestError: the arguments do not describe a question (``bad-arguments``).
    """
    try:
        found = _Asks.model_validate(args).question
    except ValidationError:
        raise RequestError("bad-arguments", "the arguments do not describe a question") from None
    about = found.model_dump() | {"directory": f"{found.directory} on {machine}"}
    known = Message(**about, queued=0)
    shown, _ = cut_middle(sentences.asks(known), MAX_QUESTION)
    text = f"{shown} · {sentences.how_to_answer(known, machine)}"
    return {"message": f"alr_{found.id[4:]}", "to": session, "title": "OpenCode: background work", "text": text}
