"""``streams``: every stream of the log, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from sidecar.cli.shared.arguments import LimitOption
from sidecar.cli.shared.command import JsonFlag, home_of, note

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output

STATUS_STYLES = {"active": "bold green", "unknown": "yellow", "ended": "dim"}


async def streams(context: typer.Context, limit: LimitOption = None, json: JsonFlag = False) -> None:
    """List the streams of the log, newest first."""
    from sidecar.cli.shared.output import Output
    from sidecar.views.select import EMPTY_HINT, catalog_of, open_reader

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    catalog, fault = await catalog_of(reader)
    removed = await reader.removed()
    found = [
        catalog.stream_json(stream_id) | {"pruned": removed[stream_id].first_offset if stream_id in removed else 0}
        for stream_id in catalog.streams
    ]
    found.sort(key=lambda stream: int(stream["last_ts"]), reverse=True)
    found = found[:limit]
    if json:
        for stream in found:
            out.object(stream)
    elif found and out.terminal:
        _stream_table(out, found)
    else:
        for stream in found:
            _stream_cells(out, stream)
    if fault is not None:
        raise fault
    if (cut_off := await reader.cut_off()) is not None:
        note(f"{cut_off}.")
    if not found:
        note(f"No streams yet: {EMPTY_HINT}.")


def _stream_cells(out: Output, stream: dict[str, Any]) -> None:
    from sidecar.views.wording import iso_time

    names = ("stream_id", "status", "records", "sessions", "turns", "cost")
    times = (iso_time(stream["first_ts"]), iso_time(stream["last_ts"]))
    out.cells(*(str(stream[name]) for name in names), *times, _named(stream))


def _stream_table(out: Output, found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sidecar.cli.shared.output import SHORT_ID, WHOLE_ID_WIDTH, shortened
    from sidecar.views.wording import ago, amount, money, one_line
    from streams.identity import system_identity

    now = system_identity().now_ms()
    whole_id, roomy = out.width >= WHOLE_ID_WIDTH, out.width >= 110
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, least in (("stream", SHORT_ID + 1), ("status", 7), ("last", 8)):
        table.add_column(name, no_wrap=True, min_width=least)
    for name in ("turns", *(("records", "sessions", "tokens", "cost") if roomy else ())):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("title", no_wrap=True, overflow="ellipsis", ratio=1)
    for stream in found:
        status, name = stream["status"], stream["stream_id"]
        tokens = stream["tokens"].get("total") or sum(stream["tokens"].values())
        figures = [amount(stream["records"]), str(stream["sessions"]), amount(tokens) if tokens else "-"]
        table.add_row(
            Text(name if whole_id else shortened(name)),
            Text(status, STATUS_STYLES.get(status, "")),
            ago(max(now - stream["last_ts"], 0)),
            str(stream["turns"]),
            *([*figures, money(stream["cost"])] if roomy else []),
            Text(one_line(_named(stream))),
        )
    out.console.print(table)


def _named(stream: dict[str, Any]) -> str:
    joined = f" (belongs to {stream['root']})" if stream["root"] else ""
    without = "(the sidecar itself)" if stream["stream_id"] == "system" else "(its beginning was removed)"
    pruned = f" ({stream['pruned']} pruned)" if stream["pruned"] else ""
    return f"{stream['title'] or ('' if stream['sessions'] else without)}{joined}{pruned}"
