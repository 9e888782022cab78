"""Commands that show the whole at a glance: ``streams`` and ``tree``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.command import JsonFlag, home_of

if TYPE_CHECKING:
    from rich.tree import Tree

    from sidecar.cli.output import Output
    from sidecar.cli.overview import Overview, SessionView, TurnView

STATUS_STYLES = {"active": "bold green", "unknown": "yellow", "ended": "dim"}


async def streams(context: typer.Context, json: JsonFlag = False) -> None:
    """List the streams of the log, newest first."""
    from sidecar.cli.output import Output
    from sidecar.cli.overview import Overview
    from sidecar.cli.select import EMPTY_HINT, open_reader
    from streams.projection import fold

    out = Output(json)
    overview = await fold(Overview(), open_reader(home_of(context).store_path).read_all())
    found = [overview.stream_json(stream_id) for stream_id in overview.streams]
    found.sort(key=lambda stream: int(stream["last_ts"]), reverse=True)
    if json:
        for stream in found:
            out.object(stream)
        return
    if not found:
        out.text(f"No streams yet: {EMPTY_HINT}.")
        return
    if out.terminal:
        _stream_table(out, found)
        return
    from sidecar.cli.output import iso_time

    for stream in found:
        names = ("stream_id", "status", "records", "sessions", "turns", "cost")
        times = (iso_time(stream["first_ts"]), iso_time(stream["last_ts"]))
        out.cells(*(str(stream[name]) for name in names), *times, _named(stream))


def _stream_table(out: Output, found: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from sidecar.cli.output import ago, amount, money, one_line
    from streams.identity import system_identity

    now = system_identity().now_ms()
    roomy = out.console.width >= 110
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("stream", no_wrap=True, overflow="ellipsis", min_width=None if roomy else 31)
    fits = out.console.width >= 72
    table.add_column("status", no_wrap=True, min_width=7 if fits else None)
    table.add_column("last", no_wrap=True, min_width=8 if fits else None)
    table.add_column("turns", justify="right", no_wrap=True, min_width=5 if fits else None)
    if roomy:
        for name in ("records", "sessions", "tokens", "cost"):
            table.add_column(name, justify="right", no_wrap=True)
    table.add_column("title", no_wrap=True, overflow="ellipsis", ratio=1)
    for stream in found:
        status = stream["status"]
        tokens = stream["tokens"].get("total") or sum(stream["tokens"].values())
        figures = [amount(stream["records"]), str(stream["sessions"]), amount(tokens) if tokens else "-"]
        table.add_row(
            Text(stream["stream_id"]),
            Text(status, STATUS_STYLES.get(status, "")),
            ago(max(now - stream["last_ts"], 0)),
            str(stream["turns"]),
            *([*figures, money(stream["cost"])] if roomy else []),
            Text(one_line(_named(stream))),
        )
    out.console.print(table)


def _named(stream: dict[str, Any]) -> str:
    joined = f" (belongs to {stream['root']})" if stream["root"] else ""
    return f"{stream['title'] or ('' if stream['sessions'] else '(the sidecar itself)')}{joined}"


async def tree(
    context: typer.Context,
    stream: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="Only this stream's family; else the whole log.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show sessions and turns, and what came of them."""
    from sidecar.cli.output import Output
    from sidecar.cli.overview import Overview
    from sidecar.cli.select import EMPTY_HINT, family_of, find_stream, open_reader, records_of
    from streams.projection import fold

    out = Output(json)
    reader = open_reader(home_of(context).store_path)
    if stream is None:
        overview = await fold(Overview(), reader.read_all())
    else:
        family = await family_of(reader, await find_stream(reader, stream))
        overview = await fold(Overview(), records_of(reader, family))
    roots = overview.roots()
    if json:
        for root in roots:
            out.object(overview.session_json(root))
        return
    if not roots:
        out.text(f"No sessions yet: {EMPTY_HINT}." if stream is None else f"{stream} holds no session.")
    for root in roots:
        if out.terminal:
            from rich.tree import Tree

            top = Tree(_session_label(root), guide_style="dim")
            _grow(overview, root, top)
            out.console.print(top, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            _plain(out, overview, root, 0)


def _grow(overview: Overview, session: SessionView, node: Tree) -> None:
    for turn, below in _branches(overview, session):
        inner = node if turn is None else node.add(_turn_label(turn))
        for child in below:
            _grow(overview, child, inner.add(_session_label(child)))


def _plain(out: Output, overview: Overview, session: SessionView, depth: int) -> None:
    indent = "  " * depth
    ended = f" [{session.ended}]" if session.ended else ""
    out.text(f"{indent}session {session.id} {session.agent} {session.title}{ended}".rstrip())
    for turn, below in _branches(overview, session):
        if turn is not None:
            out.text(f"{indent}  turn {turn.outcome or 'open'} {_figures(turn)} {turn.asked}".rstrip())
        for child in below:
            _plain(out, overview, child, depth + 2)


def _branches(overview: Overview, session: SessionView) -> list[tuple[TurnView | None, list[SessionView]]]:
    """The session's turns with the sessions each one started; last, under no turn, those nobody is known to start."""
    below = {child.id: child for child in overview.children(session.id)}
    branches: list[tuple[TurnView | None, list[SessionView]]] = [
        (turn, [below.pop(child) for child in turn.spawned if child in below]) for turn in session.turns
    ]
    return [*branches, (None, list(below.values()))]


def _session_label(session: SessionView) -> Any:
    from rich.text import Text

    from sidecar.cli.output import one_line

    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(one_line(session.title) or "(no title)", "bold")
    label.append(f"  {session.agent}" if session.agent else "")
    label.append(f"  {session.id}", "dim")
    if session.ended:
        label.append(f"  {session.ended}", "dim")
    return label


def _turn_label(turn: TurnView) -> Any:
    from rich.text import Text

    style = {"completed": "green", "failed": "red", None: "bold green"}.get(turn.outcome, "yellow")
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(turn.outcome or "open", style)
    label.append(f"  {_figures(turn)}", "dim")
    label.append(f"  {turn.asked or turn.trigger}")
    return label


def _figures(turn: TurnView) -> str:
    from sidecar.cli.output import money
    from streams.query import describe_span

    figures = [f"{turn.steps} step{'' if turn.steps == 1 else 's'}"]
    if turn.duration_ms is not None:
        figures.append(describe_span(turn.duration_ms))
    if turn.cost:
        figures.append(money(turn.cost))
    return " · ".join(figures)
