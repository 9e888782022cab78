"""``stop``: end the running sidecar."""

from __future__ import annotations

import os
import signal
from typing import Any

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    import asyncio

    from bridge.opencode.link.protocol import RequestError
    from sidecar.cli.shared.control import ask_running
    from sidecar.components import until
    from sidecar.home import Home, SidecarInfo
    from sidecar.link.client import ClientError, LinkClosed
    from sidecar.private_files import HomeError

STOP_SECONDS = 20.0
"""How long a sidecar may take to write everything it received and release its home."""

TERM_SECONDS = 3.0
"""How long a sidecar that did not answer may take to exit after SIGTERM before it is killed."""

ANSWER_SECONDS = 5.0
"""How long a sidecar may take to answer a request before it counts as hung."""


async def stop(run: Run) -> None:
    """Stop the running sidecar.

    The sidecar first writes everything it has received. If it hangs, it is killed.
    """
    out, home = run.out, run.own_home
    info = home.running()
    if info is not None and info.process and not info.still_runs:
        # No sidecar runs: another process holds the lock or has the sidecar's pid.
        info = None
    info = info or home.unlocked()
    if info is None:
        out.result({"stopped": False, "pid": None}, f"no sidecar is running for {home.path}")
        return
    stopped = {"stopped": True, "pid": info.pid}
    failure, answer = await _ask_to_stop(home)
    if failure is None and await _gone(home, info, STOP_SECONDS):
        out.result(stopped, f"stopped the sidecar (pid {info.pid})")
        # A sidecar of an older version does not say who is left.
        if linked := answer.get("linked"):
            note(f"OpenCode (pid {', '.join(map(str, linked))}) still runs and starts another sidecar.")
        if headless := answer.get("headless"):
            note(
                f"Background work goes on in a headless OpenCode (pid {', '.join(map(str, headless))}), "
                "which starts another sidecar; "
                "`durable-stream intents` lists the work."
            )
        return
    reason = failure or f"it was still running after {STOP_SECONDS:g} s"
    if not out.json:
        out.text(f"the sidecar (pid {info.pid}) did not stop on request ({reason}): killing it")
        out.flush()
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        # Killing the sidecar is safe, because acknowledged items are durable and the shims keep the others.
        try:
            if info.process and not info.still_runs:
                raise ProcessLookupError
            os.kill(info.pid, number)
        except ProcessLookupError:
            out.result(stopped, f"the sidecar (pid {info.pid}) has already exited")
            return
        if await _gone(home, info, seconds):
            out.result(stopped, f"ended the sidecar (pid {info.pid}) with {number.name}")
            return
    raise Failure("cannot-stop", f"the sidecar (pid {info.pid}) did not exit, even when killed; see {home.log_path}")


async def _ask_to_stop(home: Home) -> tuple[str | None, dict[str, Any]]:
    """Why the request was refused, or ``None`` if it was accepted; and the answer, empty if there was none."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return None, await ask_running(home, "stop")
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s", {}
    except RequestError as error:
        return str(error), {}
    except (ClientError, HomeError) as error:
        # If the sidecar closes the link instead of answering, the sidecar is already stopping.
        return (None if isinstance(error, LinkClosed) else str(error)), {}


async def _gone(home: Home, info: SidecarInfo, seconds: float) -> bool:
    """True if the sidecar releases its home within ``seconds``."""

    def is_gone() -> bool:
        running = home.running()
        # Also check the lock, because an exiting sidecar deletes its address before it has closed its files.
        is_released = running.boot != info.boot if running is not None else not home.is_locked()
        return is_released and not info.still_runs

    return await until(is_gone, seconds)
