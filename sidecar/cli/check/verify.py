"""``verify``: check every record of the log."""

from __future__ import annotations

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    from sidecar.cli.printing.bar import BAR_BYTES, adding, bar
    from sidecar.cli.printing.output import held_text
    from sidecar.read.wording import counted
    from streams.log.presence import kept_hint
    from streams.log.verify import Verification


async def verify(run: Run) -> int:
    """Check every record of the log.

    Checks each record's checksum and order, each stream's hash chain, and that every batch is complete. Changes
    nothing.
    """
    out, home = run.out, run.home
    if not home.path.is_dir():
        raise Failure(
            "not-found",
            f"the home {home.path} does not exist, so nothing was verified; choose another home with `--home`",
        )
    check = Verification(home.store_path)
    size = check.size()
    with bar(out, "verifying", "bytes", wanted=size >= BAR_BYTES) as shown:
        async for finding in check.run(adding(shown, size, "verifying")):
            if out.json:
                out.object({"finding": finding.as_json()})
            else:
                out.prose("", str(finding), "yellow" if finding.kind == "torn" else "red")
    summary = check.summary
    kept = kept_hint(home.store_path) if summary.findings else None
    if out.json:
        out.object({"summary": summary.as_json(), **({} if kept is None else {"hint": kept})})
    elif not summary.findings:
        count = "all" if summary.records != 1 else "the"
        out.text(f"{count} {held_text(summary)} verified", "green")
    else:
        faults = counted(summary.findings, "finding")
        out.text(f"{faults} in {held_text(summary)}; nothing was changed", "bold")
        note("`durable-stream repair --dry-run` shows what can be repaired; for anything else, restore a backup.")
        if kept is not None:
            out.prose("", kept)
    return 1 if summary.findings else 0
