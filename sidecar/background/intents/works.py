"""Which sessions are background work: the one place that knows, from the agent ``intents`` and from what capture saw.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bridge.opencode.capture.state import CaptureState
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.intents.state import Intent, State


class Asker(NamedTuple):
    """Who asks in a session: the unfinished background work that the session belongs to, if any; the user's session
    whose screen shows it; the title of the work that is, or was, done there; and the directory of the project.
    """

    intent: str | None
    tell: str | None
    work: str = ""
    directory: str = ""


def user(session: str) -> Asker:
    return Asker(None, session or None)


class Works:
    """``intents`` returns the state of the agent ``intents``."""

    def __init__(self, intents: Callable[[], State], state: CaptureState) -> None:
        self.intents, self._state = intents, state

    def intent(self, session: str | None) -> Intent | None:
        """The intent whose session this is or was."""
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

    def _nearest(self, session: str) -> Intent | None:
        return next(filter(None, map(self.intent, self.above(session))), None)

    def root(self, session: str) -> str:
        """The root of the background work that a session belongs to, or belonged to; empty if there is none."""
        found = self._nearest(session)
        return found.root if found is not None else ""

    def asker(self, session: str) -> Asker:
        found = self._nearest(session)
        if found is not None and found.state not in ENDED:
            top = found
            while (above := self.intent(top.parent)) is not None:
                top = above
            return Asker(found.id, top.parent, found.title, found.directory)
        # The worktree of background work, which OpenCode knows, has an id as its name.
        own, known = self.intent(session), self._state.sessions.get(session)
        if own is not None:
            return Asker(None, session, own.title, own.directory)
        return user(session)._replace(directory=(known.directory if known is not None else "") or "")
