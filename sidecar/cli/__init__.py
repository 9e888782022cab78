"""The command line. Only typer is imported before a command runs, so that ``--help`` is quick."""

from __future__ import annotations


def main() -> None:
    """The entry point ``durable-stream``; ends the process with 0, 1 (finding or failure) or 2 (usage)."""
    import os
    import sys

    from sidecar.cli.app import build, lists_commands, named
    from sidecar.cli.shared import command as shared

    command, listing = named(sys.argv[1:]), lists_commands(sys.argv[1:])
    is_help = not {"-h", "--help"}.isdisjoint(sys.argv) and shared.RUN_ANYWAY not in os.environ
    shared.RUNS = command is not None and not is_help
    # `--version` is neither. Its start must not change, because the benchmark compares every command with it.
    if command is not None or listing:
        _put_off_collections()
    build(command, listing=listing)(prog_name="durable-stream")


def _put_off_collections() -> None:
    """Turn the garbage collector off until a command has run for a while, and for the end of the process.

    The collector would scan the imported objects again and again, which takes a fifth of a short command's time.
    """
    import atexit
    import gc

    gc.disable()
    atexit.register(gc.freeze)
