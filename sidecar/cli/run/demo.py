"""``demo``: play a recorded session through a real link and kill the sidecar halfway.

Uses temporary homes only; touches no file of the user.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sidecar.cli.shared.command import RUNS, Run

if RUNS:
    import asyncio
    import os
    import signal
    import tempfile
    from collections import Counter
    from hashlib import sha256

    from sidecar.cli.printing.output import Output
    from sidecar.cli.printing.records import Lines
    from sidecar.cli.shared.control import ask_running
    from sidecar.cli.shared.follow import follow
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.nats import connection
    from sidecar.home import Home
    from sidecar.link.client import ClientError
    from sidecar.mirror.verify import MirrorCheck
    from sidecar.read.find_by_id import Families
    from sidecar.record.playing.hooks import read_recording
    from sidecar.record.playing.play import play
    from streams.hashing import canonical
    from streams.log.completeness import located
    from streams.log.reader import LogReader
    from streams.log.verify import Verification

RECORDING: Final = Path(__file__).parents[2] / "record" / "recordings" / "demo.jsonl"

SPEED: Final = 2.0
"""The speed, as a multiple of the recorded speed: fast, but slow enough to watch."""

KILL_AT: Final = 20
"""How many records are in the log when the demo kills the sidecar: about half of all."""

_HANG_SECONDS: Final = 120.0


async def demo(run: Run) -> int:
    """Play a recorded session in a temporary home, kill the sidecar halfway, and verify the log."""
    out = Output()
    with tempfile.TemporaryDirectory(prefix="durable-stream-demo-") as directory:
        killed, whole = Home(Path(directory) / "killed"), Home(Path(directory) / "whole")
        killed.create()
        killed.config_path.write_text('[nats]\nmode = "embedded"\n')
        hooks = len(read_recording(RECORDING).items)
        _heading(out, f"A recorded OpenCode session ({hooks} hooks) is played into an empty log")
        try:
            async with asyncio.timeout(_HANG_SECONDS):
                watcher = _Watcher(killed, out)
                watching = asyncio.create_task(watcher.run())
                await play(killed, RECORDING, nonce=own_identity().nonce, speed=SPEED)
                await watcher.caught_up(LogReader(killed.store_path).head)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                await play(whole, RECORDING, nonce=own_identity().nonce)
                return await _compare(out, killed, whole)
        finally:
            for home in (killed, whole):
                await _stop(home)


class _Watcher:
    """Prints the log as it grows, kills the sidecar once, and reports when a new sidecar is running."""

    def __init__(self, home: Home, out: Output) -> None:
        self._home, self._out = home, out
        self._seen = 0
        self._killed_pid = 0
        self._is_back = False
        self._progress = asyncio.Event()

    async def run(self) -> None:
        lines, families = Lines(self._out), Families(LogReader(self._home.store_path))
        async for record in follow(self._home.store_path):
            if self._killed_pid and not self._is_back:
                self._tell_return()
            lines.print(record, (await families.of(record)).place_of(record))
            self._out.flush()
            self._seen = record.position + 1
            self._progress.set()
            if self._seen == KILL_AT:
                self._kill()

    async def caught_up(self, head: int) -> None:
        """Wait until everything up to position ``head`` has been printed."""
        while self._seen <= head:
            self._progress.clear()
            await self._progress.wait()

    def _kill(self) -> None:
        info = self._home.running()
        if info is not None:
            self._killed_pid = info.pid
            os.kill(info.pid, signal.SIGKILL)
            self._out.text(f"──── kill -9 {info.pid}: the sidecar is dead; hooks keep arriving ────", "bold red")
            self._out.flush()

    def _tell_return(self) -> None:
        info = self._home.running()
        if info is None or info.pid == self._killed_pid:
            return  # this record was in the log before the kill
        self._is_back = True
        self._out.text(
            f"──── the sidecar is back (pid {info.pid}): unacknowledged hooks are sent again ────", "bold green"
        )


async def _compare(out: Output, killed: Home, whole: Home) -> int:
    """Compare the killed sidecar's log with an undisturbed one."""
    expected, got = await _keys(whole), await _keys(killed)
    before = sum(got.values())
    await play(killed, RECORDING, nonce=own_identity().nonce)
    added = sum((await _keys(killed)).values()) - before
    verification = Verification(killed.store_path)
    findings = [finding async for finding in verification.run()]
    missing, extra = expected - got, got - expected
    _heading(out, "What the kill did to the log")
    out.text(f"  records        {before}, undisturbed: {sum(expected.values())}")
    out.text(f"  missing        {sum(missing.values())}")
    out.text(f"  duplicated     {sum(extra.values())}")
    out.text(f"  played again   {added} added")
    out.text(
        f"  hash chains    {'intact' if not findings else f'{len(findings)} faults'}, "
        f"{verification.summary.records} records verified"
    )
    copied, differences = await _on_jetstream(killed)
    out.text(f"  on JetStream   {copied} records read back, {differences} differences")
    is_whole = not missing and not extra and not added and not findings and not differences and copied == before
    out.text()
    if is_whole:
        out.text("Nothing is missing, and nothing is duplicated.", "bold green")
        out.text("Now for your own sessions: `durable-stream install`, then restart OpenCode.")
    else:
        out.text("The log is not as it should be: please report this with the output above.", "bold red")
    return 0 if is_whole else 1


async def _on_jetstream(home: Home) -> tuple[int, int]:
    """How many records the embedded NATS server has, and how many messages differ from the log."""
    while (await ask_running(home, "mirror"))["lag"]:  # noqa: ASYNC110 - another process: there is no event to wait for
        await asyncio.sleep(0.02)
    manifest = located(home.store_path)
    log_id = manifest.log_id if manifest is not None else ""
    async with connection(home) as sessions:
        check = MirrorCheck(LogReader(home.store_path), log_id, sessions, now_ms=own_identity().now_ms)
        differences = [difference async for difference in check.run()]
    return check.summary.records - check.summary.waiting, len(differences)


async def _keys(home: Home) -> Counter[tuple[str, str]]:
    """The recorded content without the parts that differ each time the session is played, such as ids and hashes.

    Titles are also left out, because title updates are not final, and the end of a turn has the last title that was
    seen.
    """
    found: Counter[tuple[str, str]] = Counter()
    async for record in LogReader(home.store_path).read_all():
        payload = {name: value for name, value in record.event.payload.items() if name != "title"}
        found[(record.event.idempotency_key, sha256(canonical(payload)).hexdigest())] += 1
    return found


async def _stop(home: Home) -> None:
    """End the home's sidecar and wait until it has closed its files."""
    try:
        await ask_running(home, "stop")
    except ClientError:
        return  # no sidecar is running: none was started, or the demo was interrupted while its sidecar was dead
    while home.is_locked():  # noqa: ASYNC110 - another process's lock: there is no event to wait for
        await asyncio.sleep(0.02)


def _heading(out: Output, text: str) -> None:
    out.text()
    out.text(text, "bold")
    out.text()
