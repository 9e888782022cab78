"""``prune`` and ``forget``: the only commands that take something out of the log. Both say first what would go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli import complete
from sidecar.cli.command import Failure, JsonFlag, home_of, note, warn

if TYPE_CHECKING:
    from sidecar.cli.output import Output
    from sidecar.cli.select import AllPruned
    from sidecar.home import Home
    from streams.log_reader import LogReader
    from streams.prune_plan import PrunePlan, Wishes

YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without it you are only told what would go.")]

SHOWN_STREAMS = 20


async def prune(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Sessions whose last record is older: 12h, 30d.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The oldest sessions, until the log is no larger: 500MB, 2GiB.")
    ] = None,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="This stream; repeatable.", autocompletion=complete.streams),
    ] = None,
    yes: YesFlag = False,
    json: JsonFlag = False,
) -> int:
    """Remove old sessions from the log.

    A session goes whole, and only when it is finished. What stays still
    verifies, and an event of a removed session that is sent again is still
    recognized. Without --yes nothing is changed.
    """
    from sidecar.cli.output import Output
    from sidecar.cli.select import AllPruned, find_stream, open_reader
    from streams.prune_plan import Wishes

    home = home_of(context)
    if older_than is None and max_bytes is None and not streams:
        raise typer.BadParameter("say what shall go: --older-than AGE, --max-bytes SIZE or --stream STREAM")
    older_than_ms, most = _age(older_than), _size(max_bytes)
    home.check_owner()
    named: list[str] = []
    already: dict[str, str] = {}
    if streams:
        reader = open_reader(home.store_path)
        for stream in streams:
            try:
                named.append(await find_stream(reader, stream))
            except AllPruned as pruned:
                named.append(pruned.stream)
                already[pruned.stream] = f"{pruned}; nothing of it is left to remove"
        await reader.close()
    out = Output(json)
    titles = await _titles(home) if yes and not json else {}  # before they go
    answer = await _prune(home, Wishes(older_than_ms, most, tuple(named)), dry_run=not yes)
    plan, done = answer["plan"], answer["done"]
    if json:
        out.object(answer)
    else:
        if not yes and (plan["cuts"] or plan["kept"]):
            titles = await _titles(home)  # which reads the log once more where no catalog of it was kept
        _show(out, plan, done, titles, already)
        if plan["cuts"] or already:
            for copy in _other_copies(home):
                note(copy)
        if done is None and plan["cuts"]:
            note("Nothing was changed: --yes removes it.")
    return 0


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
    from sidecar.cli.output import Output
    from sidecar.cli.select import AllPruned, find_stream, open_reader

    home, out = home_of(context), Output(json)
    home.check_owner()
    reader = open_reader(home.store_path)
    try:
        stream = await find_stream(reader, session)
    except AllPruned as pruned:
        return await _tell_pruned(out, home, pruned, yes=yes)
    would = await _would_forget(reader, stream)
    is_done = not would["records"] and not await reader.is_removing()
    await reader.close()
    streams = would["streams"]
    if not yes:
        if json:
            out.object(would | {"done": None})
        else:
            _show_forget(out, would)
            if not is_done and (kept := _kept(home)) is not None:
                note(f"It will be refused while {kept} is kept: `durable-stream migrate --discard-old` deletes that.")
            note("Nothing to forget." if is_done else "Nothing was changed: --yes forgets it for good.")
        return 0
    if is_done:
        return _tell_forgotten(out, streams)
    done = await _forget(home, streams)
    if json:
        out.object({"streams": streams, "done": done})
    else:
        out.text(f"forgot the payloads of {_records(done['records'])} in {', '.join(streams)}")
        _warn_of_spool(home)
    return 0


async def _titles(home: Home) -> dict[str, str]:
    """The titles of the sessions that streams are named after; what cannot be read has none."""
    from sidecar.cli.select import catalog_of
    from streams.errors import StoreLocked, StreamError
    from streams.log_reader import LogReader

    try:
        reader = LogReader(home.store_path)
        catalog, _ = await catalog_of(reader)
        await reader.close()
    except StoreLocked:
        raise  # to wait for it once more would not help
    except (StreamError, OSError):
        return {}  # which is told where the log is opened to remove
    return {name: own.title for name in catalog.streams if (own := catalog.own_session(name)) is not None}


def _tell_forgotten(out: Output, streams: list[str]) -> int:
    """It is as it was wished: no failure, and nothing is done."""
    if out.json:
        out.object({"streams": streams, "done": {"records": 0, "bytes": 0, "streams": 0}})
    else:
        out.text(f"nothing to forget: the payloads in {', '.join(streams)} were forgotten already")
    return 0


async def _tell_pruned(out: Output, home: Home, pruned: AllPruned, *, yes: bool) -> int:
    """What is to be forgotten was pruned: nothing is left to do, unless a store that a move left still has it.

    Raises:
        Failure: it has.
    """
    if await _beside_log(home, pruned.stream):
        kept = _kept(home) or "what a move or a deletion that was cut off left"
        raise Failure(f"{pruned}; but {kept} still holds them: `durable-stream migrate --discard-old` deletes it")
    if out.json:
        done = {"records": 0, "bytes": 0, "streams": 0} if yes else None
        out.object({"streams": [pruned.stream], "done": done} | ({} if yes else {"records": 0, "sessions": []}))
        return 0
    out.text(f"{pruned}; nothing of it is left to forget")
    for copy in _other_copies(home):
        note(copy)
    return 0


def _kept(home: Home) -> str | None:
    """The store that the last move left, in words."""
    from streams.stores.directory import read_manifest

    manifest = read_manifest(home.store_path)
    if manifest is None or manifest.kept is None:
        return None
    return f"the old {manifest.kept.backend} store, which the last move left"


async def _beside_log(home: Home, stream: str) -> bool:
    """Whether the backend that is not the log's has records of this stream; also where that cannot be read."""
    from sidecar.cli.select import first
    from streams.errors import StreamError
    from streams.stores.directory import read_manifest
    from streams.stores.jsonl_reader import JsonlReader
    from streams.stores.sqlite_reader import SqliteReader

    manifest = read_manifest(home.store_path)
    if manifest is None:
        return False
    reader = JsonlReader(home.store_path) if manifest.backend == "sqlite" else SqliteReader(home.store_path)
    try:
        return await first(reader.read(stream)) is not None
    except (StreamError, OSError):
        return True
    finally:
        await reader.close()


