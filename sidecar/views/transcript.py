"""What a conversation is made of: sessions, their turns, and what happened in each. Pure data.

``conversation`` makes it from records; the modules beside it write it as Markdown and as HTML, and the command line
as text. Every string may hold anything that an agent or a file said: who writes it makes it harmless.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sidecar.views.approvals import Ask
from sidecar.views.edits import Diff

NoticeKind = Literal["error", "gap", "compacted", "forgotten", "resumed", "ended", "undone", "other"]


@dataclass(slots=True)
class Prompt:
    """What a person said, or for a child session its parent. ``files`` are names.

    ``command`` is the slash command that the text was made of (``/init now``), ``shell`` a command that the
    person ran without the model. ``undone`` prompts were taken back later.
    """

    event: str
    ts: int
    actor: str
    text: str
    files: list[str] = field(default_factory=list)
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
    """A tool call. ``status`` is ``running``, ``completed`` or ``error``; ``exit`` is a command's exit code."""

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
    duration_ms: int | None = None
    diffs: list[Diff] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    child: Branch | None = None
    kind: Literal["call"] = "call"


@dataclass(slots=True)
class Notice:
    """Something that is neither said nor done by an agent: an error, a gap, a compaction, an end.

    ``count`` records are behind it; a quiet one (``other``) is of interest only if everything is.
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
    """One message being answered. ``outcome`` is empty while the turn is open, ``started_ms`` null before it began."""

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
    tokens: dict[str, Any] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """A root session, or a child session of which no ``task`` call is known."""

    id: str
    stream: str
    title: str = ""
    agent: str = ""
    directory: str = ""
    first_ms: int = 0
    last_ms: int = 0
    ended: str = ""
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """How much is shown: ``full`` shortens nothing, ``children`` unfolds child sessions where they happened."""

    full: bool = False
    children: bool = False
    now_ms: int = 0
    notes: tuple[str, ...] = ()
    """Sentences about the whole, shown at the top: what was pruned, for example."""


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
