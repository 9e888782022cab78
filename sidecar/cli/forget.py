"""``forget``: erase what was said and done in a session. Without ``--yes`` it prints a preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import JsonFlag, home_of, note
from sidecar.cli.shared.removing import (
    NOTHING_CHANGED,
    SHOWN_STREAMS,
    YesFlag,
    note_move,
    other_copies,
    records_text,
    streams_text,
)

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output
    from sidecar.home import Home
    from sidecar.views.select import AllPruned
    from streams.log.reader import LogReader


async def forget(
    context: typer.Context,
    session: Annotated[
        str,
        typer.Argument(metavar="SESSION", help="Its stream's id, or enough of it.", autocompletion=complete.streams),
    ],
    yes: YesFlag = False,
    json: JsonFlag = False,
) -> int:
    """Erase what was said and done in a session.

    The payloads of its records, and of the sessions below it, are replaced by
    their digests, everywhere in the home. The records stay, with their times and
    types, and the log still verifies. This cannot be undone. Without --yes
    nothing is changed.
    """
    from sidecar.cli.shared.output import Output
    from sidecar.views.select import AllPruned, find_stream, open_reader

    home, out = home_of(context), Output(json)
    home.check_owner()
    reader = open_reader(home.store_path)
    try:
        stream = await find_stream(reader, session)
    except AllPruned as pruned:
        return _tell_pruned(out, home, pruned, yes=yes)
    would = await _would_forget(reader, stream)
    is_done = not would["records"] and not await reader.is_removing()
    streams = would["streams"]
    refused = [] if yes or is_done else await _refusals(reader, streams)
    await reader.close()
    if not yes:
        if json:
            out.object(would | {"refused": refused, "done": None})
        else:
            _show_forget(out, would)
            for why in refused:
                note(f"It will be refused {why}.")
            changed = "Nothing was changed." if refused else NOTHING_CHANGED
            note("Nothing to forget." if is_done else changed)
        return 0
    if is_done:
        return _tell_forgotten(out, streams)
    from sidecar.cli.shared.control import REMOVING, ask

    done = await ask(home, "forget", {"streams": streams}, REMOVING)
    if json:
        out.object({"streams": streams, "done": done})
    else:
        out.prose("", f"forgot the payloads of {records_text(done['records'])} in {', '.join(streams)}")
        note_move(done)
    return 0


async def _would_forget(reader: LogReader, stream: str) -> dict[str, Any]:
    """``{streams, records, sessions}``; of records those that hold payloads, of sessions the first one's own first."""
    from sidecar.views.select import Family, catalog_of

    catalog, _ = await catalog_of(reader)
    streams, gone = sorted(Family(stream, catalog.lineage).streams), await reader.removed()
    records = 0
    sessions: list[dict[str, Any]] = []
    for name in sorted(streams, key=lambda name: name != stream):
        found = catalog.streams.get(name)
        if found is None:
            continue
        lost = gone.get(name)
        records += found.records - (max(lost.forgotten_to - lost.first_offset, 0) if lost is not None else 0)
        for session in found.sessions:
            known = catalog.lineage.sessions.get(session)
            parent = known.parent if known is not None else None
            sessions.append({"id": session, "title": catalog.sessions[session].title, "parent": parent})
    return {"streams": streams, "records": max(records, 0), "sessions": sessions}


async def _refusals(reader: LogReader, streams: list[str]) -> list[str]:
    """Why it cannot be done now, each to be read after "it will be refused"; nothing is taken or written."""
    from sidecar.keeping.retaining import busy_streams
    from sidecar.keeping.upkeep import restore
    from streams.errors import CorruptLog
    from streams.identity import system_identity

    found = []
    try:
        state, _ = await restore(reader)
        if busy := await busy_streams(reader, state, streams, now_ms=system_identity().now_ms()):
            found.append(f"while a turn is under way in {', '.join(busy)}: wait until it has ended")
    except CorruptLog as error:
        found.append(f"because the log is damaged: {error}")
    return found


def _show_forget(out: Output, would: dict[str, Any]) -> None:
    from sidecar.cli.shared.output import WHOLE_ID_WIDTH, Column, shortened

    sessions, streams = would["sessions"], would["streams"]
    short = out.terminal and out.width < WHOLE_ID_WIDTH
    shown = sessions if not out.terminal else sessions[:SHOWN_STREAMS]
    rows = [(shortened(s["id"]) if short else s["id"], "child" if s["parent"] else "", s["title"]) for s in shown]
    if rows:
        out.table([Column("session"), Column("", False), Column("title", wide=True)], rows)
    if len(sessions) > len(shown):
        out.text(f"… and {len(sessions) - len(shown)} more", "dim")
    children = sum(session["parent"] is not None for session in sessions)
    below = {0: "", 1: ", its child session's too"}.get(children, f", its {children} child sessions' too")
    named = streams[0] if len(streams) == 1 else streams_text(len(streams))
    out.prose("", f"would forget the payloads of {records_text(would['records'])} in {named}{below}")


def _tell_forgotten(out: Output, streams: list[str]) -> int:
    """The payloads are gone already: nothing is done, and that is a success."""
    if out.json:
        out.object({"streams": streams, "done": {"records": 0, "bytes": 0, "streams": 0}})
    else:
        out.prose("", f"nothing to forget: the payloads in {', '.join(streams)} were forgotten already")
    return 0


def _tell_pruned(out: Output, home: Home, pruned: AllPruned, *, yes: bool) -> int:
    """What is to be forgotten was pruned, from the store that a move left too: nothing is left to do."""
    if out.json:
        done = {"records": 0, "bytes": 0, "streams": 0} if yes else None
        out.object({"streams": [pruned.stream], "done": done} | ({} if yes else {"records": 0, "sessions": []}))
        return 0
    out.prose("", f"{pruned}; nothing of it is left to forget")
    for copy in other_copies(home):
        note(copy)
    return 0
