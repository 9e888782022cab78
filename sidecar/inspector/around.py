"""What the rest of the log has about a session, a call or a file: forks, background work, approvals, other edits."""

from __future__ import annotations

from typing import Any, Final

from sidecar.background.intents.state import State
from sidecar.background.reading import background_of
from sidecar.read.catalog import Catalog
from sidecar.read.changes.edits import file_changes
from sidecar.read.select import catalog_of, newest
from sidecar.read.views import SessionView
from streams.log.reader import LogReader
from streams.query import Filter
from streams.store import Record

EDITS: Final = 60
"""How many edits the history of a file has."""


AT_REST: Final = ("idle", "ended")


def shown_status(status: str, session: SessionView | None) -> str:
    """The status of a session as the page shows it: a session at rest whose last turn failed has ``failed``."""
    return "failed" if status in AT_REST and session is not None and session.outcome == "failed" else status


def relatives(catalog: Catalog, work: State, session: str, now: int) -> list[dict[str, str]]:
    """The sessions that belong to a session without being its children: ``id, title, agent, status, kind``, which is
    ``above`` (what started it), ``origin``, ``fork`` or ``background``."""
    own = catalog.sessions.get(session)

    def row(known: SessionView | None, kind: str, **more: str) -> list[dict[str, str]]:
        if known is None:
            return []
        return [
            {
                "id": known.id,
                "title": known.title,
                "agent": known.agent,
                "status": shown_status(known.status, known),
                "kind": kind,
            }
            | more
        ]

    started = next((each.parent for each in work.intents.values() if each.session == session), None)
    above = started or (own.parent if own is not None else None)
    found = row(catalog.sessions.get(above or ""), "above")
    found += row(catalog.sessions.get(own.fork or ""), "origin") if own is not None else []
    for intent in background_of(work, session, now):
        title = {"title": intent.title} if intent.title else {}
        found += row(catalog.sessions.get(intent.session or ""), "background", status=intent.state, **title)
    for each in [each for each in catalog.sessions.values() if each.fork == session]:
        found += row(each, "fork")
    return found


async def file_history(reader: LogReader, path: str) -> dict[str, Any]:
    """The newest edits of a file in all sessions, the newest first."""

    def is_edit(record: Record) -> bool:
        return any(change.file == path for change in file_changes(record.event.payload))

    catalog, _ = await catalog_of(reader)
    wanted = Filter(text=path.replace("\\", "/").rpartition("/")[2], types=("execution.step",))
    found, _ = await newest(reader, wanted, EDITS, is_edit)
    rows = []
    for record in reversed(found):
        change = next(each for each in file_changes(record.event.payload) if each.file == path)
        root = catalog.root_stream(record.event.stream_id)
        own = catalog.own_session(root)
        is_known = change.how != "replace"
        rows.append(
            {
                "event": record.event.id,
                "ts": record.event.ts,
                "actor": record.event.actor,
                "tool": str(record.event.payload.get("tool") or ""),
                "stream_id": root,
                "title": own.title if own is not None else "",
                "added": change.additions if is_known else None,
                "removed": change.deletions if is_known else None,
            }
        )
    return {"file": path, "edits": rows}
