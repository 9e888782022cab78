"""``streams``: every stream of the log, newest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared.arguments import limit_option
from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.cli.shared.project import NOTHING_THERE, ProjectOption

if RUNS:
    from sidecar.cli.printing.output import WHOLE_ID_WIDTH, Column, Output, shortened, shown_end
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.project import project_streams, shown_directory, streams_here, waiting_lines
    from sidecar.read.catalog import is_agents
    from sidecar.read.select import catalog_of, empty_text
    from sidecar.read.wording import ago, amount, iso_time, money, plain_money

STATUS_STYLES = {"waiting": "bold yellow", "active": "bold green", "unknown": "yellow", "ended": "dim"}


FIGURES = ("turns", "records", "sessions", "tokens", "cost")
PIPED = ("stream", "status", "records", "sessions", "turns", "cost", "first", "last", "directory", "title")
"""The first line written to a pipe: the names of the tab-separated fields."""

ROOMY = 130
"""Minimum width, in columns, at which the table has every figure."""


async def streams(
    run: Run,
    limit: Annotated[int | None, limit_option("streams")] = None,
    project: ProjectOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Also list the streams of agents.")] = False,
) -> None:
    """List the streams of the log, the one with the newest record first.

    Inside a project, lists that project's streams first. Lists agent streams (`agent/NAME`) only with --all.
    """
    out, reader = run.out, run.reader
    catalog, fault = await catalog_of(reader)
    removed = await reader.removed()
    chosen = project_streams(catalog, project)
    here = streams_here(catalog) if project is None else set()
    wanted = [
        stream
        for stream in catalog.streams.values()
        if (chosen is None or stream.id in chosen) and (everything or not is_agents(stream.id))
    ]
    # The position of the newest record tells which stream is newest, also if a clock was set.
    wanted.sort(key=lambda stream: (stream.id in here, stream.last_position), reverse=True)
    found = [
        catalog.stream_json(stream.id) | {"pruned": removed[stream.id].first_offset if stream.id in removed else 0}
        for stream in wanted[:limit]
    ]
    if out.json:
        for stream in found:
            out.object(stream)
    elif found and out.terminal:
        _stream_table(out, found)
        for line in await waiting_lines(reader, chosen):
            out.prose("", line, STATUS_STYLES["waiting"])
        for text in catalog.loss_texts({stream["stream_id"] for stream in found}):
            out.prose("", f"something was lost in {text}", "yellow")
    else:
        if found:
            out.cells(*PIPED)
        for stream in found:
            _stream_cells(out, stream)
    if fault is not None:
        raise fault
    if (cut_off := await reader.cut_off()) is not None:
        note(f"{cut_off}.")
    if not found:
        elsewhere = chosen is not None and catalog.streams
        note(NOTHING_THERE.format(project) if elsewhere else f"No streams: {await empty_text(reader)}.")


def _stream_cells(out: Output, stream: dict[str, Any]) -> None:
    names = ("stream_id", *PIPED[1:6])
    times = (iso_time(stream["first_ts"]), iso_time(stream["last_ts"]))
    told = (plain_money(stream[name]) if name == "cost" else str(stream[name]) for name in names)
    out.cells(*told, *times, stream["directory"], _named(stream))


def _stream_table(out: Output, found: list[dict[str, Any]]) -> None:
    now = own_identity().now_ms()
    whole_id = out.width >= WHOLE_ID_WIDTH
    figures = FIGURES if out.width >= ROOMY else FIGURES[:1] if whole_id else ()
    rows = []
    for stream in found:
        tokens = stream["tokens"].get("total") or sum(stream["tokens"].values())
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
    joined = f" (belongs to {stream['root']})" if stream["root"] else ""
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
