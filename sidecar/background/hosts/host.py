"""The interface between orchestration and OpenCode: what a host of sessions can do, in any version of OpenCode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from bridge.opencode.capture.state import CaptureState
from sidecar.background.hosts.rights import Rights

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

Status = Literal["idle", "busy", "absent"]
"""``absent``: no process that may act on the session can be reached now."""


class HostError(Exception):
    """A host could not do what it was asked to do. ``permanent`` is true if trying again cannot help."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        super().__init__(reason)
        self.permanent = permanent


class HostAbsent(HostError):
    """No OpenCode is open that could do the work, so the work waits until one is open."""


class Part(NamedTuple):
    """A text for a session. ``key`` marks the text, so that it can be recognised in the session's history.
    ``is_prompt`` marks a prompt for background work, whose answer ``Host.look`` looks for. ``is_shown``: a person sees
    it, also in OpenCode 1. Without a ``key``, the words are a person's own, and are sent as a person sends them.
    """

    text: str
    key: str
    is_prompt: bool = False
    is_shown: bool = False


Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method of a plugin, and returns its result. Raises ``HostError``."""

State = Literal["busy", "answered", "failed", "aborted", "stopped", "unanswered", "unprompted", "gone"]


class Look(NamedTuple):
    """The state of a session that should be at work.

    ``busy``: the session is working, or was prompted only just now. ``answered``: the prompt's turn is over, with
    ``text``. ``failed``: the prompt's turn ended with the error ``text``. ``aborted``: a person ended the turn.
    ``stopped``: the turn ended because a person refused a permission or a question. ``unanswered``: the session is
    idle, but the prompt's turn is unfinished or has not begun. ``unprompted``: the session is idle and has no prompt,
    because OpenCode accepted the prompt but ended before it saved the prompt. ``gone``: there is no such session.
    """

    state: State
    text: str = ""
    quiet_ms: int = 0
    """How long a busy session has shown no activity; 0 while a tool is running or a provider is being retried."""
    left: tuple[str, ...] = ()
    """The shell commands that the work left running, though it is over."""


class Host(Protocol):
    """Creates sessions, and acts on existing sessions. Every method raises ``HostError`` if it fails."""

    _state: CaptureState

    starts: str = "task"
    """OpenCode's own tool that starts an agent, as its rules name it."""

    async def rights(
        self, session: str, agent: str | None, link: ShimConnection | None = None, work: str = ""
    ) -> Rights:
        """What a session may do while it runs an agent, or else the agent of its last turn. ``link`` is the link on
        which a tool call of the session came. If the session is not open, the OpenCode that does ``work`` is asked.

        Raises:
            HostError: the OpenCode that hosts the session cannot be asked, or does not know the agent.
        """

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
        """Create the phantom session that carries the intent's id, unless this session already exists. Return the
        session's id.

        The session may do what ``agent`` may do in ``directory``, and no more than ``rights`` allow. Without
        ``rights``, a person asked for the work, and OpenCode's configuration decides.

        Raises:
            PluginMissing: a plugin that is loaded for ``project``, of which ``directory`` may be a copy, is not loaded
                for ``directory``.
        """

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
        """Give a session a message. With ``reply``, the model answers the message. Several parts may share a key.

        Parts whose key is already in the session's history are left out. Return false if the history already had all
        parts.
        """

    async def holds(self, session: str, key: str, *, directory: str) -> bool:
        """Whether a message with this key is in a session's history."""

    async def abort(self, session: str, *, directory: str) -> None:
        """Stop what a session is doing. A session in which nothing is running is not an error.

        The call fails if a phantom's process is running but cannot be reached, so that the caller tries again.
        """

    async def leave(self, session: str, *, directory: str, is_last: bool) -> None:
        """End the shell commands that a session, or one below it, left running. OpenCode may report that to it.

        ``is_last``: nobody works in the directory any more, and nothing runs in the session. So OpenCode also ends what
        it started there by itself, and forgets the directory. A host that keeps nothing does nothing.
        """
        return

    async def forget(self, directory: str) -> None:
        """Take back what OpenCode keeps of a directory that ``leave`` left last, and that is gone now."""
        return

    async def status(self, session: str) -> Status:
        """What a session is doing in the process that hosts it.

        A phantom is ``absent`` only if its process has ended. The call fails if the process is running but cannot be
        reached.
        """

    async def look(self, session: str, *, directory: str) -> Look:
        """What a phantom's session did with its last prompt, according to the session's history."""

    async def goes_on(self, session: str) -> bool:
        """Whether OpenCode itself continues a phantom's session whose turn was interrupted.

        Raises:
            HostAbsent: no OpenCode is open that could continue the session.
        """

    async def message_ids(self, session: str, *, directory: str) -> list[str] | None:
        """The ids of a session's messages, oldest first; ``None`` if there is no such session.

        Raises:
            HostAbsent: no OpenCode of the user's is open that could fork the session in ``directory``.
        """

    async def fork(self, session: str, before: str | None, *, directory: str) -> str:
        """Make a session of the user's own that has the messages of another one ``before`` one of them, or else all.
        Nothing runs in it. Returns its id. Raises what ``message_ids`` raises.
        """

    async def begin(self, session: str, title: str, *, directory: str) -> str:
        """Make an empty session of the user's own, where ``fork`` would make one. Returns its id."""

    async def toast(self, session: str, title: str, text: str) -> bool:
        """Show a short message where the session is open; false if nobody could see it."""

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        """Answer a ``permission`` (``once``, ``always``, or ``reject`` and a message) or a ``question``.

        Returns ``answered``, or ``gone`` if nothing is waiting for the answer.
        """

    @property
    def is_there(self) -> bool:
        """Whether an OpenCode of this version is linked."""

    def waiting_for(self, link: ShimConnection, sessions: Collection[str]) -> list[str]:
        """Those of the sessions on which a process that has just linked may now be asked to act."""

    async def runner(self, intent: str, parent: str | None, directory: str, environment: str) -> Call:
        """The plugin that runs the commands of an intent: that of the OpenCode in which the work runs.

        Raises:
            HostAbsent: no OpenCode is open that could do the work.
        """

    def knows(self, session: str) -> bool:
        """Whether it is known which OpenCode the session of a tool call belongs to."""
        return True

    async def know(self, link: ShimConnection) -> str:
        """Which identity the OpenCode that linked has: what it may do. Empty if all work has that of one service."""
        return ""

    async def identity_of(self, session: str | None, link: ShimConnection | None) -> str:
        """The identity of the session that asks for work, on a ``link`` if there is one. If nobody asks, that of the
        sidecar, or ``NOBODY`` if that is in a sandbox.

        Raises:
            HostError: it is not known.
        """
        return ""

    def ran_as(self, session: str) -> str:
        """The identity of the process that ran the last turn of a session, open or not; ``NOBODY`` if unknown."""
        return ""

    def about(self, session: str) -> dict[str, Any]:
        """What is known about a session: ``directory``, ``agent``, ``model``; empty if nothing is known."""
        known = self._state.sessions.get(session)
        if known is None:
            return {}
        turn = known.turn or known.last_turn
        about: dict[str, Any] = {"directory": known.directory or ""}
        if turn is not None:
            about["agent"] = turn.agent
            model = turn.model or {}
            if model.get("provider") and model.get("model"):
                about["model"] = f"{model['provider']}/{model['model']}"
        return about
