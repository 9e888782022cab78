"""``inspect``: a local page over the log, live and back in time."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from sidecar.cli.shared import complete
from sidecar.cli.shared.command import RUNS, MachineOption, Run, TeamFlag, note

if RUNS:
    from collections.abc import Mapping
    from contextlib import closing

    from sidecar.background.people.answerers import at_terminal
    from sidecar.cli.shared.control import ask
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.state import gather_status
    from sidecar.config import load_config
    from sidecar.inspector.access import Access
    from sidecar.inspector.data import ACTIONS, Data
    from sidecar.inspector.server import serve
    from sidecar.inspector.team import TeamData
    from sidecar.private_files import write_new
    from sidecar.read.find_by_id import SelectError, find_event, find_session
    from streams.log.reader import LogReader


async def inspect(
    run: Run,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM|EVENT]",
            help="Open this session or event; give its id, or a unique part.",
            autocompletion=complete.streams,
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in your browser.")] = True,
    of_team: TeamFlag = False,
    of_machine: MachineOption = None,
) -> None:
    """Look at what agents did and why, in your browser: live, and at any moment of the past.

    Serves the page on this machine only, until you press Ctrl-C. Only reads the log; answers and cancellations go
    through the sidecar. Who has the printed link can use the page as you, until the command ends.
    """
    home = run.home

    async def send(method: str, args: Mapping[str, Any]) -> dict[str, Any]:
        return await ask(home, method, dict(args), "it is safe to try again")

    def refused() -> str:
        why = at_terminal(os.getpid(), ())[1]
        if not why or not ACTIONS.keys().isdisjoint(load_config(home.config_path).link.scripts_may):
            return ""
        return f"Nothing can be decided on this page, because {why}. Run `durable-stream inspect` in your terminal."

    def ready(access: Access) -> None:
        note(f"Open {access.link(path)}")
        note("Press Ctrl-C to end.")
        if browser:
            import webbrowser

            # Every user sees a browser's arguments, so they name only a file that leads to the link.
            try:
                leading.unlink(missing_ok=True)
                write_new(leading, f'<meta http-equiv="refresh" content="0;url={access.link(path)}">\n')
                webbrowser.open(leading.as_uri())
            except OSError as error:
                note(f"The browser is not opened, because {leading} cannot be written ({error.strerror}).")

    data: Data | TeamData
    if of_team or of_machine is not None:
        data = _team(run, of_machine)
    else:
        data = Data(home.path, run.reader, own_identity().now_ms, send, lambda: gather_status(home), refused=refused)
    path = await data.ask(lambda each: _path(each.reader, name), None, "path", {}) if name is not None else "/"
    leading = home.path / "inspect.html"
    try:
        await serve(data, own_identity().nonce, port, ready)
    finally:
        if browser:
            leading.unlink(missing_ok=True)


def _team(run: Run, machine: str | None) -> TeamData:
    from sidecar.cli.shared.team import homes_of, team_config

    config = team_config(run)
    from sidecar.team.reading import Reading  # it loads psycopg

    if machine is not None:  # a typing error is told now, and not by an empty page
        with closing(Reading(config)) as reading:
            homes_of(reading, machine)
    return TeamData(lambda: Reading(config), own_identity().now_ms, only=machine)


async def _path(reader: LogReader, name: str) -> str:
    """The page of the session or the event that ``name`` names."""
    try:
        stream, session = await find_session(reader, name)
        return f"/s/{session or stream}"
    except SelectError as error:
        if error.code != "not-found":
            raise
        return f"/e/{(await find_event(reader, name)).event.id}"
