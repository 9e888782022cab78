"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared import complete

LimitOption = Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N.")]

StreamArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="A stream's id, or its unique beginning or end.", autocompletion=complete.streams
    ),
]
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT", help="An event's id, or its unique beginning or end.", autocompletion=complete.events
    ),
]
