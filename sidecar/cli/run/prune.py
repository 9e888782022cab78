"""``prune``: remove old sessions from the log. Without ``--yes`` it prints a preview."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared.arguments import streams_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.removing import NOTHING_CHANGED, SHOWN_STREAMS, YesFlag, other_copies
from sidecar.failure import Failure

if RUNS:
    from dataclasses import asdict

    from sidecar.care.removal import plan_prune
    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Column, Output, shortened
    from sidecar.cli.shared.control import REMOVING, ask
    from sidecar.cli.shared.identity import own_identity
    from sidecar.home import Home
    from sidecar.read.find_by_id import SelectError, ask_catalog, find_stream, open_reader
    from sidecar.read.story.catalog import Catalog
    from sidecar.read.wording import ago, bytes_text, counted, iso_time
    from streams.errors import StoreLocked, StreamError
    from streams.log.completeness import located
    from streams.log.prune_plan import PruneRequest
    from streams.log.reader import LogReader
    from streams.query import parse_moment


async def prune(
    run: Run,
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE", help="Remove sessions whose last record is older than this, for example 12h or 30d."
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Remove the oldest sessions until the log is at most this size, for example 500MB or 2GiB.",
        ),
    ] = None,
    streams: Annotated[list[str] | None, streams_option("Remove this stream; repeatable.")] = None,
    yes: YesFlag = False,
) -> None:
    """Remove old sessions from the log.

    Removes only whole, finished sessions. The rest of the log still passes verification. If an event of a removed
    session is sent again, it is still recognised as a duplicate. Without --yes, only prints a preview.
    """
    home = run.home
    if older_than is None and max_bytes is None and not streams:
        raise typer.BadParameter("choose what to remove: `--older-than AGE`, `--max-bytes SIZE` or `--stream STREAM`")
    older_than_ms, most = _age(older_than), _size(max_bytes)
    home.check_owner()
    named: list[str] = []
    already: dict[str, str] = {}
    if streams:
        reader = open_reader(home.store_path)
        for stream in streams:
            try:
                named.append(await find_stream(reader, stream))
            except SelectError as pruned:
                if pruned.code != "pruned":
                    raise
                named.append(pruned.stream)
                already[pruned.stream] = f"{pruned}; nothing of it is left to remove"
        await reader.close()
    out = run.out
    _need_log(home)
    titles = await _titles(home) if yes and not out.json else {}  # read the titles before their streams are removed
    request = PruneRequest(older_than_ms, most, tuple(named))
    if yes:
        answer = await ask(home, "prune", {"request": asdict(request)}, REMOVING)
    else:
        answer = await _preview(home, request)
    plan, done = answer["plan"], answer["done"]
    if out.json:
        out.object(answer)
    else:
        if not yes and (plan["cuts"] or plan["kept"]):
            titles = await _titles(home)
        _show(out, plan, done, titles, already)
        if plan["cuts"] or already:
            for copy in other_copies(home):
                note(copy)
        if done is None and plan["cuts"]:
            note(NOTHING_CHANGED)


async def _titles(home: Home) -> dict[str, str]:
    """The title of each stream's root session; a stream that cannot be read has no title."""

    def titles(catalog: Catalog) -> dict[str, str]:
        catalog.streams.values(), catalog.sessions.values()  # read all at once
        return {name: own.title for name in catalog.streams if (own := catalog.own_session(name)) is not None}

    try:
        reader = LogReader(home.store_path)
        try:
            return await ask_catalog(reader, titles)
        finally:
            await reader.close()
    except StoreLocked:
        raise  # the removal would only wait for the same lock again
    except (StreamError, OSError):
        return {}  # the error is reported when the log is opened for the removal


def _age(text: str | None) -> int | None:
    if text is None:
        return None
    now = 2**52
    try:
        age = now - parse_moment(text, now)
    except ValueError:
        age = -1
    if age < 0 or not text.strip()[-1:].isalpha():
        raise typer.BadParameter(f"{text!r} is not an age: write 90s, 30m, 12h or 30d", param_hint="--older-than")
    return age


def _size(text: str | None) -> int | None:
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if text is None:
        return None
    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise typer.BadParameter(f"{text!r} is not a size: write 500MB or 2GiB", param_hint="--max-bytes") from None


async def _preview(home: Home, request: PruneRequest) -> dict[str, Any]:
    """Preview what would be removed. Writes nothing, because the home may be read-only."""
    reader = open_reader(home.store_path)
    try:
        open_turns = await ask_catalog(reader, lambda catalog: catalog.open_turns())
        plan = await plan_prune(reader, open_turns, request, now_ms=own_identity().now_ms())
        if (unfinished := await reader.cut_off()) is not None:
            note(unfinished)
    finally:
        await reader.close()
    return {"plan": plan.as_json(), "done": None}


def _need_log(home: Home) -> None:
    if located(home.store_path) is None:
        raise Failure("no-log", f"no log exists in {home.store_path} yet, so there is nothing to remove")


def _show(
    out: Output, plan: dict[str, Any], done: dict[str, Any] | None, titles: dict[str, str], already: dict[str, str]
) -> None:
    """Print a preview or a result. ``already`` has texts for streams that were pruned before and so are not in the
    plan."""
    now = own_identity().now_ms()
    short = out.terminal and out.width < WHOLE_ID_WIDTH
    for title, items in (("", plan["cuts"]), ("kept, for the reason that each row gives:", plan["kept"])):
        if items and title:
            out.text(title)
        if items:
            columns = [Column("stream"), Column("why"), Column("last record"), Column("records", right=True)]
            columns += [Column("size", right=True), Column("title")]
            rows = [
                (
                    shortened(item["stream_id"]) if short else item["stream_id"],
                    item["why"],
                    ago(now - item["last_ts"]) if out.terminal else iso_time(item["last_ts"]),
                    str(item["records"]),
                    bytes_text(item["bytes"]),
                    titles.get(item["stream_id"], ""),
                )
                for item in (items if not out.terminal else items[:SHOWN_STREAMS])
            ]
            out.table(columns, rows)
            if out.terminal and len(items) > SHOWN_STREAMS:
                out.text(f"… and {len(items) - SHOWN_STREAMS} more", "dim")
    for stream in plan["unknown"]:
        out.prose("", already.get(stream, f"{stream} has no records (any more)"), "yellow")
    if not plan["cuts"]:
        note("Nothing to remove.")
    elif done is None:
        what = f"{counted(plan['records'], 'record')} in {counted(len(plan['cuts']), 'stream')}"
        out.text(f"would remove {what}, {bytes_text(plan['bytes'])}")
    else:
        what = f"{counted(done['records'], 'record')} in {counted(done['streams'], 'stream')}"
        out.text(f"removed {what}, {bytes_text(done['bytes'])}")
