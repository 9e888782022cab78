"""A session at one moment, and what happened between two: what the page and ``state`` and ``diff`` show."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec

from sidecar.read.changes.changes import TurnChanges, totals
from sidecar.read.past.compare import figures
from sidecar.read.rendering.describe import row_of
from sidecar.read.sessions import Sessions
from sidecar.read.story.changes import Changes
from sidecar.read.story.conversation import Telling
from sidecar.read.story.past import Past
from sidecar.read.transcript.model import Prompt, Session, Turn
from sidecar.read.transcript.wording import prompt_text


def head(past: Past, at: int | None) -> dict[str, Any]:
    """A session after its first ``at`` records: who, where, how long, what it cost and what it waits for.

    ``at`` is the number of the last one of them, which counts from 0.
    """
    moment, last = past.at(at), past.last(at)
    first = past.last(1) if last is not None else None
    catalog, now = moment.catalog, last.event.ts if last is not None else 0
    own = catalog.sessions.get(past.session)
    return {
        "stream_id": past.stream,
        "title": own.title if own is not None else "",
        "directory": catalog.directory(past.stream),
        "agent": own.agent if own is not None else "",
        "fork": own.fork if own is not None else None,
        "status": catalog.status(past.stream) if past.stream in catalog.streams else "unknown",
        "records": past.count,
        "at": past.upto(at) - 1,
        "first_ts": first.event.ts if first is not None else None,
        "ts": now,
        **catalog.figures(catalog.sessions),
        "working_ms": sum(session.worked_ms(now) for session in catalog.sessions.values()),
        "waiting_ms": moment.waited_ms(now),
        "counts": moment.counts(),
        "asks": [msgspec.structs.asdict(ask) for ask in catalog.asks()],
        "sessions": tree(catalog),
        "hash": last.hash if last is not None else "",
        "position": last.position if last is not None else None,
        "fault": str(past.fault or ""),
    }


def tree(catalog: Sessions) -> list[dict[str, Any]]:
    """Every session with its ``depth`` below its root, parents first."""
    rows: list[dict[str, Any]] = []

    def add(session_id: str, depth: int) -> None:
        session = catalog.sessions[session_id]
        about = {"id": session.id, "title": session.title, "agent": session.agent}
        rows.append({**about, "depth": depth, "status": session.status})
        for child in catalog.children(session_id):
            add(child.id, depth + 1)

    for root in catalog.roots():
        add(root.id, 0)
    return rows


def state(past: Past, at: int | None) -> dict[str, Any]:
    """What a session knew after its first ``at`` records, in the form that ``state --json`` prints."""
    last, telling = past.last(at), Telling(past.at(at))
    own = _own(telling, past.session)
    newest = telling.last(own, 1) if own is not None else []
    return head(past, at) | {
        "event": row_of(last) if last is not None else None,
        "turn": _turn(telling.count(own), newest[0]) if own is not None and newest else None,
        "files": Changes(past.at(at)).files(),
    }


def latest(past: Past, at: int | None, turns: int) -> Session | None:
    """The session itself in the conversation after ``at`` records, with its last turns; ``None`` before it began."""
    telling = Telling(past.at(at))
    own = _own(telling, past.session)
    return replace(own, turns=telling.last(own, turns)) if own is not None else None


def _own(telling: Telling, session: str) -> Session | None:
    return next((root for root in telling.roots if root.id == session), telling.roots[-1] if telling.roots else None)


def _turn(number: int, turn: Turn) -> dict[str, Any]:
    prompt = next((item for item in turn.items if isinstance(item, Prompt)), None)
    return {
        "number": number,
        "message": turn.message,
        "agent": turn.agent,
        "model": turn.model,
        "state": turn.outcome or ("running" if turn.started_ms is not None else "queued"),
        "started_ms": turn.started_ms,
        "prompt": prompt_text(prompt) if prompt is not None else "",
    }


def between(past: Past, since: int, upto: int) -> dict[str, Any]:
    """What happened after the first ``since`` records in the first ``upto``: the form of ``diff --json``, in which
    ``from`` and ``to`` are the numbers of the last records at both moments."""
    turns = changed(past, since, upto)
    records = list(past.records(since, upto))
    did = figures(past, since, upto)
    return {
        "stream_id": past.stream,
        "from": since - 1,
        "to": upto - 1,
        "ms": records[-1].event.ts - records[0].event.ts if records else 0,
        "types": dict(Counter(record.event.type for record in records).most_common()),
        **{name: did[name] for name in ("turns", "tools", "failed", "tokens", "cost")},
        "changes": [turn.as_json() for turn in turns],
        "totals": totals(turns),
        "fault": str(past.fault or ""),
    }


def changed(past: Past, since: int, upto: int) -> list[TurnChanges]:
    """The files that agents changed after the first ``since`` records in the first ``upto``, with diffs."""
    return Changes(past.at(upto), past.position(since)).turns(with_diffs=True)
