"""``serve``: run the sidecar in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run, complain

if RUNS:
    from sidecar.app import serve as serve_home
    from sidecar.care.logs import note_failure
    from sidecar.cli.printing.output import Output
    from sidecar.config import load_config
    from sidecar.home import HomeLocked


async def serve(
    run: Run,
    idle_exit: Annotated[
        bool, typer.Option("--idle-exit", help="Exit when idle. The plugin uses this option.")
    ] = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Use a reproducible clock and ids, for tests; the log must be empty."),
    ] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="With --deterministic: the seed for the ids.")] = 0,
) -> int:
    """Run the sidecar until it is stopped.

    The OpenCode plugin starts a sidecar automatically when none is running.
    """
    if seed and not deterministic:
        raise typer.BadParameter("`--seed` needs `--deterministic`")
    home = run.own_home
    if idle_exit and home.running() is not None:
        return 0  # several shims may start a sidecar at the same time, and the later ones should exit at once

    def announce(port: int) -> None:
        if not idle_exit:
            out = Output()
            out.text(f"serving {home.path} on port {port}; press Ctrl-C to stop")
            out.flush()

    try:
        config = load_config(home.config_path)
        return await serve_home(
            home,
            config,
            seed=seed if deterministic else None,
            idle_exit=idle_exit,
            announce=announce,
            complain=complain,
        )
    except HomeLocked:
        raise
    except Exception as error:
        # If a shim started the sidecar, nobody reads stderr, so the reason must also be in the log.
        if home.was_used():
            note_failure(home, error)
        raise
