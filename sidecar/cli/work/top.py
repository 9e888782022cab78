"""``top``: a live view of background work, what is waiting for you, and the active sessions."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    import asyncio

    from rich.console import Group

    from sidecar.background.board import Board, open_board
    from sidecar.background.intents.lifecycle import ACTIVE, ENDED
    from sidecar.cli.printing.output import SHORT_ID, Column, Output, fitted
    from sidecar.cli.shared.follow import follow
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.ask_text import on_one_line
    from sidecar.read.find_by_id import ask_catalog, empty_text
    from sidecar.read.host_agents import LABEL
    from sidecar.read.wording import ago, amount, local_time, money, rough_span
    from streams.log.reader import LogReader
    from streams.store import NOTHING

REFRESH_SECONDS = 1.0
WIDE = 120
"""Minimum width at which the screen has room for each agent's session and model."""

OLD_MS = 10_000
"""If the last thing that a session did is older than this, its age is shown."""

STYLES = {
    "waiting for you": "bold yellow",
    "waiting for OpenCode": "yellow",
    "running": "green",
    "completed": "dim",
    "cancelled": "dim",
    "failed": "red",
    "refused": "red",
}


async def top(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
) -> None:
    """Show a live view of background work, what is waiting for you, and active sessions.

    Press q or Ctrl-C to quit. In a pipe, or with --once, prints once and exits. With --json, prints one object; its
    field ``sidecar`` is false if no sidecar is running, so nothing changes.
    """
    out, home = run.out, run.home
    reader = run.reader
    board = await open_board(reader)
    now_ms = own_identity().now_ms
    is_live = out.terminal and not once and reader.damage is None
    if board.position == NOTHING and not is_live:
        run.nothing(f"Nothing is running: {await empty_text(reader)}.")
    elif out.json:
        out.object(board.state(now_ms()) | {"sidecar": home.running() is not None})
    elif not is_live:
        _print(out, board.state(now_ms()))
    else:
        await _live(out, board, reader, now_ms)


