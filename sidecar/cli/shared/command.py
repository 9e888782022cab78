"""Shared by every command: registering it, finding its home, and reporting its errors.

Users see no traceback: an error that this program raises becomes one line on stderr, and the exit code is 1. As a shell
expects, Ctrl-C ends the command with the code 130 and a closed pipe with 141, without any output.
"""

from __future__ import annotations

import errno
import functools
import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.cli.printing.output import Output
    from sidecar.home import Home
    from streams.errors import CorruptLog
    from streams.log.elsewhere import ReaderElsewhere
    from streams.log.reader import LogReader

RUNS = True
"""Whether a command runs in this process. For a help text or a completion, ``main`` makes it false before it imports
the commands, so that they import only what describes their options, which is quick."""

RUN_ANYWAY = "_DURABLE_STREAM_RUN_ANYWAY"
"""The environment variable that says that a word of the command line only looks like a wish for help."""

TeamFlag = Annotated[bool, typer.Option("--team", help="Read the homes of all machines, from the team's Postgres.")]
MachineOption = Annotated[
    str | None, typer.Option("--machine", metavar="NAME", help="Read only the homes of this machine of the team.")
]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

INTERRUPTED = 130
BROKEN_PIPE = 141

CLOSING_SECONDS = 1.0
"""How long a command may take to close after Ctrl-C."""

UNCOLLECTED_SECONDS = 1.0
"""How long a command may run before the garbage collector, which ``main`` turned off, is turned on again."""

_OUR_ERRORS = (
    ("streams.errors", "StreamError"),
    ("sidecar.home", "HomeError"),
    ("sidecar.config", "ConfigError"),
    ("sidecar.read.find_by_id", "SelectError"),
    ("sidecar.link.client", "ClientError"),
    ("bridge.opencode.link.protocol", "RequestError"),
    ("bridge.nats.jetstream.errors", "NatsError"),
    ("sidecar.mirror.verify", "Disturbed"),
)

UNEXPECTED = "unexpected"
"""The code of an unforeseen error, which is a bug in this program."""

_CLOSED = (
    "another user owns this file, or you lack permission: choose another home with `--home`, or ask the file's owner "
    "to transfer it to you"
)

_SYSTEM_ERRORS = {
    errno.EACCES: ("no-permission", _CLOSED),
    errno.EPERM: ("no-permission", _CLOSED),
    errno.ENOSPC: ("no-space", "free some space on that disk, then try again"),
    errno.EDQUOT: ("no-space", "free some of your quota, then try again"),
    errno.EROFS: (
        "read-only",
        "it is on a read-only file system: mount that file system writable, or use another path",
    ),
    errno.EADDRINUSE: (
        "port-taken",
        "another program is using that port: set another (`--port`, or `port` in config.toml), or 0 for any free port",
    ),
}
"""The codes of errors of the operating system, and what to do about them."""

_SYSTEM = ("system", "check that the path is right and that you own it")
"""The code and the remedy of any other error of the operating system."""


class Run(typer.Context):
    """One run of a command: where it prints, the home that the options, the environment or the platform name, and the
    log in it. Nothing is opened before it is asked for."""

    elsewhere: ReaderElsewhere | None = None
    """The ``reader``, if it reads a home of the team."""

    @property
    def damage(self) -> CorruptLog | None:
        """The damage at which ``reader`` ended."""
        return self.reader.damage if "reader" in vars(self) else None

    def tell_behind(self) -> None:
        """Note up to where the answers know the log, if not to its end."""
        story = sys.modules.get("sidecar.read.story.reading")  # most commands do not ask it
        text = story.behind_text(self.reader) if story is not None and "reader" in vars(self) else None
        if text is not None:
            note(f"Note: {text}.")

    def nothing(self, text: str) -> None:
        """Note why nothing was printed, unless the reason is damage, which the end of the command tells."""
        if self.damage is None:
            note(text)

    @cached_property
    def out(self) -> Output:
        """Where the command prints, as JSON if ``--json`` says so."""
        from sidecar.cli.printing.output import Output

        return Output(bool(self.params.get("json")))

    @cached_property
    def any_home(self) -> Home:
        """The home, even if it is another kind of directory, for commands that only report on it."""
        from sidecar.home import Home

        return Home(self.obj)

    @cached_property
    def home(self) -> Home:
        """Raises ``HomeError`` if the directory is not a home and contains other files."""
        self.any_home.check_kind()
        return self.any_home

    @cached_property
    def own_home(self) -> Home:
        """As ``home``, but raises ``HomeError``, too, if another user owns it."""
        self.home.check_owner()
        return self.home

    @cached_property
    def reader(self) -> LogReader:
        """A reader of the home's log up to any damage; at the end, the command says where it is and exits with 1."""
        from sidecar.read.find_by_id import open_reader

        return open_reader(self.home.store_path, to_damage=True)


class _Command(TyperCommand):
    context_class = Run

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The number of ``--wait`` may be left out, and Click would take the next word for it.
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*("--wait=inf" if a == "--wait" else a for a in args[:end]), *args[end:]])


