"""``notices`` lists the messages to sessions and to people; ``notify test`` shows whether each channel works."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from sidecar.cli.shared.arguments import limit_option
from sidecar.cli.shared.command import RUNS, Run, note

if RUNS:
    from sidecar.background.reading import read_notices
    from sidecar.cli.printing.output import Column, Output
    from sidecar.cli.shared.control import control
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.find_by_id import empty_text
    from sidecar.read.rendering.markup import unwrapped
    from sidecar.read.wording import ago, one_line
    from streams.store import NOTHING


async def notices(run: Run, limit: Annotated[int | None, limit_option("messages")] = None) -> None:
    """List messages to sessions and alerts for you, newest last, with states, channels and times.

    A message is queued, then sent, then seen. If nobody sees it, the next channel is used.
    """
    out, reader = run.out, run.reader
    rows = (await read_notices(reader))[-limit if limit else 0 :]
    if out.json:
        for row in rows:
            out.object(row)
    elif rows:
        _table(out, rows)
    else:
        run.nothing(f"No notices yet: {await empty_text(reader)}." if reader.head == NOTHING else "No notices yet.")


def _table(out: Output, rows: list[dict[str, Any]]) -> None:
    now = own_identity().now_ms()
    names = ("id", "kind", "state", "queued", "channels")
    out.table(
        (*(Column(name) for name in names), Column("text", sentence=True)),
        [
            (
                row["id"],
                row["kind"],
                row["state"],
                ago(now - row["queued"]),
                " ".join(f"{each['channel']}={each['state']}" for each in row["channels"]) or "-",
                one_line(unwrapped(row["text"], marks=False)),
            )
            for row in rows
        ],
    )


async def notify(
    run: Run,
    action: Annotated[
        Literal["test"], typer.Argument(metavar="test", help="Send a test message to every configured channel.")
    ],
) -> int:
    """Test each channel of [notify] by sending a message on it. Exits with 1 if a channel fails."""
    out = run.out
    async with control(run.home, "run the same command again") as client:
        found = await client.request("notify_test", {})
        changed = (await client.request("status", {}))["config_changed"]
    if changed:
        note("config.toml changed since the sidecar started: run `durable-stream stop`, then run this command again.")
    if out.json:
        out.object(found)
    for each in found["channels"]:
        if not out.json:
            out.text(f"{each['channel']}: {'works' if each['ok'] else each['error']}")
    if not out.json and found["channels"]:
        out.text(f"turns: {found['turns']}")
    if not found["channels"] and not changed:
        note("No channel is configured: set `urls`, `command` or `desktop` in [notify] in config.toml.")
    return 0 if found["channels"] and all(each["ok"] for each in found["channels"]) else 1