async def _live(out: Output, board: Board, reader: LogReader, now_ms: Callable[[], int]) -> None:
    from rich.live import Live

    async def fold() -> None:
        async for record in follow(reader.store, after=board.position):
            board.remember(record)

    with _key() as pressed, Live(_screen(out, board.state(now_ms())), console=out.console, screen=True) as live:
        ends = {asyncio.create_task(fold()), asyncio.create_task(pressed.wait())}
        try:
            while not (await asyncio.wait(ends, timeout=REFRESH_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
                if reader.head > board.position:
                    await ask_catalog(reader, board.take)
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
        if b"q" in os.read(file, 100).lower():
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
    for agent in sorted(state["agents"], key=_urgency):
        if agent["asks"] and state["waiting"]:
            continue  # what it is waiting for is counted below
        counts[agent["shown"]] = counts.get(agent["shown"], 0) + 1
    parts = [f"{len(state['waiting'])} waiting for you"] if state["waiting"] else []
    parts += [f"{count} {name}" for name, count in counts.items()]
    parts += [] if state["agents"] else ["no background work"]
    if state["unseen"]:
        parts.append(f"{state['unseen']} {'message' if state['unseen'] == 1 else 'messages'} not seen yet")
    return " · ".join(parts)


def _agents(state: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for agent in sorted(state["agents"], key=_urgency):
        ran = rough_span(agent["ran"]) if agent["ran"] is not None else "-"
        tokens, cost = (
            amount(agent["tokens"]) if agent["tokens"] else "-",
            money(agent["cost"]) if agent["cost"] else "-",
        )
        what = " · ".join(filter(None, (agent["what"], _doing(agent, state["at"]))))
        session = f"…{agent['session'][-SHORT_ID:]}" if agent["session"] else "-"
        rows.append((agent["id"], agent["shown"], ran, session, agent["model"] or "-", tokens, cost, what))
    return rows


def _urgency(agent: dict[str, Any]) -> tuple[int, float]:
    """What waits for a person comes first, then what runs, then what waits, then what ended, the newest first."""
    if agent["state"] in ENDED:
        return 3, -(agent["ended"] or 0)
    return 0 if agent["asks"] else 1 if agent["state"] in ACTIVE else 2, 0


def _doing(row: dict[str, Any], now: int) -> str:
    """What a session runs now and for how long, or the last thing that it did, with its age unless that was just
    now."""
    if row["began"] is not None:
        return f"runs {row['doing']} · for {rough_span(now - row['began'])}"
    is_old = row["doing"] and now - row["done"] >= OLD_MS
    return f"{ago(now - row['done'])}: {row['doing']}" if is_old else str(row["doing"])


def _waiting(state: dict[str, Any]) -> list[tuple[str, ...]]:
    now = state["at"]
    return [
        (each["id"], each["kind"], ago(now - each["since"]), on_one_line(each["what"])) for each in state["waiting"]
    ]


def _roots(state: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (str(each["sessions"]), rough_span(each["ran"]), amount(each["tokens"]), money(each["cost"]), each["root"])
        for each in state["roots"]
    ]


def _sessions(state: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for each in state["sessions"]:
        waits = "waiting for you" if each["asks"] else ""
        parts = (LABEL if each["host"] else "", each["title"], waits, _doing(each, state["at"]))
        what = " · ".join(filter(None, parts))
        rows.append((f"…{each['session'][-SHORT_ID:]}", each["agent"], rough_span(state["at"] - each["since"]), what))
    return rows


RowsOf = Callable[[dict[str, Any]], list[tuple[str, ...]]]
Part = tuple[str, tuple[str, ...], RowsOf]
AGENTS: Part = ("Background work", ("id", "state", "ran", "session", "model", "tokens", "cost", "what"), _agents)
ASKS: Part = ("Waiting for you", ("id", "kind", "asked", "what"), _waiting)
OTHERS: tuple[Part, ...] = (
    ("At work", ("session", "agent", "turn", "what"), _sessions),
    ("Together", ("started", "worked", "tokens", "cost", "by session"), _roots),
)


def _tables(width: int, state: dict[str, Any]) -> Iterator[tuple[str, tuple[Column, ...], list[tuple[str, ...]]]]:
    """The heading, the columns and the rows of each part that is not empty."""
    for heading, names, rows_of in (ASKS, AGENTS, *OTHERS):
        if rows := rows_of(state):
            if rows_of is _agents and width < WIDE:
                names, rows = (*names[:3], *names[5:]), [(*row[:3], *row[5:]) for row in rows]
            styles = STYLES if "state" in names else {}
            columns = [Column(name, right=name in ("tokens", "cost"), styles=styles) for name in names]
            columns[-1] = Column(names[-1], sentence=names[-1] == "what")
            yield heading, tuple(columns), rows


def _print(out: Output, state: dict[str, Any]) -> None:
    out.text(_summary(state))
    for heading, columns, rows in _tables(out.width, state):
        out.text()
        out.text(heading, "bold")
        out.table(columns, rows)


def _screen(out: Output, state: dict[str, Any]) -> Group:
    """The whole screen, with as many rows as it has room for."""
    from rich.console import Group
    from rich.text import Text

    tables = list(_tables(out.width, state))
    sizes = [len(rows) for _, _, rows in tables]
    clock = local_time(state["at"], "%H:%M:%S")
    head = Text(fitted(f"{clock} · q ends · {_summary(state)}", out.width), "bold")

    def drawn(most: int) -> Group:
        parts: list[Any] = [head]
        for (heading, columns, rows), share in zip(tables, _shares(sizes, most), strict=True):
            heading += f" · {len(rows) - share} more not shown" if len(rows) > share else ""
            parts += [Text(), Text(heading, "bold cyan"), out.drawn(columns, rows[:share])]
        return Group(*parts)

    def is_too_high(most: int) -> bool:
        return len(out.console.render_lines(drawn(most), pad=False)) > out.console.height

    most = min(sum(sizes), out.console.height)
    if is_too_high(most):
        most = bisect_left(range(most), True, key=is_too_high) - 1
    return drawn(max(most, len(sizes)))


def _shares(sizes: list[int], most: int) -> list[int]:
    """How many of ``most`` rows each part gets: one in turn, until all has its place."""
    turns = sorted((turn, part) for part, size in enumerate(sizes) for turn in range(size))[:most]
    return [sum(part == number for _, part in turns) for number in range(len(sizes))]
