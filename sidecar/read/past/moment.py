"""A session at one moment, and what happened between two: what the page and ``state`` and ``diff`` show. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from sidecar.read.catalog import Catalog
from sidecar.read.changes.changes import TurnChanges, files_of, sums, totals
from sidecar.read.past.compare import figures
from sidecar.read.past.records import Past
from sidecar.read.telling.describe import row_of
from sidecar.read.transcript.model import Prompt, Session, Turn
from sidecar.read.transcript.wording import prompt_text


def head(past: Past, at: int | None) -> dict[str, Any]:
    """A session after its first ``at`` records: who, where, how long, what it cost and what it waits for.

    ``at`` is the number of the last one of them, which counts from 0.
    """
    upto = past.upto(at)
    catalog, spans = past.catalog(at), past.spans(at)
    own = catalog.sessions.get(past.session)
    last = past.records[upto - 1] if upto else None
    now = last.event.ts if last is not None else 0
    return {
        "stream_id": past.stream,
        "title": own.title if own is not None else "",
        "directory": catalog.directory(past.stream),
        "agent": own.agent if own is not None else "",
        "fork": own.fork if own is not None else None,
        "status": catalog.status(past.stream) if past.stream in catalog.streams else "unknown",
        "records": past.count,
        "at": past.before + upto - 1,
        "first_ts": past.records[0].event.ts if past.records and not past.before else None,
        "ts": now,
        **catalog.figures(catalog.sessions),
        "working_ms": sum(session.worked_ms(now) for session in catalog.sessions.values()),
        "waiting_ms": sum(spans.waited.values()) + sum(max(now - span.start, 0) for span in spans.asks.values()),
        "counts": past.counts(at),
        "asks": [msgspec.structs.asdict(ask) for ask in catalog.asks()],
        "sessions": tree(catalog),
        "hash": last.hash if last is not None else "",
        "position": last.position if last is not None else None,
        "fault": str(past.fault or ""),
    }


def tree(catalog: Catalog) -> list[dict[str, Any]]:
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
    upto = past.upto(at)
    own = latest(past, at)
    return head(past, at) | {
        "event": row_of(past.records[upto - 1]) if upto else None,
        "turn": _turn(len(own.turns), own.turns[-1]) if own is not None and own.turns else None,
        "files": files(past.changes(at)),
    }


def latest(past: Past, at: int | None) -> Session | None:
    """The session itself in the conversation after ``at`` records; ``None`` before it began."""
    roots = past.roots(at)
    return next((root for root in roots if root.id == past.session), roots[-1] if roots else None)


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


def files(turns: list[TurnChanges]) -> list[dict[str, Any]]:
    """Each file that agents changed, with the lines added and removed (``None``: not known); without undone turns."""
    return [{"file": file, "edits": len(edits), **sums(edits)} for file, edits in files_of(turns).items()]


def between(past: Past, since: int, upto: int) -> dict[str, Any]:
    """What happened after the first ``since`` records in the first ``upto``: the form of ``diff --json``, in which
    ``from`` and ``to`` are the numbers of the last records at both moments."""
    turns = past.with_diffs(past.changes(upto, since))
    did = figures(past.session, past.records.between(since, upto))
    times = [past.records[index].event.ts for index in (since, upto - 1)] if upto > since else [0, 0]
    return {
        "stream_id": past.stream,
        "from": since - 1,
        "to": upto - 1,
        "ms": times[1] - times[0],
        "types": dict(Counter(record.event.type for record in past.records.between(since, upto)).most_common()),
        **{name: did[name] for name in ("turns", "tools", "failed", "tokens", "cost")},
        "changes": [turn.as_json() for turn in turns],
        "totals": totals(turns),
        "fault": str(past.fault or ""),
    }
