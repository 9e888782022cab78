"""The gate in front of every id that a model names: a session may name only what is its own. Pure.

A session's own is what it, or a session of its background tree, asked or started. Its tree are the sessions that it
started, with OpenCode's own tool or with ours, at any depth. An id that is unknown and an id that belongs to somebody
else get the same answer, so that nobody learns which ids exist. What a person names, on the command line or with
``/background``, does not pass this gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from bridge.opencode.link.protocol import RequestError
from sidecar.background.intents.state import Intent
from sidecar.background.intents.works import Works
from sidecar.background.people import checkpoints
from sidecar.background.people.checkpoints import Checkpoint

T = TypeVar("T", Intent, Checkpoint)


def intent_of_person(intents: Iterable[Intent], given: str) -> Intent:
    """The intent whose id begins with ``given``, as a person names it.

    Raises:
        RequestError: no intent has an id that begins with ``given``, or several have.
    """
    found = [intent for intent in intents if intent.id.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise RequestError("no-intent", _not_one(found, "intent", given, "durable-stream intents"))


def checkpoint_of_person(listed: Iterable[Checkpoint], given: str) -> Checkpoint:
    """The checkpoint whose id begins with ``given``, or whose request OpenCode calls so; raises as above."""
    found = [each for each in listed if each.id.startswith(given) or each.request == given]
    if len(found) == 1:
        return found[0]
    raise RequestError("no-checkpoint", _not_one(found, "checkpoint", given, "durable-stream checkpoints --all"))


def _not_one(found: Sequence[T], noun: str, given: str, lists: str) -> str:
    several = "more than one" if found else "no"
    return f"{several} {noun} has an id that begins with {given[:40]!a}; `{lists}` lists all ids"


class Caller:
    """The session whose model calls a tool. Everything that the model names is found through this class."""

    def __init__(self, session: str, works: Works, asked: checkpoints.State) -> None:
        self.session = session
        self._works, self._intents, self._asked = works, works.intents(), asked

    def owns(self, session: str | None) -> bool:
        return bool(session) and self.session in self._works.above(session)

    def root(self) -> str:
        """The session at the top of the caller's tree."""
        return list(self._works.above(self.session))[-1]

    def started(self) -> list[Intent]:
        return [intent for intent in self._intents.intents.values() if self.session and intent.parent == self.session]

    def intent(self, given: str) -> Intent:
        """The caller's intent whose id is, or begins with, ``given``.

        Raises:
            RequestError: the caller has no such intent, or several.
        """
        mine = [intent for intent in self._intents.intents.values() if self.owns(intent.parent)]
        return _only(mine, given, "no-intent", lambda intent: intent.id)

    def checkpoint(self, given: str) -> Checkpoint:
        """The caller's checkpoint whose id is, or begins with, ``given``.

        Raises:
            RequestError: the caller has no such checkpoint, or several.
        """
        mine = [known for known in self._asked.checkpoints.values() if self.owns(known.session)]
        return _only(mine, given, "no-checkpoint", lambda known: known.id)


def _only(mine: Iterable[T], given: str, code: str, id_of: Callable[[T], str]) -> T:
    found = [each for each in mine if id_of(each).startswith(given)]
    found = [each for each in found if id_of(each) == given] or found
    if len(found) != 1:
        several = "several ids begin" if found else "no id begins"
        raise RequestError(code, f"of what this session asked or started, {several} with {given[:40]!a}")
    return found[0]
