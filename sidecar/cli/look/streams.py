"""``streams``: every stream of the log, newest first."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Annotated, Any

import typer

from sidecar.cli.shared.arguments import limit_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.project import NOTHING_THERE, ProjectOption

if RUNS:
    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Column, Output, shortened, shown_end
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.project import project_streams, shown_directory, streams_here, waiting_lines
    from sidecar.read.find_by_id import catalog_of, empty_text
    from sidecar.read.kinds import is_agents
    from sidecar.read.sums import total_of
    from sidecar.read.wording import ago, amount, iso_time, money, plain_money

STATUS_STYLES = {"waiting": "bold yellow", "active": "bold green", "unknown": "yellow", "ended": "dim"}


FIGURES = ("turns", "records", "sessions", "tokens", "cost")
PIPED = ("stream", "status", "records", "sessions", "turns", "cost", "first", "last", "directory", "title")
"""The first line written to a pipe: the names of the tab-separated fields."""

MOST = 200
"""How many streams a terminal shows if nobody says how many."""

ROOMY = 130
"""Minimum width, in columns, at which the table has every figure."""


async def streams(
    run: Run,
    limit: Annotated[int | None, limit_option("streams")] = None,
    project: ProjectOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list the streams of agents.")] = False,
) -> None:
    """List the streams of the log, the one with the newest record first.

    Inside a project, lists that project's streams first. Lists agent streams (`agent/NAME`) only with --all. A terminal
    shows at most 200 streams, unless --limit is given.
    """
    out, reader = run.out, run.reader
    catalog, _ = await catalog_of(reader)
    most = limit or (MOST if out.terminal else None)
    if most is None:
        catalog.streams.values(), catalog.sessions.values()  # read all at once
    removed = await reader.removed()
    chosen = project_streams(catalog, project)
    here = streams_here(catalog) if project is None else set()
    first: Iterable[str] = (stream for stream in catalog.newest_first() if stream in here)
    if len(here) <= MOST:  # they may be old
        first = sorted(here, key=lambda stream: catalog.streams[stream].last_position, reverse=True)
    wanted = chain(first, (stream for stream in catalog.newest_first() if stream not in here))
    listed = (
        stream for stream in wanted if (chosen is None or stream in chosen) and (everything or not is_agents(stream))
    )
    names = [*islice(listed, most)]
    if most is not None:
        catalog.read(names)
    rows = (
        catalog.stream_json(stream) | {"pruned": removed[stream].first_offset if stream in removed else 0}
        for stream in names
    )
    shown = 0
    if out.terminal:
        found = list(rows)
        shown = len(found)
        if found:
            _stream_table(out, found)
            for line in await waiting_lines(reader, chosen):
                out.prose("", line, STATUS_STYLES["waiting"])
            for text in catalog.loss_texts({stream["stream_id"] for stream in found}):
                out.prose("", f"something was lost in {text}", "yellow")
    elif out.json:
        shown = len(names)
        for stream in rows:
            out.object(stream)
    elif names:
        shown = len(names)
        out.table([Column(name) for name in PIPED], map(_stream_cells, rows))
    if (cut_off := await reader.cut_off()) is not None:
        note(f"{cut_off}.")
    if not limit and next(listed, None) is not None:
        note(f"Only the newest {shown} streams; `--limit` lists more.")
    if not shown:
        elsewhere = chosen is not None and catalog.streams
        run.nothing(NOTHING_THERE.format(project) if elsewhere else f"No streams: {await empty_text(reader)}.")


def _stream_cells(stream: dict[str, Any]) -> list[str]:
    names = ("stream_id", *PIPED[1:6])
    times = (iso_time(stream["first_ts"]), iso_time(stream["last_ts"]))
    figures = (plain_money(stream[name]) if name == "cost" else str(stream[name]) for name in names)
    return [*figures, *times, stream["directory"], _named(stream)]


def _stream_table(out: Output, found: list[dict[str, Any]]) -> None:
    now = own_identity().now_ms()
    whole_id = out.width >= WHOLE_ID_WIDTH
    figures = FIGURES if out.width >= ROOMY else FIGURES[:1] if whole_id else ()
    rows = []
    for stream in found:
        tokens = total_of(stream["tokens"])
        shown = {
            "turns": str(stream["turns"]),
            "records": amount(stream["records"]),
            "sessions": str(stream["sessions"]),
            "tokens": amount(tokens) if tokens else "-",
            "cost": money(stream["cost"]),
        }
        rows.append(
            [
                stream["stream_id"] if whole_id else shortened(stream["stream_id"]),
                stream["status"],
                ago(now - stream["last_ts"]),
                *(shown[name] for name in figures),
                shown_end(shown_directory(stream["directory"]), out.width // 5),
                _named(stream),
            ]
        )
    columns = [Column("stream"), Column("status", styles=STATUS_STYLES), Column("last")]
    columns += [Column(name, right=True) for name in figures]
    out.table([*columns, Column("directory"), Column("title")], rows)


def _named(stream: dict[str, Any]) -> str:
    joined = " (pinned)" * stream["pinned"]
    joined += f" (belongs to {stream['root']})" if stream["root"] else ""
    joined += f" (fork of {stream['fork']})" if stream["fork"] else ""
    if is_agents(stream["stream_id"]):
        without = "(an agent)"
    elif stream["stream_id"] == "system":
        without = "(the sidecar itself)"
    else:
        without = "(forgotten)" if stream["forgotten"] else "(its beginning was removed)"
    pruned = f" ({stream['pruned']} pruned)" if stream["pruned"] else ""
    pruned += f" ({stream['gaps']} gap{'s'[: stream['gaps'] != 1]})" if stream["gaps"] else ""
    return f"{stream['title'] or ('' if stream['sessions'] else without)}{joined}{pruned}"
