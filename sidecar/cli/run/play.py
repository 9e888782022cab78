"""``play``: send a recording to the sidecar, as OpenCode would."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    from dataclasses import asdict

    from sidecar.cli.printing.bar import bar
    from sidecar.cli.shared.identity import own_identity
    from sidecar.read.wording import counted
    from sidecar.record.playing.play import play as play_file


async def play(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The recording, a file of JSON lines.")],
    speed: Annotated[
        str,
        typer.Option(
            metavar="max|real|FACTOR", help="As fast as possible, as recorded, or FACTOR times the recorded speed."
        ),
    ] = "max",
) -> None:
    """Send a recording of OpenCode 1 or 2 to the sidecar.

    Sends the hooks of OpenCode 1 as the plugin does. Serves the events of OpenCode 2 as its service does. Starts a
    sidecar if none is running. Returns when everything is durable.
    """
    factor = _speed(speed)
    if not file.is_file():
        raise Failure("not-found", f"{file}: this file does not exist; name a recording made of JSON lines")
    out = run.out
    with bar(out, "playing", "records") as shown:
        result = await play_file(
            run.home,
            file,
            nonce=own_identity().nonce,
            speed=factor,
            on_progress=lambda progress: shown(progress.acked, progress.total, "playing"),
        )
    skipped = f", {counted(result.skipped, 'other line')} skipped" if result.skipped else ""
    relinked = f", reconnected {result.relinked} times" if result.relinked else ""
    added = f"{counted(result.added, 'record')} added"
    text = f"played {result.items} {result.kind} of {file}: all are durable, {added}{skipped}{relinked}"
    out.result(asdict(result), text, "green")


def _speed(text: str) -> float | None:
    """The multiple of the recorded speed; ``None`` means as fast as possible."""
    if text == "max":
        return None
    if text == "real":
        return 1.0
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise typer.BadParameter(f"expected max, real or a number above 0, not {text!r}")
    return factor
