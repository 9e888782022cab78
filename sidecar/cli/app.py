"""The commands, and the app that runs one of them. The modules that a command needs are imported when it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sidecar.cli.shared.command import add_command
from sidecar.version import VERSION

LOOK, CHECK, RUN, SETUP = "Inspect", "Check", "Run", "Set up"

FOLDERS = {LOOK: "look", CHECK: "check", RUN: "run", SETUP: "setup"}
"""Where the modules of the commands under each heading are."""


@dataclass(frozen=True, slots=True)
class Row:
    """A command: its name, its heading in the help, and its examples.

    ``module`` contains the function, under the command's name. If it is empty, it is the heading's folder and the name.
    """

    name: str
    panel: str
    examples: tuple[str, ...]
    module: str = ""
    json: bool = True


TEAM = frozenset({"streams", "log", "read", "query", "tree", "changes", "costs", "state", "diff", "show", "verify"})
"""The commands that run for each home of a team."""

COMMANDS = (
    Row("streams", LOOK, ("streams", "streams --limit 20", "streams --json")),
    Row("log", LOOK, ("log", "log ses_1a2b", "log ses_1a2b --follow", "log ses_1a2b --last 20 --follow")),
    Row("read", LOOK, ("read", "read ses_1a2b --full --children", "read ses_1a2b --output session.html")),
    Row("tree", LOOK, ("tree", "tree --limit 5", "tree ses_1a2b")),
    Row("changes", LOOK, ("changes --since 1d", "changes ses_1a2b --diff", "changes --json")),
    Row("show", LOOK, ("show 01KAPXW3", "show 5F3Q --json")),
    Row(
        "query",
        LOOK,
        ("query --type agent.error --since 2d", "query --type 'execution.*' --text pytest --limit 10"),
    ),
    Row("why", LOOK, ("why 5F3Q",)),
    Row("state", LOOK, ("state ses_1a2b", "state ses_1a2b --at 120", "state ses_1a2b --at 5F3Q --json")),
    Row("diff", LOOK, ("diff ses_1a2b 20 120", "diff ses_1a2b ses_3c4d")),
    Row("costs", LOOK, ("costs", "costs --by session --since 7d", "costs --by model --json")),
    Row(
        "export",
        LOOK,
        ("export ses_1a2b --output session.jsonl", "export ses_1a2b --format html -o session.html"),
    ),
    Row("inspect", LOOK, ("inspect", "inspect ses_1a2b", "inspect --no-browser --port 4000"), json=False),
    Row("top", LOOK, ("top", "top --once"), module="work.top"),
    Row("intents", LOOK, ("intents", "intents int_5f", "intents int_5f --cancel"), module="work.intents"),
    Row(
        "checkpoints",
        LOOK,
        ("checkpoints", "checkpoints chk_5f --answer once", "checkpoints --all"),
        module="work.checkpoints",
    ),
    Row("notices", LOOK, ("notices", "notices --json"), module="work.notices"),
    Row("reservations", LOOK, ("reservations", "reservations --release ses_1a2b"), module="work.reservations"),
    Row("agents", CHECK, ("agents", "agents --check agents/watch.py:Watcher")),
    Row("status", CHECK, ("status",)),
    Row("doctor", CHECK, ("doctor",)),
    Row("metrics", CHECK, ("metrics", "metrics --scrape-config"), json=False),
    Row("verify", CHECK, ("verify", "verify --json")),
    Row("replay", CHECK, ("replay agent/counter", "replay agent/counter --agent agents/counter.py:Counter")),
    Row("prune", RUN, ("prune --older-than 30d", "prune --max-bytes 2GiB --yes", "prune --stream ses_1a2b --yes")),
    Row("pin", RUN, ("pin ses_1a2b",)),
    Row("unpin", RUN, ("unpin ses_1a2b",), module="run.pin"),
    Row("name", RUN, ("name ses_1a2b 'The payment bug'", "name ses_1a2b ''"), module="run.pin"),
    Row("forget", RUN, ("forget ses_1a2b", "forget ses_1a2b --yes")),
    Row("spawn", RUN, ("spawn 'Update the changelog' --minutes 10", "spawn 'Run the tests' --parent ses_1a2b")),
    Row("fork", RUN, ("fork ses_1a2b --at 5F3Q", "fork ses_1a2b --at 5F3Q --prompt 'Use a queue instead' --yes")),
    Row("signal", RUN, ("signal deployed", "signal deployed '{\"version\": 7}'")),
    Row("notify", CHECK, ("notify test",), module="work.notices"),
    Row("send", RUN, ("send counter add '{\"by\": 1}'",), module="check.agents"),
    Row("serve", RUN, ("serve",), json=False),
    Row("stop", RUN, ("stop",)),
    Row("play", RUN, ("play recording.jsonl --speed max",)),
    Row("demo", RUN, ("demo",), json=False),
    Row("install", SETUP, ("install", "install --project .")),
    Row("uninstall", SETUP, ("uninstall", "uninstall --project ."), module="setup.install"),
    Row("import", SETUP, ("import --opencode",)),
)

MIRROR = "mirror"
MIRROR_COMMANDS = (
    Row("status", CHECK, ("mirror status",), module="check.mirror"),
    Row("verify", CHECK, ("mirror verify", "mirror verify --json"), module="check.mirror"),
    Row("rebuild", CHECK, ("mirror rebuild", "mirror rebuild --yes"), module="check.mirror"),
)

DLQ = "dlq"
DLQ_COMMANDS = (
    Row("list", CHECK, ("dlq list", "dlq list --agent cleaner --json"), module="check.dlq"),
    Row("show", CHECK, ("dlq show 5F3Q",), module="check.dlq"),
    Row("redrive", CHECK, ("dlq redrive 5F3Q",), module="check.dlq"),
    Row("drop", CHECK, ("dlq drop 5F3Q",), module="check.dlq"),
)

GROUPS = {
    MIRROR: ("Check or rebuild the log's copy on NATS.", MIRROR_COMMANDS),
    DLQ: ("List, redrive or drop messages that agents could not handle.", DLQ_COMMANDS),
}
"""The commands that have subcommands, each with its help and its subcommands."""


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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"durable-stream {VERSION}")
        raise typer.Exit


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
    """Durable Stream for OpenCode shows what your agents did, why, and with what result."""
    context.obj = home


_EXAMPLE = (
    "\b\nExample:\n  durable-stream install      record every OpenCode session from now on\n"
    "  durable-stream streams      what was recorded\n"
    "  durable-stream log ses_1a2  what happened in one session"
)


def build(only: str | None = None, *, listing: bool = False) -> typer.Typer:
    """The app with all commands, or with only one, because building all commands takes longer than most commands run.

    For ``listing`` the commands have no options, because the list of commands shows none.
    """
    # Switch off Rich's formatting of help texts, because it would add a third of a second to every `--help`.
    options: dict[str, Any] = {
        "rich_markup_mode": None,
        "pretty_exceptions_enable": False,
        "no_args_is_help": True,
        "context_settings": {"help_option_names": ["-h", "--help"]},
    }
    built = typer.Typer(cls=Sections, **options)
    built.callback(epilog=_EXAMPLE)(root)
    for row in COMMANDS:
        if only in (None, row.name):
            _add(built, row, listing=listing)
    for name, (text, rows) in GROUPS.items():
        if only in (None, name):
            group = typer.Typer(**options)
            built.add_typer(group, name=name, help=text, rich_help_panel=CHECK)
            for row in rows:
                _add(group, row, listing=listing)
    return built


def named(arguments: Sequence[str]) -> str | None:
    """The command that the arguments name. ``None`` if the whole list is needed, for help or an unknown name."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--home":
            next(rest, None)
        elif not argument.startswith("--home="):
            known = argument in GROUPS or any(row.name == argument for row in COMMANDS)
            return argument if known else None
    return None


