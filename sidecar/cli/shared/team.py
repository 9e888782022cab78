"""Runs a command for each home of a team in turn, as if that home's log were here, and names the machine of all it
prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from sidecar.cli.printing.output import Column, Output
from sidecar.cli.shared.command import Run, note
from sidecar.config import Config, ConfigError, load_config
from sidecar.failure import Failure
from sidecar.home import Home
from sidecar.install.extras import extra_command
from sidecar.notify_config import TeamConfig
from sidecar.read.find_by_id import MISSED, SelectError
from sidecar.read.wording import counted, printable
from streams.errors import StreamError
from streams.log.reader import LogReader

if TYPE_CHECKING:
    from rich.console import Console

    from sidecar.team.reading import Reading, TeamHome

TEAM_LOG = "team"
"""What says that agents are the team's, and the id of their log."""

TABLES = frozenset({"streams", "costs"})
"""The commands whose output on a terminal is a table, which has a column of machines; others have a heading."""


class MachineOutput(Output):
    """Names the machine in each object, row and table. ``is_first``: whether tables have their headings in a pipe;
    ``is_table``: whether all that a terminal shows is a table."""

    def __init__(self, machine: str, *, json: bool, is_first: bool, is_table: bool) -> None:
        super().__init__(json)
        self._machine, self._is_first, self._is_table = machine, is_first, is_table

    @cached_property
    def console(self) -> Console:
        """All that a terminal gets is measured or printed by it, so the heading comes first."""
        from rich.console import Console

        found = Console(highlight=False, markup=False, emoji=False)
        if not self._is_table:
            found.print(printable(self._machine), style="bold")
        return found

    def object(self, value: Any) -> None:
        super().object({"machine": self._machine, **value} if isinstance(value, dict) else value)

    def cells(self, *parts: str) -> None:
        super().cells(self._machine, *parts)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        if self.terminal:
            super().table([Column("machine"), *columns], ([self._machine, *row] for row in rows))
            return
        if self._is_first:
            super().cells("machine", *(column.name for column in columns))
        for row in rows:
            self.cells(*row)

    def text(self, line: str = "", style: str = "") -> None:
        super().text(line if self.terminal else f"{self._machine}\t{line}", style)


def team_config(run: Run) -> TeamConfig:
    """The configuration of the team.

    Raises:
        Failure: there is none, or its library is missing.
    """
    config = load_config(run.home.config_path).team
    if not config.database:
        raise Failure("team-off", "this home knows no team: set `database` in [team] in config.toml")
    if find_spec("psycopg") is None:
        raise Failure("team-off", f"the extra `team` is not installed: run `{extra_command('team')}`")
    return config


@contextmanager
def team_log(home: Home) -> Iterator[LogReader | None]:
    """The log of the team's agents, if those of this home are the team's; ``None`` if not, if it is empty, or if it
    cannot be read, which a note says."""
    try:
        config = load_config(home.config_path)
    except ConfigError:
        config = Config()
    if config.worker.log != TEAM_LOG or find_spec("psycopg") is None:
        yield None
        return
    from sidecar.team.reading import Reading

    with closing(Reading(config.team)) as reading:
        reader = None
        try:
            if (found := next((each for each in reading.homes() if each.log_id == TEAM_LOG), None)) is not None:
                reading.turn_to(found)
                reader = reading.reader(found)
        except StreamError as error:
            note(f"The log of the team's agents cannot be read: {error}.")
        yield reader


def for_each_home(run: Run, machine: str | None, work: Callable[[], Any]) -> int:
    """Do ``work`` with each home's log as ``run.reader``; returns the highest exit code.

    A home that does not have what the command names is left out, unless none has it.
    """
    if run.params.get("follow"):
        raise typer.BadParameter("`--follow` follows this home only: leave out `--team` and `--machine`")
    config = team_config(run)
    from sidecar.team.reading import Reading

    with closing(Reading(config)) as reading:
        return _for_each(run, reading, homes_of(reading, machine), work)


def homes_of(reading: Reading, machine: str | None) -> list[TeamHome]:
    """The homes of a machine of the team, or of all machines.

    Raises:
        Failure: there is none.
    """
    found = reading.homes(machine)
    if not found:
        raise Failure("not-found", "the team has no home" + (f" of a machine {machine!r}" if machine else ""))
    return found


def _for_each(run: Run, reading: Reading, found: list[TeamHome], work: Callable[[], Any]) -> int:
    missed: list[SelectError] = []
    codes: list[int] = []
    for home in found:
        reading.turn_to(home)
        reader = reading.reader(home)
        is_table = run.info_name in TABLES
        out = MachineOutput(home.machine, json=bool(run.params.get("json")), is_first=not codes, is_table=is_table)
        vars(run).update(reader=reader, elsewhere=reader, out=out)
        if home.behind:
            note(f"Note: {counted(home.behind, 'record')} of {home.machine} cannot be shown yet.")
        try:
            result = work()
            codes.append(result if isinstance(result, int) else 0)
        except SelectError as error:
            if error.code not in MISSED:
                raise
            missed.append(error)
    if not codes:
        raise missed[0]
    return max(codes)
