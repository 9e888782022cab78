"""The command line. Only typer is imported before a command runs, so that ``--help`` is quick."""

from __future__ import annotations


def main() -> None:
    """The entry point ``durable-stream``; ends the process with 0, 1 (finding or failure) or 2 (usage)."""
    import sys

    from sidecar.cli.app import build, named

    build(named(sys.argv[1:]))(prog_name="durable-stream")
