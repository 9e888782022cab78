"""Commands that say whether all is well: ``status``, ``doctor``, ``verify``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from sidecar.cli.command import JsonFlag, home_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sidecar.cli.output import Output
    from streams.verify import Verification

BAR_BYTES = 8 * 1024 * 1024
"""A log from this size on takes long enough to verify for a progress bar."""


async def verify(context: typer.Context, json: JsonFlag = False) -> int:
    """Check every record of the log.

    Checksums, order, whole batches, and each stream's hash chain. Changes nothing.
    """
    from sidecar.cli.output import Output
    from streams.verify import Verification

    out = Output(json)
    check = Verification(home_of(context).store_path)
    with _progress(out, check):
        async for finding in check.run():
            if json:
                out.object({"finding": finding.as_json()})
            else:
                out.prose("", str(finding), "yellow" if finding.kind == "torn" else "red")
    summary = check.summary
    if json:
        out.object({"summary": summary.as_json()})
    elif not summary.findings:
        streams = f"{summary.streams} stream{'' if summary.streams == 1 else 's'}"
        count = "all" if summary.records != 1 else "the"
        out.text(
            f"{count} {summary.records} record{'' if summary.records == 1 else 's'} in {streams} verified", "green"
        )
    else:
        faults = f"{summary.findings} finding{'' if summary.findings == 1 else 's'}"
        out.text(f"{faults} in {summary.records} records of {summary.streams} streams; nothing was changed", "bold")
    return 1 if summary.findings else 0


def _progress(out: Output, check: Verification) -> AbstractContextManager[object]:
    """A bar on a terminal, which findings are printed above; none for a log that is done in an instant."""
    size = check.size()
    if not out.terminal or size < BAR_BYTES:
        return nullcontext()
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("verifying"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=out.console,
        transient=True,
    )
    task = bar.add_task("", total=size)
    check.progress = lambda size: bar.advance(task, size)
    return bar


async def status(context: typer.Context, json: JsonFlag = False) -> int:
    """Show on one screen whether all is well.

    The sidecar, its links, the log, and what waits. Works without a running sidecar, too.
    """
    from sidecar.cli.output import Output
    from sidecar.cli.state import gather_status, print_status

    out = Output(json)
    found = await gather_status(home_of(context))
    if json:
        out.object(found)
    else:
        print_status(out, found)
    return 1 if found["problems"] else 0


async def doctor(context: typer.Context, json: JsonFlag = False) -> int:
    """Look for what is wrong, with hints.

    OpenCode, the plugin, the home, the sidecar, the log and the disk.
    """
    from sidecar.checks import diagnose
    from sidecar.cli.installing import executable
    from sidecar.cli.output import Output

    out = Output(json)
    problems = 0
    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    async for check in diagnose(home_of(context), executable()):
        problems += check.level == "problem"
        if json:
            out.object(check.as_json())
            continue
        style = styles[check.level] if check.level != "ok" else ""
        out.prose(f"{check.level:9}", f"{check.name}: {check.text}", style)
        if check.hint:
            out.prose(" " * 9, check.hint, "dim")
    if not json:
        out.text(
            "no problem found" if not problems else f"{problems} problem{'' if problems == 1 else 's'} found", "bold"
        )
    return 1 if problems else 0
