"""Conversations made of recordings and of made-up events, without a log."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from io import StringIO
from typing import Any

from rich.console import Console

from bridge.opencode.capture.translate import Translator
from sidecar.cli.printing.transcript import transcript_bytes
from sidecar.cli.printing.transcript_text import transcript_rows
from sidecar.read.story.conversation import Telling
from sidecar.read.story.moment import Moment
from sidecar.read.transcript.model import Reading, Session
from streams.event import StreamEvent
from streams.identity import seeded_identity
from tests.bridge.opencode.playing2 import names as names2
from tests.bridge.opencode.playing2 import play2
from tests.sidecar.cli.helpers import RECORDINGS, events_of
from tests.sidecar.read.story.playing import records_of, snapshot

NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))
DEMO = "../../sidecar/record/recordings/demo"
WHOLE = Reading(full=True, children=True)

_IDENTITY = seeded_identity(5)


def recorded(name: str) -> list[StreamEvent]:
    return events_of(name, Translator(seeded_identity(2)))


@cache
def every_recording() -> tuple[tuple[str, list[StreamEvent]], ...]:
    """Each recording of OpenCode 1 and 2 with its events, played once for all tests: nobody changes them."""
    first = [(name, recorded(name)) for name in NAMES]
    return (*first, *((name, list(play2(name).log.events.values())) for name in names2()))


def announced_late(events: list[StreamEvent]) -> list[StreamEvent]:
    """The same events, when it became known only at the end which call started which child session: then OpenCode 2
    no longer names the turn."""
    children = {event.payload["child"] for event in events if event.type == "agent.spawned"}
    late = [e for e in events if e.type == "agent.spawned" or e.payload.get("session") in children]
    first = [event for event in events if event not in late]
    turns = {event.payload["session"]: event.payload["message"] for event in first if event.type == "turn.started"}
    is_2 = any(event.metadata.get("host") for event in events)
    for number, event in enumerate(late if is_2 else ()):
        if event.type == "agent.spawned" and event.payload["session"] in turns:
            turn = turns[event.payload["session"]]
            late[number] = StreamEvent.trusted({**event.fields(), "payload": {**event.payload, "turn": turn}})
    return first + late


def happened(type_: str, ts: int = 1, actor: str = "build", session: str = "ses_root", **payload: Any) -> StreamEvent:
    """An event in the stream ``ses_root``; a payload of one digest is a forgotten one."""
    fields = {"type": type_, "stream_id": "ses_root", "actor": actor, "source": {"agent": actor, "adapter": "test"}}
    whole = payload if "$sha256" in payload else {"session": session, **payload}
    return _IDENTITY.stamp({**fields, "ts": ts, "payload": whole})


def sessions_of(events: Iterable[StreamEvent]) -> list[Session]:
    """The sessions of a conversation that are below no call, after all these events."""
    records = records_of(events)
    story = snapshot(records)
    return Telling(Moment(story, {record.event.stream_id for record in records}, story.head)).whole()


def written(roots: list[Session], form: str, reading: Reading = WHOLE) -> str:
    """The transcript in a form, or as the lines of a terminal of 80 columns."""
    if form != "text":
        return b"".join(transcript_bytes(roots, reading, form)).decode()
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system="truecolor")
    return "\n".join("".join(text for text, _ in row) for row in transcript_rows(console, roots, reading, "~/shop"))