def _other_copies(home: Home) -> list[str]:
    """Where else than in the log its records may be: a prune does not reach there."""
    from sidecar.config import load_config

    found = []
    if (kept := _kept(home)) is not None:
        told = f"{kept[0].upper()}{kept[1:]}, still holds what was pruned since"
        found.append(f"{told}: `durable-stream migrate --discard-old` deletes it.")
    if load_config(home.config_path).nats.mode != "off":
        found.append(
            "The mirror holds what is pruned as long as its limits say: "
            "`durable-stream mirror rebuild` removes it there."
        )
    return found


async def _would_forget(reader: LogReader, stream: str) -> dict[str, Any]:
    """``{streams, records, sessions}``; of records those that hold payloads, of sessions the first one's own first."""
    from sidecar.cli.select import Family, catalog_of

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


def _show_forget(out: Output, would: dict[str, Any]) -> None:
    from sidecar.cli.listing import WHOLE_ID_WIDTH, shortened
    from sidecar.cli.output import Column

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
    named = streams[0] if len(streams) == 1 else _streams(len(streams))
    out.prose("", f"would forget the payloads of {_records(would['records'])} in {named}{below}")


def _age(text: str | None) -> int | None:
    from streams.query import parse_moment

    if text is None:
        return None
    now = 2**52
    try:
        age = now - parse_moment(text, now)
    except ValueError:
        age = -1
    if age < 0 or not text.strip()[-1:].isalpha():
        raise typer.BadParameter(f"{text!r} is no age: write 90s, 30m, 12h or 30d", param_hint="--older-than")
    return age


def _size(text: str | None) -> int | None:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if text is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise typer.BadParameter(f"{text!r} is no size: write 500MB or 2GiB", param_hint="--max-bytes") from None


