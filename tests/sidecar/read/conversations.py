"""Conversations made of recordings and of made-up events, without a log."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

from rich.console import Console

from bridge.opencode.capture.translate import Translator
from sidecar.cli.printing.transcript import transcript_bytes
from sidecar.cli.printing.transcript_text import transcript_rows
from sidecar.read.transcript.conversation import Conversation
from sidecar.read.transcript.model import Reading, Session
from streams.event import StreamEvent
from streams.identity import seeded_identity
from streams.store import Record
from tests.sidecar.cli.helpers import RECORDINGS, events_of

NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))
DEMO = "../../sidecar/record/recordings/demo"
WHOLE = Reading(full=True, children=True)

_IDENTITY = seeded_identity(5)


def recorded(name: str) -> list[StreamEvent]:
    return events_of(name, Translator(seeded_identity(2)))


def happened(type_: str, ts: int = 1, actor: str = "build", session: str = "ses_root", **payload: Any) -> StreamEvent:
    """An event in the stream ``ses_root``; a payload of one digest is a forgotten one."""
    fields = {"type": type_, "stream_id": "ses_root", "actor": actor, "source": {"agent": actor, "adapter": "test"}}
    whole = payload if "$sha256" in payload else {"session": session, **payload}
    return _IDENTITY.stamp({**fields, "ts": ts, "payload": whole})


def folded(events: Iterable[StreamEvent]) -> list[Session]:
    conversation = Conversation()
    for position, event in enumerate(events):
        conversation.apply(Record(event, position, position, ""))
    return conversation.roots


def written(roots: list[Session], form: str, reading: Reading = WHOLE) -> str:
    """The transcript in a form, or as the lines of a terminal of 80 columns."""
    if form != "text":
        return b"".join(transcript_bytes(roots, reading, form)).decode()
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system="truecolor")
    return "\n".join("".join(text for text, _ in row) for row in transcript_rows(console, roots, reading, "~/shop"))
