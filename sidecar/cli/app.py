"""The list of commands. Modules that a command needs are imported when it runs, never here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sidecar.cli import (
    changes,
    demo,
    doctor,
    export,
    forget,
    install,
    listen,
    log,
    migrate,
    mirror,
    play,
    prune,
    query,
    read,
    repair,
    serve,
    show,
    status,
    stop,
    streams,
    tree,
    verify,
    why,
)
from sidecar.cli.shared.command import add_command
from sidecar.version import VERSION


class Sections(TyperGroup):
    """Lists the commands in the help under headings, in the order in which they were added."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one definition list for each heading."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                panels.setdefault(panel, []).append((name, command.get_short_help_str(limit=100)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


# Rich's help would add a third of a second to every `--help`.
app = typer.Typer(
    cls=Sections,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"durable-stream {VERSION}")
        raise typer.Exit


@app.callback(
    epilog="\b\nExample:\n  durable-stream install      record every OpenCode session from now on\n"
    "  durable-stream streams      what was recorded\n"
    "  durable-stream log ses_1a2  what happened in one session"
)
def root(
    context: typer.Context,
    home: Annotated[
        Path | None,
        typer.Option("--home", metavar="DIR", help="Data directory [env: DURABLE_STREAM_HOME]."),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable Stream for OpenCode: what your agents did, why, and with what result."""
    context.obj = home


LOOK, CHECK, RUN, SETUP = "Inspect", "Check", "Run", "Set up"

add_command(app, streams.streams, panel=LOOK, examples=["streams", "streams --limit 20", "streams --json"])
add_command(
    app,
    log.log,
    panel=LOOK,
    examples=["log", "log ses_1a2b", "log ses_1a2b --follow", "log ses_1a2b --last 20 --follow"],
)
add_command(
    app,
    read.read,
    panel=LOOK,
    examples=["read", "read ses_1a2b --full --children", "read ses_1a2b --output session.html"],
)
add_command(app, tree.tree, panel=LOOK, examples=["tree", "tree --limit 5", "tree ses_1a2b"])
add_command(
    app, changes.changes, panel=LOOK, examples=["changes --since 1d", "changes ses_1a2b --diff", "changes --json"]
)
add_command(app, show.show, panel=LOOK, examples=["show 01KAPXW3", "show 5F3Q --json"])
add_command(
    app,
    query.query,
    panel=LOOK,
    examples=["query --type agent.error --since 2d", "query --type 'execution.*' --text pytest --limit 10"],
)
add_command(app, why.why, panel=LOOK, examples=["why 5F3Q"])
add_command(
    app,
    export.export,
    panel=LOOK,
    examples=["export ses_1a2b --output session.jsonl", "export ses_1a2b --format html -o session.html"],
)
add_command(app, status.status, panel=CHECK, examples=["status"])
add_command(app, doctor.doctor, panel=CHECK, examples=["doctor"])
add_command(app, verify.verify, panel=CHECK, examples=["verify", "verify --json"])
add_command(app, repair.repair, panel=CHECK, examples=["repair --dry-run", "repair"])
add_command(
    app, migrate.migrate, panel=RUN, examples=["migrate --to sqlite", "migrate --rollback", "migrate --discard-old"]
)
add_command(
    app,
    prune.prune,
    panel=RUN,
    examples=["prune --older-than 30d", "prune --max-bytes 2GiB --yes", "prune --stream ses_1a2b --yes"],
)
add_command(app, forget.forget, panel=RUN, examples=["forget ses_1a2b", "forget ses_1a2b --yes"])
add_command(app, listen.listen, panel=LOOK, examples=["listen", "listen 'evt.agent.*.step'", "listen 'str.>' --json"])
add_command(app, serve.serve, panel=RUN, examples=["serve"])
add_command(app, stop.stop, panel=RUN, examples=["stop"])
add_command(app, play.play, panel=RUN, examples=["play recording.jsonl --speed max"])
add_command(app, demo.demo, panel=RUN, examples=["demo"])
add_command(app, install.install, panel=SETUP, examples=["install", "install --project ."])
add_command(app, install.uninstall, panel=SETUP, examples=["uninstall", "uninstall --project ."])

mirror_app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(mirror_app, name="mirror", help="Check or rebuild the log's copy on NATS.", rich_help_panel=CHECK)
add_command(mirror_app, mirror.status, panel=CHECK, examples=["mirror status"])
add_command(mirror_app, mirror.verify, panel=CHECK, examples=["mirror verify", "mirror verify --json"])
add_command(mirror_app, mirror.rebuild, panel=CHECK, examples=["mirror rebuild", "mirror rebuild --yes"])