async def _prune(home: Home, wishes: Wishes, *, dry_run: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from sidecar.cli.control import LOOKING, REMOVING, by_sidecar_or_ourselves

    async def asked() -> dict[str, Any]:
        cut_off = LOOKING if dry_run else REMOVING
        return await _ask(home, "prune", {"wishes": asdict(wishes), "dry_run": dry_run}, cut_off)

    async def work(upkeep: Any) -> dict[str, Any]:
        plan, done = await upkeep.prune(wishes, dry_run=False)
        return {"plan": plan.as_json(), "done": None if done is None else done._asdict()}

    async def ourselves() -> dict[str, Any]:
        if dry_run:
            return {"plan": (await _planned(home, wishes)).as_json(), "done": None}
        return await _by_ourselves(home, work)

    return await by_sidecar_or_ourselves(home, asked, ourselves)


async def _planned(home: Home, wishes: Wishes) -> PrunePlan:
    """What the wishes come to. No sidecar runs, and nothing is taken or written: the home may be read-only."""
    from sidecar.retaining import plan_prune
    from sidecar.upkeep import restore
    from streams.identity import system_identity

    reader = _log_of(home)
    try:
        state, _ = await restore(reader)
        plan = await plan_prune(reader, state, wishes, now_ms=system_identity().now_ms())
        if (unfinished := await reader.cut_off()) is not None:
            note(unfinished)
    finally:
        await reader.close()
    return plan


def _log_of(home: Home) -> LogReader:
    """The log, of which there must be one; nothing is changed."""
    from sidecar.cli.select import open_reader
    from streams.stores.presence import located

    if located(home.store_path) is None:
        raise Failure(f"there is no log in {home.store_path} yet: nothing to remove")
    return open_reader(home.store_path)


async def _forget(home: Home, streams: list[str]) -> dict[str, Any]:
    from sidecar.cli.control import REMOVING, by_sidecar_or_ourselves

    async def work(upkeep: Any) -> dict[str, Any]:
        return dict((await upkeep.forget(streams))._asdict())

    return await by_sidecar_or_ourselves(
        home, lambda: _ask(home, "forget", {"streams": streams}, REMOVING), lambda: _by_ourselves(home, work)
    )


async def _ask(home: Home, method: str, args: dict[str, Any], cut_off: str) -> dict[str, Any]:
    from sidecar.cli.control import control

    async with control(home, cut_off) as client:
        return dict(await client.request(method, args))


async def _by_ourselves(home: Home, work: Any) -> dict[str, Any]:
    """No sidecar runs: hold the home as one would, so that none starts meanwhile."""
    import asyncio

    from sidecar.cli.control import REMOVING, by_ourselves
    from sidecar.config import load_config
    from sidecar.upkeep import Upkeep, restore
    from streams.identity import system_identity
    from streams.log import Log
    from streams.stores.presence import located

    # Before any lock: what is refused, or was never a home, stays as it is.
    if await asyncio.to_thread(located, home.store_path) is None:
        raise Failure(f"there is no log in {home.store_path} yet: nothing to remove")
    config, identity = load_config(home.config_path), system_identity()
    with home.lock(), by_ourselves(REMOVING):
        log = await Log.open(home.store_path, identity, segment_bytes=config.store.segment_bytes, to_remove=True)
        try:
            warn(log.head_warning)
            state, kept = await restore(log)
            upkeep = Upkeep(log, state, lambda: True, identity.now_ms, kept=kept, config=config.store)
            return dict(await work(upkeep))
        finally:
            await log.close()


def _show(
    out: Output, plan: dict[str, Any], done: dict[str, Any] | None, titles: dict[str, str], already: dict[str, str]
) -> None:
    """``already``: of the streams that the plan does not know, what to say of those that were pruned before."""
    from sidecar.cli.listing import WHOLE_ID_WIDTH, shortened
    from sidecar.cli.output import Column, ago, bytes_text, iso_time
    from streams.identity import system_identity

    now = system_identity().now_ms()
    short = out.terminal and out.width < WHOLE_ID_WIDTH
    for title, items in (("", plan["cuts"]), ("stays, although you asked for it:", plan["kept"])):
        if items and title:
            out.text(title)
        if items:
            columns = [Column("stream"), Column("last record"), Column("records", right=True)]
            columns += [Column("size", right=True), Column("why"), Column("title", wide=True)]
            rows = [
                (
                    shortened(item["stream_id"]) if short else item["stream_id"],
                    ago(max(now - item["last_ts"], 0)) if out.terminal else iso_time(item["last_ts"]),
                    str(item["records"]),
                    bytes_text(item["bytes"]),
                    item["why"],
                    titles.get(item["stream_id"], ""),
                )
                for item in (items if not out.terminal else items[:SHOWN_STREAMS])
            ]
            out.table(columns, rows)
            if out.terminal and len(items) > SHOWN_STREAMS:
                out.text(f"… and {len(items) - SHOWN_STREAMS} more", "dim")
    for stream in plan["unknown"]:
        out.text(already.get(stream, f"{stream} holds nothing (any more)"), "yellow")
    if not plan["cuts"]:
        note("Nothing to remove.")
    elif done is None:
        out.text(
            f"would remove {_records(plan['records'])} in {_streams(len(plan['cuts']))}, {bytes_text(plan['bytes'])}"
        )
    else:
        out.text(f"removed {_records(done['records'])} in {_streams(done['streams'])}, {bytes_text(done['bytes'])}")


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _warn_of_spool(home: Home) -> None:
    """What OpenCode wrote down and no sidecar has taken in yet may belong to the session, too."""
    from sidecar.checks.asking import spool_size

    if home.running() is None and (size := spool_size(home))["files"]:
        note(
            f"{size['files']} spool files wait to be recorded at the next start; "
            "if they belong to this session, forget it again after that."
        )
