"""``forget``: erase what was said and done in a session. Without ``--yes`` it prints a preview."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.removing import NOTHING_CHANGED, SHOWN_STREAMS, YesFlag, other_copies

if RUNS:
    from sidecar.care.removal import (
        STILL_READING,
        busy_streams,
        records_to_forget,
        streams_beside,
        streams_of_agents,
        words_beside,
    )
    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Column, Output, shortened
    from sidecar.cli.shared.control import REMOVING, ask
    from sidecar.cli.shared.identity import own_identity
    from sidecar.failure import Failure
    from sidecar.home import Home
    from sidecar.processes import still_runs
    from sidecar.read.find_by_id import Family, SelectError, find_session, open_reader
    from sidecar.read.story.catalog import Catalog
    from sidecar.read.story.reading import ask_to_damage
    from sidecar.read.wording import counted
    from streams.log.reader import LogReader


async def forget(
    run: Run,
    session: Annotated[
        str,
        typer.Argument(
            metavar="SESSION",
            help="A session's id, or a unique prefix or suffix of it.",
            autocompletion=complete.streams,
        ),
    ],
    yes: YesFlag = False,
) -> None:
    """Erase what was said and done in a session.

    SESSION is a root session or a child session. Replaces its payloads, and those of its child sessions, with digests
    everywhere in the home. The records stay, with their times and types, and the log still passes verification. This
    cannot be undone. Without --yes, only prints a preview.
    """
    home, out = run.own_home, run.out
    reader = open_reader(home.store_path)
    try:
        stream, child = await find_session(reader, session)
    except SelectError as pruned:
        if pruned.code != "pruned":
            raise
        _tell_pruned(out, home, pruned, yes=yes)
        return
    would = await _would_forget(reader, stream, child)
    is_done = not would["records"] and not await reader.is_removing()
    streams, named = would["streams"], would["streams"] if child is None else [child]
    refused = [] if yes or is_done else await _refusals(reader, {*streams, stream})
    if would["unfinished"] and not yes:
        refused.append(f"because background work has not ended: {', '.join(would['unfinished'])}")
    await reader.close()
    if not yes:
        if out.json:
            out.object(would | {"refused": refused, "done": None})
        else:
            _show_forget(out, would)
            for why in refused:
                note(f"`forget` would be refused now, {why}.")
            changed = "Nothing was changed." if refused else NOTHING_CHANGED
            note("Nothing to forget." if is_done else changed)
        return
    if is_done:
        # Report success, because the payloads are already gone and there is nothing to do.
        done = {"records": 0, "bytes": 0, "streams": 0}
        text = f"nothing to forget: the payloads in {', '.join(named)} have already been forgotten"
        out.result({"streams": named, "done": done}, text)
        return
    sessions = [each["id"] for each in would["sessions"]]
    done = await ask(home, "forget", {"streams": streams, "sessions": sessions}, REMOVING)
    text = f"forgot the payloads of {counted(done['records'], 'record')} in {', '.join(named)}"
    out.result({"streams": streams, "done": done}, text)
    if not out.json:
        note("OpenCode's own database still has them: delete the session there, too.")


async def _would_forget(reader: LogReader, stream: str, child: str | None) -> dict[str, Any]:
    """``{streams, records, sessions, beside, unfinished}``: ``streams`` are forgotten completely; ``records`` counts
    the forgotten payloads in all streams, ``beside`` those of background work, questions and messages. ``unfinished``:
    the background work that has not ended.

    ``sessions`` lists the forgotten sessions, the named one first. For a child session ``streams`` is empty.
    """

    def question(catalog: Catalog) -> tuple[list[str], list[dict[str, Any]], set[str], int]:
        streams = [] if child is not None else [stream, *sorted(Family(stream, catalog).streams - {stream})]
        ids = catalog.sessions_of(streams) if child is None else catalog.below(child)
        known = [catalog.sessions[name] for name in ids]
        sessions = [{"id": each.id, "title": each.title, "parent": each.parent} for each in known]
        return streams, sessions, streams_beside(catalog.sessions, streams, ids), catalog.behind

    found, fault = await ask_to_damage(reader, lambda story: question(Catalog(story)))
    streams, sessions, elsewhere, behind = found
    if behind and fault is None:  # reading the records below reports damage
        raise Failure("still-reading", STILL_READING)
    ids = [each["id"] for each in sessions]
    beside = await words_beside(reader, ids)
    records = len(beside.positions)
    async for _record in records_to_forget(reader, streams, ids, elsewhere, beside.ids):
        records += 1
    about = {"beside": len(beside.positions), "unfinished": beside.unfinished}
    return {"streams": sorted(streams), "records": records, "sessions": sessions, **about}


async def _refusals(reader: LogReader, streams: set[str]) -> list[str]:
    """The reasons why ``forget`` would be refused now. Each one completes the sentence "it will be refused …".

    Takes no lock and writes nothing.
    """
    found = []
    if agents := streams_of_agents(streams):
        found.append(f"because it cannot erase an agent's own stream: {', '.join(agents)}")
    turns, fault = await ask_to_damage(reader, lambda story: Catalog(story, still_runs=still_runs).open_turns())
    if busy := await busy_streams(reader, turns, streams, now_ms=own_identity().now_ms()):
        found.append(f"because a turn is in progress in {', '.join(busy)}: wait until the turn has ended")
    if fault is not None:
        found.append(f"because the log is damaged: {fault}")
    return found


def _show_forget(out: Output, would: dict[str, Any]) -> None:
    sessions, streams = would["sessions"], would["streams"]
    short = out.terminal and out.width < WHOLE_ID_WIDTH
    shown = sessions if not out.terminal else sessions[:SHOWN_STREAMS]
    rows = [(shortened(s["id"]) if short else s["id"], "child" if s["parent"] else "", s["title"]) for s in shown]
    if rows:
        out.table([Column("session"), Column("kind"), Column("title")], rows)
    if len(sessions) > len(shown):
        out.text(f"… and {len(sessions) - len(shown)} more", "dim")
    children = sum(session["parent"] is not None for session in sessions[0 if streams else 1 :])
    below = {0: "", 1: " and its child session"}.get(children, f" and its {children} child sessions")
    named = sessions[0]["id"] if not streams else streams[0] if len(streams) == 1 else counted(len(streams), "stream")
    about = "about its background work, questions and messages"
    beside = f", {would['beside']:,} of them {about}" if would["beside"] else ""
    out.prose("", f"would forget the payloads of {counted(would['records'], 'record')} in {named}{below}{beside}")


def _tell_pruned(out: Output, home: Home, pruned: SelectError, *, yes: bool) -> None:
    """Report that the records to forget were already pruned, so nothing is left to do."""
    if out.json:
        done = {"records": 0, "bytes": 0, "streams": 0} if yes else None
        out.object({"streams": [pruned.stream], "done": done} | ({} if yes else {"records": 0, "sessions": []}))
        return
    out.prose("", f"{pruned}; nothing of it is left to forget")
    for copy in other_copies(home):
        note(copy)
