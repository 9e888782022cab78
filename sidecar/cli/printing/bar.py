"""The progress bar for long work. The bar is shown only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from sidecar.read.wording import bytes_text

if TYPE_CHECKING:
    from rich.progress import Progress

    from sidecar.cli.printing.output import Output

BAR_BYTES = 8 * 1024 * 1024
"""Minimum size of a log, in bytes, for which verifying shows a progress bar."""


class Bar:
    """Shows progress. Without a terminal, the methods of this class do nothing."""

    def __init__(self, shown: Progress | None, unit: Literal["records", "bytes", "hooks"]) -> None:
        self._shown, self._unit = shown, unit

    def set(self, done: int, total: int | None, what: str) -> None:
        if self._shown is None:
            return
        count = "" if total is None else self._count(done, total)
        for task in self._shown.task_ids:
            self._shown.update(task, description=what, completed=done, total=total, count=count)

    def _count(self, done: int, total: int) -> str:
        if self._unit == "bytes":
            return f"{bytes_text(done)} of {bytes_text(total)}"
        whole = f"{total:,}"
        return f"{done:>{len(whole)},} of {whole} {self._unit}"


@contextmanager
def bar(
    out: Output, what: str, unit: Literal["records", "bytes", "hooks"] = "records", *, wanted: bool = True
) -> Iterator[Bar]:
    """Show a bar during the block; output printed during the block appears above the bar."""
    if not out.terminal or out.json or not wanted:
        yield Bar(None, unit)
        return
    from rich import progress

    shown = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.fields[count]}"),
        progress.TimeRemainingColumn(compact=True),
        console=out.console,
        transient=True,
        expand=True,
    )
    shown.add_task(what, total=None, count="")
    with shown:
        yield Bar(shown, unit)


def adding(shown: Bar, total: int, what: str) -> Callable[[int], None]:
    """Return a function that adds a share of ``total`` to the bar."""
    done = 0

    def more(share: int) -> None:
        nonlocal done
        done += share
        shown.set(done, total, what)

    return more
