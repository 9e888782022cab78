"""The data of a conversation: sessions, their turns, and the items of each turn. Pure.

``story/conversation`` builds this data. Other modules write the conversation as Markdown, HTML and text. The
strings may be hostile, so each of these modules must make them harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.read.changes.approvals import Ask
from sidecar.read.changes.edits import Diff

NoticeKind = Literal[
    "error", "gap", "compacted", "forgotten", "resumed", "ended", "undone", "redone", "background", "other"
]


@dataclass(slots=True)
class Prompt:
    """The input of a person, or of the parent of a child session. ``files`` are names; ``images`` are ``data:`` URLs.

    ``command`` is the slash command from which the text was made (``/init now``); ``shell`` is a command that the
    person ran without the model. ``undone``: the prompt was reverted later.
    """

    event: str
    ts: int
    actor: str
    text: str
    files: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    command: str = ""
    shell: str = ""
    undone: bool = False
    kind: Literal["prompt"] = "prompt"


@dataclass(slots=True)
class Said:
    """What a model said: an answer in Markdown, its reasoning, or the summary that a compaction made."""

    event: str
    ts: int
    actor: str
    text: str
    kind: Literal["answer", "reasoning", "summary"]


@dataclass(slots=True)
class Branch:
    """What a child session did for one ``task`` call."""

    session: str
    title: str
    agent: str
    turns: list[Turn] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A tool call. ``status`` is ``running``, ``completed`` or ``error``; ``exit`` is a command's exit code. A call
    has ``failed`` with an error or with a code other than 0."""

    event: str
    ts: int
    actor: str
    tool: str
    call: str
    status: str = "running"
    title: str = ""
    input: dict[str, Any] = field(default_factory=dict)
    output: str = ""
    error: str = ""
    exit: int | None = None
    failed: bool = False
    duration_ms: int | None = None
    files: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    diffs: list[Diff] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    child: Branch | None = None
    kind: Literal["call"] = "call"


@dataclass(slots=True)
class Notice:
    """An occurrence that is not an agent's action: an error, a gap, a compaction, an end.

    ``count`` is how many records the notice stands for. The kind ``other`` is shown only with ``full``.
    """

    event: str
    ts: int
    what: NoticeKind
    text: str
    count: int = 1
    kind: Literal["notice"] = "notice"


Item = Prompt | Said | Ask | Call | Notice


@dataclass(slots=True)
class Turn:
    """The answer to one message. ``outcome`` is empty while the turn is open, and ``started_ms`` is ``None`` until the
    turn begins. ``asked`` is the message on one line, and ``spawned`` are the child sessions that the turn started.
    """

    message: str
    agent: str = ""
    model: str = ""
    trigger: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = ""
    error: str = ""
    steps: int = 0
    cost: float = 0.0
    tokens: dict[str, int | float] = field(default_factory=dict)
    asked: str = ""
    spawned: list[str] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    @property
    def duration_ms(self) -> int | None:
        """Time from start to end; ``None`` while the turn is open, or if its start is unknown."""
        return None if self.started_ms is None or self.ended_ms is None else max(self.ended_ms - self.started_ms, 0)


@dataclass(slots=True)
class Session:
    """A root session, or a child session without a known ``task`` call."""

    id: str
    stream: str
    title: str = ""
    agent: str = ""
    directory: str = ""
    first_ms: int = 0
    last_ms: int = 0
    ended: str = ""
    name: str = ""
    """What a person named it; shown instead of the title."""
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """How much is shown: with ``full``, nothing is shortened; with ``children``, child sessions are shown inline, at
    the point where they ran.
    """

    full: bool = False
    children: bool = False
    now_ms: int = 0
    notes: tuple[str, ...] = ()
    """Sentences shown at the top, for example that the beginning was pruned."""
    proof: str = ""
    """What was shown: the session, and the position and the hash of its last record."""
    top: str = ""
    """Finished HTML for a page, which stands above the conversation, and its style sheet in ``style``."""
    style: str = ""


def asks_below(turns: list[Turn]) -> list[Ask]:
    """Every permission and question in ``turns`` and in the child sessions below them, in order."""
    found: list[Ask] = []
    for turn in turns:
        for item in turn.items:
            if isinstance(item, Ask):
                found.append(item)
            elif isinstance(item, Call):
                found += item.asks
                if item.child is not None:
                    found += asks_below(item.child.turns)
    return found


def branches_below(turns: list[Turn]) -> list[Branch]:
    """Every child session below ``turns``, in order. A session that a later call continued appears once for each
    call.
    """
    found: list[Branch] = []
    for turn in turns:
        for item in turn.items:
            if isinstance(item, Call) and item.child is not None:
                found += [item.child, *branches_below(item.child.turns)]
    return found