def lists_commands(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask only for the list of all commands. A shell's completion, which passes its words in the
    environment, does not."""
    return list(arguments) in ([], ["--help"], ["-h"]) and "_DURABLE_STREAM_COMPLETE" not in os.environ


def _add(built: typer.Typer, row: Row, *, listing: bool) -> None:
    # A command that is named like a keyword (`import`) has a module and a function that end in `_`; one that is named
    # like a built-in (`list`) has such a function.
    name = row.module or f"{FOLDERS[row.panel]}.{row.name}{'_' * iskeyword(row.name)}"
    module = import_module(f"sidecar.cli.{name}")
    function = getattr(module, f"{row.name}_", None) or getattr(module, row.name)
    if listing:
        function = _without_options(function)
    json, team = row.json and not listing, row.name in TEAM and not listing
    add_command(built, function, panel=row.panel, examples=list(row.examples), json=json, team=team)


def _without_options(function: Callable[..., Any]) -> Callable[[], None]:
    def listed() -> None:
        """Never run."""

    listed.__name__, listed.__doc__ = function.__name__, function.__doc__
    return listed


if TYPE_CHECKING:
    app: typer.Typer
    """All commands."""


def __getattr__(name: str) -> typer.Typer:
    if name != "app":
        raise AttributeError(name)
    return build()
