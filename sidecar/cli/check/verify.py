"""``verify``: check every record of the log."""

from __future__ import annotations

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    from sidecar.cli.printing.bar import BAR_BYTES, adding, bar
    from sidecar.cli.printing.output import held_text
    from sidecar.read.wording import WAY_OUT, counted
    from streams.log.verify import Verification


async def verify(run: Run) -> int:
    """Check every record of the log.

    Checks each record's checksum and order, each stream's hash chain, and that every batch is complete. Changes
    nothing. With --team, checks checksums and chains of the team's copies.
    """
    out, home = run.out, run.home
    if not home.path.is_dir():
        raise Failure(
            "not-found",
            f"the home {home.path} does not exist, so nothing was verified; choose another home with `--home`",
        )
    check = Verification(home.store_path) if run.elsewhere is None else run.elsewhere.verification()
    size = check.size()
    with bar(out, "verifying", "bytes", wanted=size >= BAR_BYTES) as shown:
        async for finding in check.run(adding(shown, size, "verifying")):
            if out.json:
                out.object({"finding": finding.as_json()})
            else:
                out.prose("", str(finding), "yellow" if finding.kind == "torn" else "red")
    summary = check.summary
    if out.json:
        out.object({"summary": summary.as_json()})
    elif not summary.findings:
        count = "all" if summary.records != 1 else "the"
        out.text(f"{count} {held_text(summary)} verified", "green")
    else:
        faults = counted(summary.findings, "finding")
        out.text(f"{faults} in {held_text(summary)}; nothing was changed", "bold")
        if run.elsewhere is None:
            note(f"Restore a backup of the home. Without one, {WAY_OUT}.")
        else:
            note("Make the home's copy anew, as the page on teams says.")
    return 1 if summary.findings else 0
