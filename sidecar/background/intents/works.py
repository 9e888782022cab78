"""The one place that knows which sessions are background work, from the agent ``intents`` and from capture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bridge.opencode.capture.state import CaptureState
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.state import Intent, State


class Asker(NamedTuple):
    """What asks a person in a session."""

    intent: str | None
    """The unfinished background work that the session belongs to; ``None`` if there is none."""
    tell: str | None
    """The user's session whose screen shows the question; ``None`` if none does."""
    work: str = ""
    """The title of the session's background work, also of finished work."""
    directory: str = ""
    """The project's directory."""


def user(session: str) -> Asker:
    return Asker(None, session or None)


class Works:
    """``intents`` returns the state of the agent ``intents``."""

    def __init__(self, intents: Callable[[], State], state: CaptureState) -> None:
        self.intents, self._state = intents, state

    def intent(self, session: str | None) -> Intent | None:
        data = self.intents()
        return data.intents.get(data.sessions.get(session or "", ""))

    def above(self, session: str | None) -> Iterator[str]:
        """A session and its ancestors, nearest first. The ancestors matter because a child session of a phantom may
        start work, too."""
        seen: set[str] = set()
        while session is not None and session not in seen:
            seen.add(session)
            yield session
            known, intent = self._state.sessions.get(session), self.intent(session)
            session = known.parent if known is not None else None
            # What capture has not seen yet, or has forgotten, the intent may still know.
            session = session or (intent.parent if intent is not None else None)

    def above_elsewhere(self, session: str) -> str:
        """The session of another machine that asked for the work that a session belongs to; empty if none did."""
        return next((asking for each in self._line(session) if (asking := each.asked_by.get("session"))), "")

    def _line(self, session: str) -> list[Intent]:
        """The background work that a session belongs, or belonged, to, and the work above that, nearest first."""
        return [intent for each in self.above(session) if (intent := self.intent(each)) is not None]

    def root(self, session: str) -> str:
        """The root of the background work that a session belongs, or belonged, to; empty if there is none."""
        return next((intent.root for intent in self._line(session)), "")

    def chain(self, session: str) -> tuple[str, int]:
        """The root under which work counts that a session asks for, and how many pieces of work led to the session."""
        line, known = self._line(session), self._state.sessions.get(session)
        return (line[0].root, line[0].depth) if line else ((known.root if known is not None else "") or session, 0)

    def asked(self, session: str) -> tuple[str, str] | None:
        """Of a session at work: the session that asked for the work, or itself if a terminal did, and the project."""
        intent = self.intent(session)
        if intent is None or intent.state in ENDED:
            return None
        return intent.parent or session, intent.directory

    def asker(self, session: str) -> Asker:
        line = self._line(session)
        if line and line[0].state not in ENDED:
            return Asker(line[0].id, line[-1].parent, line[0].title, line[0].directory)
        # The copy of background work, which OpenCode knows, has an id as its name.
        if (own := self.intent(session)) is not None:
            return Asker(None, session, own.title, own.directory)
        known = self._state.sessions.get(session)
        return user(session)._replace(directory=(known.directory if known is not None else "") or "")
