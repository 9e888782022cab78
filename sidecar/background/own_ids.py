"""The gate in front of every id that a model names: a session may name only what is its own. Pure.

A session's own is what it, or a session of its background tree, asked or started. Its tree are the sessions that it
started, with OpenCode's own tool or with ours, at any depth. An id that is unknown and an id that belongs to somebody
else get the same answer, so that nobody learns which ids exist. What a person names, on the command line or with
``/background``, does not pass this gate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar

from bridge.opencode.link.protocol import RequestError
from sidecar.background.intents.state import Intent
from sidecar.background.intents.works import Works
from sidecar.background.messages.message import Message, State

T = TypeVar("T", Intent, Message)


def of_person(known: Iterable[T], given: str, noun: Literal["intent", "checkpoint"]) -> T:
    """The intent or checkpoint whose id begins with ``given``, as a person names it. A checkpoint may also be named as
    OpenCode names its request.

    Raises:
        RequestError: none has such an id, or several have.
    """
    found = [each for each in known if each.id.startswith(given) or getattr(each, "request", None) == given]
    if len(found) == 1:
        return found[0]
    several = "more than one" if found else "no"
    lists = {"intent": "durable-stream intents", "checkpoint": "durable-stream checkpoints --all"}[noun]
    why = f"{several} {noun} has an id that begins with {given[:40]!a}; `{lists}` lists all ids"
    raise RequestError("ambiguous" if found else f"no-{noun}", why)


class Caller:
    """The session whose model calls a tool. Everything that the model names is found through this class."""

    def __init__(self, session: str, works: Works, messages: State) -> None:
        self.session = session
        self._works, self._intents, self._messages = works, works.intents(), messages

    def owns(self, session: str | None) -> bool:
        return bool(session) and self.session in self._works.above(session)

    def root(self) -> str:
        return list(self._works.above(self.session))[-1]

    def started(self) -> list[Intent]:
        return [intent for intent in self._intents.intents.values() if self.session and intent.parent == self.session]

    def intent(self, given: str) -> Intent:
        """The caller's intent whose id is, or begins with, ``given``.

        Raises:
            RequestError: the caller has no such intent, or several.
        """
        mine = [intent for intent in self._intents.intents.values() if self.owns(intent.parent)]
        return _only(mine, given, "no-intent")

    def checkpoint(self, given: str) -> Message:
        """The caller's checkpoint whose id is, or begins with, ``given``.

        Raises:
            RequestError: the caller has no such checkpoint, or several.
        """
        mine = [known for known in self._messages.questions() if self.owns(known.session)]
        return _only(mine, given, "no-checkpoint")


def _only(mine: Iterable[T], given: str, code: str) -> T:
    found = [each for each in mine if each.id.startswith(given)]
    found = [each for each in found if each.id == given] or found
    if len(found) != 1:
        several = "several ids begin" if found else "no id begins"
        raise RequestError(
            "ambiguous" if found else code, f"of what this session asked or started, {several} with {given[:40]!a}"
        )
    return found[0]
