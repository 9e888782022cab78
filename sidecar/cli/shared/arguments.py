"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete

StreamArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="A stream's id, or a unique prefix or suffix of it.", autocompletion=complete.streams
    ),
]
SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="The id of a stream or child session, or a unique prefix or suffix of it.",
        autocompletion=complete.sessions,
    ),
]
OptionalSession = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        help="The id of a stream or child session, or a unique prefix or suffix of it; "
        "default: the newest stream of the current project.",
        autocompletion=complete.sessions,
    ),
]
OptionalFamily = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        help="Show only this stream with its child sessions, or this child session with its descendants; "
        "default: the current project.",
        autocompletion=complete.sessions,
    ),
]
RedactOption = Annotated[
    bool,
    typer.Option("--redact-paths", help="Replace the project's directory with /project, and home directories with ~."),
]
EventArgument = Annotated[
    str,
    typer.Argument(
        metavar="EVENT", help="An event's id, or a unique prefix or suffix of it.", autocompletion=complete.events
    ),
]


def limit_option(things: str) -> Any:
    return typer.Option("--limit", "-n", metavar="N", min=1, help=f"Only the newest N {things}.")


def streams_option(help_text: str) -> Any:
    """The repeatable ``--stream``; each command uses the streams differently."""
    return typer.Option("--stream", metavar="STREAM", help=help_text, autocompletion=complete.streams)
