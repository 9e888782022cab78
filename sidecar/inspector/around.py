"""What the rest of the log has about a session, a call or a file: forks, background work, approvals, other edits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sidecar.background.intents.state import State
from sidecar.background.reading import background_of
from sidecar.read.changes.edits import file_changes
from sidecar.read.find_by_id import ask_catalog, newest
from sidecar.read.story.catalog import Catalog
from sidecar.read.views import SessionView
from sidecar.read.wording import one_line
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
    for name, intent in background_of(work, session, now).items():
        title = {"title": intent.title} if intent.title else {}
        found += row(catalog.sessions.get(name), "background", status=intent.state, **title)
    for each in catalog.forks(session):
        found += row(each, "fork")
    return found


def changed_by(work: State, session: str, since: int, now: int) -> list[dict[str, Any]]:
    """The background work of a session that ended between two moments and changed files: ``session, title, count,
    files, diff, is_cut, applied``. It is ``applied`` (ms UTC) once a person took the changes over, or if there was no
    copy."""
    found = []
    for name, each in background_of(work, session, now).items():
        files = each.changes.get("files") or [{"file": file} for file in each.edited]
        if not files or each.ended is None or not since < each.ended <= now:
            continue
        about = {"count": len(files), "files": files, "diff": "", "is_cut": False}
        about |= {key: each.changes[key] for key in about if key in each.changes}
        applied = each.ended if each.edited else each.applied
        about["applied"] = applied if applied is not None and applied <= now else None
        found.append({"session": name, "title": each.title or one_line(each.prompt), **about})
    return found


async def roots_of(reader: LogReader, records: Collection[Record]) -> dict[str, tuple[str, str]]:
    """For the stream of each record: the stream of its root session, and that session's title."""

    def root(catalog: Catalog, stream: str) -> tuple[str, str]:
        name = catalog.root_stream(stream)
        own = catalog.own_session(name)
        return name, own.title if own is not None else ""

    streams = {record.event.stream_id for record in records}
    return await ask_catalog(reader, lambda catalog: {stream: root(catalog, stream) for stream in streams})


async def file_history(reader: LogReader, path: str) -> dict[str, Any]:
    """The newest edits of a file in all sessions, the newest first."""

    def is_edit(record: Record) -> bool:
        return any(change.file == path for change in file_changes(record.event.payload))

    wanted = Filter(text=path.replace("\\", "/").rpartition("/")[2], types=("execution.step",))
    found, _ = await newest(reader, wanted, EDITS, is_edit)
    rows, roots = [], await roots_of(reader, found)
    for record in reversed(found):
        change = next(each for each in file_changes(record.event.payload) if each.file == path)
        root, title = roots[record.event.stream_id]
        is_known = change.how != "replace"
        rows.append(
            {
                "event": record.event.id,
                "ts": record.event.ts,
                "actor": record.event.actor,
                "tool": str(record.event.payload.get("tool") or ""),
                "stream_id": root,
                "title": title,
                "added": change.additions if is_known else None,
                "removed": change.deletions if is_known else None,
            }
        )
    return {"file": path, "edits": rows}
