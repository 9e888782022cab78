"""The list of sessions. A session at rest of which nothing is new keeps its row, so a look reads only what changed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from sidecar.background.intents.state import State
from sidecar.inspector.around import shown_status
from sidecar.read.kinds import is_agents
from sidecar.read.projects import short_directory
from sidecar.read.story.catalog import Catalog

FEW: Final = 100
"""So many changed sessions are read one by one; of more, all are read at once."""

Cached = dict[str, tuple[tuple[int, int], dict[str, Any]]]
"""The row of each stream at rest, with its ``stamps`` then."""


def listed(catalog: Catalog, state: State, cached: Cached) -> tuple[dict[str, Any], Cached]:
    """Every root session, the newest first, and what to keep for the next time."""
    stamps = catalog.stamps()
    same = {stream: found for stream, found in cached.items() if stamps.get(stream) == found[0]}
    changed = [stream for stream in stamps if stream not in same and not is_agents(stream)]
    if len(changed) > FEW:
        catalog.sessions.values()
        catalog.streams.values()
    else:
        catalog.read(changed)
    rows = {stream: row for stream, (_, row) in same.items()}
    for stream in changed:
        row = _row(catalog, stream)
        if row is None:
            continue
        rows[stream] = row
        own = catalog.own_session(stream)
        if own is not None and own.parent is None and row["status"] not in ("active", "waiting"):
            same[stream] = stamps[stream], row
    work = Counter(each.root for each in state.intents.values())
    phantoms = {each.session for each in state.intents.values() if each.session}
    shown = [
        row | {"background": work[row["own"]], "gaps": catalog.gaps(stream)}
        for stream, row in rows.items()
        if stream not in phantoms
    ]
    shown.sort(key=lambda row: (row["last_ts"], row["position"]), reverse=True)  # what was imported may be older
    return {"sessions": shown, "records": catalog.sums.records}, same


def _row(catalog: Catalog, name: str) -> dict[str, Any] | None:
    """The row of a stream; ``None`` if it holds no session, or belongs to another one."""
    stream = catalog.streams[name]
    if not stream.sessions or catalog.root_stream(name) != name:
        return None
    row, own = catalog.stream_json(name), catalog.own_session(name)
    about = {"agent": own.agent, "model": own.model, "own": own.id} if own is not None else {}
    return {
        **row,
        **({"agent": "", "model": "", "own": name} | about),
        "status": shown_status(row["status"], own),
        "title": row["title"] or catalog.first_prompt(name),
        "place": short_directory(row["directory"], str(Path.home())),
        "position": stream.last_position,
    }
