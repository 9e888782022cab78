"""What the catalog knows of one session and of one stream. Pure."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sidecar.read.ask_text import OpenAsk, OpenCall
from streams.lineage import Session
from streams.store import NOTHING


class SessionView(Session):
    """One session: its place in the tree, agent, latest turn, figures and open asks. Times are in ms since 1970."""

    agent: str = ""
    model: str = ""
    """The model of the latest turn, as ``provider/model``; empty if unknown."""
    turn: str | None = None
    """The message of the latest turn; ``None`` before the first."""
    outcome: str | None = None
    """The outcome of the latest turn; ``None`` while it is open."""
    begun_ms: int | None = None
    """When the first turn began."""
    turn_ms: int = 0
    """When the latest turn began."""
    ended_ms: int | None = None
    """When the latest turn ended; ``None`` while it is open."""
    ran_ms: int = 0
    """How long all turns together took."""
    pid: int = 0
    """The pid of the OpenCode process that began the turn; 0 if unknown."""
    steps: int = 0
    cost: float = 0.0
    tokens: dict[str, int | float] = msgspec.field(default_factory=dict)
    asks: dict[str, OpenAsk] = msgspec.field(default_factory=dict)
    calls: dict[str, OpenCall] = msgspec.field(default_factory=dict)
    """The calls that have not ended, by part."""
    name: str = ""
    """The title that a person gave instead of OpenCode's, which is then in ``own_title``."""
    own_title: str = ""
    pinned: bool = False
    """Whether `prune` spares the stream that is named after the session."""
    retries: str = ""
    """Why and when the model is called again, if it failed and nothing has happened since."""
    is_background: bool = False
    """Whether OpenCode started the session in the background by itself, so that it reports by itself."""

    @property
    def is_turn_open(self) -> bool:
        """Whether the latest turn has not ended. Turns follow one another, so only the latest can be open."""
        return self.turn is not None and self.outcome is None

    @property
    def is_active(self) -> bool:
        """Whether a turn is open in a session that goes on."""
        return self.is_turn_open and self.ended is None

    @property
    def running(self) -> list[OpenCall]:
        """The calls that run now, oldest first; none while the session waits for a person."""
        return list(self.calls.values()) if self.is_active and not self.asks else []

    @property
    def status(self) -> str:
        """``waiting`` for a person, or ``active`` while a turn is open; otherwise ``ended``, ``idle`` or ``unknown``.

        The parent of an ``unknown`` session is not known.
        """
        if self.asks:
            return "waiting"
        if self.is_active:
            return "active"
        return "ended" if self.ended is not None else "idle" if self.known else "unknown"

    def worked_ms(self, now_ms: int) -> int:
        """How long all turns together took until now."""
        return self.ran_ms + (max(now_ms - self.turn_ms, 0) if self.is_turn_open else 0)


class StreamView(msgspec.Struct):
    """One stream's figures. Times are the times of its events, in ms since 1970.

    ``directory`` is the directory that the session works for: where OpenCode ran, what background work was given, or to
    which the session was moved last. ``project`` is OpenCode's id of the project. Both are empty if unknown.
    """

    id: str
    first_position: int
    records: int = 0
    forgotten: int = 0
    directory: str = ""
    project: str = ""
    last_position: int = NOTHING
    first_ts: int = 0
    last_ts: int = 0
    sessions: list[str] = []
    boot: str = ""
    """The plugin's boot id of the OpenCode process that recorded last."""
    ran_in: str = ""
    """The directory in which background work ran, to which its paths are relative; empty for other sessions."""
    moved: int = 0
    """How often the session was moved."""


class Place(NamedTuple):
    """Where a stream's session ran, as ``StreamView`` has it."""

    directory: str
    project: str
