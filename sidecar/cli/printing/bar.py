"""The progress bar for long work. The bar is shown only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from sidecar.read.wording import bytes_text

if TYPE_CHECKING:
    from sidecar.cli.printing.output import Output

BAR_BYTES = 8 * 1024 * 1024
"""Minimum size of a log, in bytes, for which verifying shows a progress bar."""


Progress = Callable[[int, int | None, str], None]
"""Shows how much is done, of how much, and what is being done. Without a terminal, it does nothing."""


@contextmanager
def bar(
    out: Output, what: str, unit: Literal["records", "bytes", "hooks"] = "records", *, wanted: bool = True
) -> Iterator[Progress]:
    """Show a bar during the block; output printed during the block appears above the bar."""
    if not out.terminal or out.json or not wanted:
        yield lambda done, total, what: None
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
    task = shown.add_task(what, total=None, count="")

    def show(done: int, total: int | None, what: str) -> None:
        if total is None:
            count = ""
        elif unit == "bytes":
            count = f"{bytes_text(done)} of {bytes_text(total)}"
        else:
            count = f"{done:>{len(f'{total:,}')},} of {total:,} {unit}"
        shown.update(task, description=what, completed=done, total=total, count=count)

    with shown:
        yield show


def adding(show: Progress, total: int, what: str) -> Callable[[int], None]:
    """Return a function that adds a share of ``total`` to the bar."""
    done = 0

    def more(share: int) -> None:
        nonlocal done
        done += share
        show(done, total, what)

    return more