def add_command(
    app: typer.Typer,
    function: Callable[..., Any],
    *,
    panel: str,
    examples: list[str],
    json: bool = True,
    team: bool = False,
) -> None:
    """Register ``function`` (plain or ``async``) under its own name, with ``--json``, which ``Run.out`` knows; its
    result, if an int, is the exit code. With ``team``, it may run for each home of a team in turn."""
    # The \b keeps Click from joining the example's lines into one paragraph.
    shown = "\n".join(f"  durable-stream {example}" for example in examples)
    text = f"{inspect.cleandoc(function.__doc__ or '')}\n\n\n\b\nExample:\n{shown}"
    guarded: Any = _guarded(function)
    flags: dict[str, Any] = {"json": JsonFlag} if json else {}
    flags = {"team": TeamFlag, "machine": MachineOption} | flags if team else flags
    if flags:
        signature = inspect.signature(function, eval_str=True)
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None if name == "machine" else False, annotation=flag
            )
            for name, flag in flags.items()
        ]
        guarded.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])
        guarded.__annotations__ = function.__annotations__ | flags
    command = app.command(function.__name__.rstrip("_"), cls=_Command, help=text, rich_help_panel=panel)
    command(guarded)


def _guarded(function: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(function)
    def run(*args: Any, json: bool = False, team: bool = False, machine: str | None = None, **kwargs: Any) -> None:
        own: Run | None = kwargs.get("run")
        if not RUNS:
            # The command was imported to show its help, but the word `--help` was meant otherwise.
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | {RUN_ANYWAY: "1"})  # noqa: S606
        try:
            if own is not None and (team or machine is not None):
                from sidecar.cli.shared.team import for_each_home  # it loads psycopg

                result = for_each_home(own, machine, lambda: _result(function, args, kwargs))
            else:
                result = _result(function, args, kwargs)
            sys.stdout.flush()
            if own is not None:
                own.tell_behind()
                if own.damage is not None:
                    raise own.damage
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise  # Typer itself handles these exceptions; a bad parameter exits with 2
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout once more when it exits, and that flush to a closed pipe must not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:  # this is the outermost handler, so nothing above it can report the error
            if os.environ.get("DURABLE_STREAM_DEBUG"):
                raise
            # What was not found may stand after the damage.
            error = (own and own.damage) or error
            fail(explain(error), code_of(error))
        if isinstance(result, int) and result:
            raise typer.Exit(result)

    return run


def _result(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    if inspect.iscoroutine(result):
        import asyncio

        with asyncio.Runner() as runner:
            try:
                result = runner.run(_to_its_end(result))
            except KeyboardInterrupt:
                # Python waits for all threads, and one may be in the middle of a long question about the log. What a
                # thread writes survives a killed process.
                end = threading.Timer(CLOSING_SECONDS, os._exit, [INTERRUPTED])
                end.daemon = True
                end.start()
                raise
    return result


async def _to_its_end(command: Coroutine[Any, Any, Any]) -> Any:
    """Run a command, then close what it read, which abandoned readers do in other tasks."""
    import asyncio

    asyncio.get_running_loop().call_later(UNCOLLECTED_SECONDS, gc.enable)
    try:
        result = await command
    finally:
        if (story := sys.modules.get("sidecar.read.story.reading")) is not None:
            story.let_go()
    for _ in range(3):  # closing takes several rounds, because a reader closes its scan, and the scan closes its file
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=1.0)
    return result


def fail(text: str, code: str) -> None:
    """Print one line on stderr that ends with the error's code in brackets, and exit with 1."""
    complain(f"{text} [{code}]")
    raise typer.Exit(1)


def complain(text: str) -> None:
    """Print a sentence on stderr after the program's name: one line in a pipe, wrapped at words on a terminal."""
    from sidecar.read.wording import one_line

    _tell(f"durable-stream: {one_line(text)}")


def note(text: str) -> None:
    """Print a sentence on stderr that is not an error, such as why nothing was printed."""
    from sidecar.read.wording import one_line

    _tell(one_line(text))


def _tell(line: str) -> None:
    """Print the line unchanged into a pipe; on a terminal, which would otherwise break words, wrap the line at
    words."""
    if sys.stderr.isatty():
        import textwrap

        from sidecar.cli.printing.output import NARROWEST

        # A terminal that does not know its width reports 0, so assume 80 columns then.
        width = max(os.get_terminal_size(sys.stderr.fileno()).columns or 80, NARROWEST)
        # Do not break a path or a command that is longer than the line, so that it can be copied.
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=sys.stderr)  # noqa: T201


def explain(error: Exception) -> str:
    """Return the line that a user sees for ``error``."""
    if isinstance(error, Failure) or _is_ours(error):
        return str(error)
    if isinstance(error, OSError):
        _, remedy = _SYSTEM_ERRORS.get(error.errno or 0, _SYSTEM)
        if error.errno == errno.EADDRINUSE:
            return f"the port to listen on is in use; {remedy}"
        what = error.strerror or type(error).__name__
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{what}; {remedy}"
    return (
        f"unexpected {type(error).__name__}: {error}; this is a bug in durable-stream: run the command again with "
        "`DURABLE_STREAM_DEBUG=1` to see where"
    )


def code_of(error: Exception) -> str:
    """Return the stable code of ``error``, as docs/operations.md lists it."""
    if isinstance(error, OSError):
        return _SYSTEM_ERRORS.get(error.errno or 0, _SYSTEM)[0]
    if not isinstance(error, Failure) and not _is_ours(error):
        return UNEXPECTED
    return str(getattr(error, "code"))  # noqa: B009 - no class of ours is imported to look at its errors


def _is_ours(error: Exception) -> bool:
    # A module that is not yet imported cannot have raised its exceptions, so do not import it just to check.
    for module, name in _OUR_ERRORS:
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, name)):
            return True
    return False
