"""``top``: a live view of background work, what is waiting for you, and the active sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared.command import JsonFlag, home_of, note

if TYPE_CHECKING:
    import asyncio

    from rich.console import Group

    from sidecar.background.board import Board
    from sidecar.cli.printing.output import Output

REFRESH_SECONDS = 1.0
WAITING = "Waiting for you"
WIDE = 120
"""Minimum width at which the screen has room for each agent's session and model."""

OLD_MS = 10_000
"""If the last thing that a session did is older than this, its age is shown."""

STYLES = {
    "waiting for you": "bold yellow",
    "running": "green",
    "completed": "dim",
    "cancelled": "dim",
    "failed": "red",
    "refused": "red",
}


async def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show a live view of background work, what is waiting for you, and active sessions.

    Press q or Ctrl-C to quit. In a pipe, or with --once, prints once and exits. With --json, prints one object; its
    field ``sidecar`` is false if no sidecar is running, so nothing changes.
    """
    from sidecar.background.board import open_board
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.select import empty_text, open_reader
    from streams.store import NOTHING

    out = Output(json)
    home = home_of(context)
    store = home.store_path
    reader = open_reader(store)
    board, after = await open_board(reader)
    now_ms = own_identity().now_ms
    is_live = out.terminal and not once
    if after == NOTHING and not is_live:
        note(f"Nothing is running: {empty_text(reader)}.")
    elif json:
        out.object(board.state(now_ms()) | {"sidecar": home.running() is not None})
    elif not is_live:
        _print(out, board.state(now_ms()))
    else:
        await _live(out, board, store, after, now_ms)


async def _live(out: Output, board: Board, store: Any, after: int, now_ms: Any) -> None:
    import asyncio

    from rich.live import Live

    from sidecar.cli.shared.follow import follow

    async def fold() -> None:
        async for record in follow(store, after=after):
            board.apply(record)

    with _key() as pressed, Live(_screen(out, board.state(now_ms())), console=out.console, screen=True) as live:
        ends = {asyncio.create_task(fold()), asyncio.create_task(pressed.wait())}
        try:
            while not (await asyncio.wait(ends, timeout=REFRESH_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
                live.update(_screen(out, board.state(now_ms())), refresh=True)
        finally:
            for task in ends:
                task.cancel()
            done = await asyncio.gather(*ends, return_exceptions=True)
    for result in done:
        if isinstance(result, Exception):
            raise result


@contextmanager
def _key() -> Iterator[asyncio.Event]:
    """Yield an event that the key q sets. Without a keyboard it is never set."""
    import asyncio

    pressed = asyncio.Event()
    if not sys.stdin.isatty():
        yield pressed
        return
    import os
    import termios
    import tty

    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(file)

    def read() -> None:
        if os.read(file, 100).lower().startswith(b"q"):
            pressed.set()

    tty.setcbreak(file)
    loop.add_reader(file, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _summary(state: dict[str, Any]) -> str:
    counts: dict[str, int] = {}
    for agent in state["agents"]:
        if agent["asks"] and state["waiting"]:
            continue  # what it is waiting for is counted below
        counts[agent["state"]] = counts.get(agent["state"], 0) + 1
    parts = [f"{count} {name}" for name, count in counts.items()]
    parts += [] if state["agents"] else ["no background work"]
    if state["waiting"]:
        parts.append(f"{len(state['waiting'])} waiting for you")
    if state["unseen"]:
        parts.append(f"{state['unseen']} {'message' if state['unseen'] == 1 else 'messages'} not seen yet")
    return " · ".join(parts)


def _agents(state: dict[str, Any]) -> list[tuple[str, ...]]:
    from sidecar.background.intents.waits import state_shown
    from sidecar.read.wording import amount, money, rough_span

    rows: list[tuple[str, ...]] = []
    for agent in state["agents"]:
        ran = rough_span(agent["ran"]) if agent["ran"] is not None else "-"
        tokens, cost = (
            amount(agent["tokens"]) if agent["tokens"] else "-",
            money(agent["cost"]) if agent["cost"] else "-",
        )
        about = _doing(agent, state["at"]) or agent["reason"]
        what = f"{agent['title']} · {about}" if about else agent["title"]
        rows.append((agent["id"], state_shown(agent["state"], agent["asks"]), ran, tokens, cost, what))
    return rows


def _doing(row: dict[str, Any], now: int) -> str:
    """What a session runs now and for how long, or the last thing that it did, with its age unless that was just
    now."""
    from sidecar.read.wording import ago, rough_span

    if row["began"] is not None:
        return f"runs {row['doing']} · for {rough_span(now - row['began'])}"
    is_old = row["doing"] and now - row["done"] >= OLD_MS
    return f"{ago(now - row['done'])}: {row['doing']}" if is_old else str(row["doing"])


def _waiting(state: dict[str, Any]) -> list[tuple[str, ...]]:
    from sidecar.read.asked import on_one_line
    from sidecar.read.wording import ago

    now = state["at"]
    return [
        (each["id"], each["kind"], ago(now - each["since"]), on_one_line(each["what"])) for each in state["waiting"]
    ]


def _roots(state: dict[str, Any]) -> list[tuple[str, ...]]:
    from sidecar.read.wording import amount, money, rough_span

    return [
        (str(each["sessions"]), rough_span(each["ran"]), amount(each["tokens"]), money(each["cost"]), each["root"])
        for each in state["roots"]
    ]


def _sessions(state: dict[str, Any]) -> list[tuple[str, ...]]:
    from sidecar.cli.printing.output import SHORT_ID
    from sidecar.read.host_agents import LABEL
    from sidecar.read.wording import rough_span

    rows: list[tuple[str, ...]] = []
    for each in state["sessions"]:
        waits = "waiting for you" if each["asks"] else ""
        told = (LABEL if each["host"] else "", each["title"], waits, _doing(each, state["at"]))
        what = " · ".join(filter(None, told))
        rows.append((f"…{each['session'][-SHORT_ID:]}", each["agent"], rough_span(state["at"] - each["since"]), what))
    return rows


def _agents_wide(state: dict[str, Any]) -> list[tuple[str, ...]]:
    from sidecar.cli.printing.output import SHORT_ID

    rows = zip(_agents(state), state["agents"], strict=True)
    return [
        (*row[:3], f"…{agent['session'][-SHORT_ID:]}" if agent["session"] else "-", agent["model"] or "-", *row[3:])
        for row, agent in rows
    ]


RowsOf = Callable[[dict[str, Any]], list[tuple[str, ...]]]
Table = tuple[str, tuple[str, ...], RowsOf]
AGENTS: Table = ("Background work", ("id", "state", "ran", "tokens", "cost", "what"), _agents)
AGENTS_WIDE: Table = (
    AGENTS[0],
    ("id", "state", "ran", "session", "model", "tokens", "cost", "what"),
    _agents_wide,
)
OTHERS: tuple[Table, ...] = (
    (WAITING, ("id", "kind", "asked", "what"), _waiting),
    ("At work", ("session", "agent", "turn", "what"), _sessions),
    ("Together", ("started", "worked", "tokens", "cost", "by session"), _roots),
)


def _tables(width: int) -> tuple[Table, ...]:
    return (AGENTS_WIDE if width >= WIDE else AGENTS, *OTHERS)


def _print(out: Output, state: dict[str, Any]) -> None:
    from sidecar.cli.printing.output import Column

    out.text(_summary(state))
    for heading, names, rows_of in _tables(out.width):
        rows = rows_of(state)
        if rows:
            out.text()
            out.text(heading, "bold")
            columns = [Column(name, right=name in ("tokens", "cost")) for name in names[:-1]]
            out.table((*columns, Column(names[-1], middle=heading == WAITING)), rows)


def _screen(out: Output, state: dict[str, Any]) -> Group:
    """The whole screen, at most as high as the terminal; the newest entries stay."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.text import Text

    from sidecar.cli.printing.output import fitted
    from sidecar.read.wording import cut_middle, local_time

    width, room = out.console.width, out.console.height - 2
    clock = local_time(state["at"], "%H:%M:%S")
    lines = [Text(fitted(f"{clock} · {_summary(state)}", width), "bold")]
    for heading, names, rows_of in _tables(width):
        rows = rows_of(state)[-max(room // 3, 3) :]
        if not rows:
            continue
        lines += [Text(), Text(heading, "bold cyan")]
        listed = [names, *rows]
        widths = [max(map(cell_len, column)) for column in zip(*listed, strict=True)][:-1]
        left = max(width - sum(widths) - 2 * len(widths), 10)
        for number, row in enumerate(listed):
            cells = [fitted(cell, size) for cell, size in zip(row, widths, strict=False)]
            style = STYLES.get(row[1], "") if number else "dim"
            what = cut_middle(row[-1], left)[0] if heading == WAITING else row[-1]
            lines.append(Text("  ".join([*cells, fitted(what, left)]), style, no_wrap=True))
    return Group(*lines[: room + 1], Text("q ends", "dim"))
