"""Commands that run or end the sidecar: ``serve``, ``stop``, ``play``, ``demo``."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.shared.command import Failure, JsonFlag, complain, home_of

if TYPE_CHECKING:
    from sidecar.cli.shared.output import Output
    from sidecar.home import Home, SidecarInfo

STOP_SECONDS = 20.0
"""How long a sidecar may take to make durable what it has and to let its home go."""

TERM_SECONDS = 3.0
"""How long a sidecar that did not answer may take to end by SIGTERM before it is killed."""

ANSWER_SECONDS = 5.0
"""How long a sidecar may take to answer a request before it counts as hung."""

_LOOK_SECONDS = 0.05


async def serve(
    context: typer.Context,
    idle_exit: Annotated[
        bool, typer.Option("--idle-exit", help="Leave after an idle time; as the plugin starts it.")
    ] = False,
) -> int:
    """Run the sidecar until it is stopped.

    The OpenCode plugin starts one by itself when none runs.
    """
    home = home_of(context)
    home.check_owner()
    if idle_exit and home.running() is not None:
        return 0  # several shims start one at once: those that come late should cost nothing

    from sidecar.app import serve as run
    from sidecar.config import load_config
    from sidecar.home import HomeLocked
    from sidecar.logs import note_failure

    def announce(port: int) -> None:
        if not idle_exit:
            from sidecar.cli.shared.output import Output

            out = Output()
            out.text(f"serving {home.path} on port {port}; end with Ctrl-C")
            out.flush()

    try:
        config = load_config(home.config_path)
        return await run(home, config, idle_exit=idle_exit, announce=announce, complain=complain)
    except HomeLocked:
        raise
    except Exception as error:
        # Started by a shim there is nobody to tell: the reason must be found afterwards.
        if home.was_used():
            note_failure(home, error)
        raise


async def stop(context: typer.Context, json: JsonFlag = False) -> int:
    """Stop the running sidecar.

    It makes durable what it has, then leaves. One that hangs is ended by a signal.
    """
    from sidecar.cli.shared.output import Output

    out = Output(json)
    home = home_of(context)
    home.check_owner()
    info = home.running()
    if info is None:
        return _told(out, f"no sidecar runs for {home.path}", stopped=False, pid=None)
    failure = await _ask_to_stop(home)
    if failure is None and await _gone(home, info, STOP_SECONDS):
        return _told(out, f"stopped the sidecar (pid {info.pid})", stopped=True, pid=info.pid)
    reason = failure or f"it was still there after {STOP_SECONDS:g} s"
    if not json:
        out.text(f"the sidecar (pid {info.pid}) does not take the request ({reason}): ending it by a signal")
        out.flush()
    for number, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        # It may be killed: what was acknowledged is durable, and the shims keep the rest.
        try:
            os.kill(info.pid, number)
        except ProcessLookupError:
            return _told(out, f"the sidecar (pid {info.pid}) has ended by itself", stopped=True, pid=info.pid)
        if await _gone(home, info, seconds):
            text = f"ended the sidecar (pid {info.pid}) by {number.name}"
            return _told(out, text, stopped=True, pid=info.pid)
    raise Failure(f"the sidecar (pid {info.pid}) cannot be ended; look into {home.log_path}")


def _told(out: Output, text: str, **facts: Any) -> int:
    if out.json:
        out.object(facts)
    else:
        out.text(text)
    return 0


async def _ask_to_stop(home: Home) -> str | None:
    """Why the request was not taken; ``None`` when it was."""
    import asyncio

    from bridge.opencode.link.link import RequestError
    from sidecar.home import HomeError
    from sidecar.link.client import ClientError, ControlClient, LinkClosed
    from sidecar.version import VERSION
    from streams.identity import system_identity

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            client = await ControlClient.connect(home, version=VERSION, nonce=system_identity().nonce)
            async with client:
                await client.request("stop")
    except TimeoutError:
        return f"no answer within {ANSWER_SECONDS:g} s"
    except RequestError as error:
        return str(error)
    except (ClientError, HomeError) as error:
        # It may close the link before its answer is out: then it is on its way.
        return None if isinstance(error, LinkClosed) else str(error)
    return None


async def _gone(home: Home, info: SidecarInfo, seconds: float) -> bool:
    """Whether the sidecar lets its home go within ``seconds``."""
    import asyncio

    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        running = home.running()
        # One that is leaving took its address away already, and still closes its files.
        if running.boot != info.boot if running is not None else not home.is_locked():
            return True
        if loop.time() >= end:
            return False
        await asyncio.sleep(_LOOK_SECONDS)


async def play(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Hooks as JSON lines: {t, hook, input, output}.")],
    speed: Annotated[
        str, typer.Option(metavar="max|real|FACTOR", help="As fast as it goes, as it was, or FACTOR times that.")
    ] = "max",
    json: JsonFlag = False,
) -> int:
    """Send a recording of hooks to the sidecar.

    As the plugin would; starts a sidecar if none runs, and returns when all of it is durable.
    """
    from sidecar.cli.shared.output import Output

    factor = _speed(speed)
    if not file.is_file():
        raise Failure(f"{file}: there is no such file; name a recording made of JSON lines")
    from dataclasses import asdict

    from sidecar.capture.play import play as run
    from sidecar.cli.shared.bar import bar

    out = Output(json)
    with bar(out, "playing", "hooks") as shown:
        result = await run(
            home_of(context),
            file,
            speed=factor,
            on_progress=lambda progress: shown.set(progress.acked, progress.total, "playing"),
        )
    if json:
        out.object(asdict(result))
        return 0
    skipped = f", {result.skipped} lines of the recorder left out" if result.skipped else ""
    relinked = f", {result.relinked} times linked again" if result.relinked else ""
    added = f"{result.added} record{'' if result.added == 1 else 's'} added"
    out.text(f"played {result.items} hooks of {file}: all are durable, {added}{skipped}{relinked}", "green")
    return 0


def _speed(text: str) -> float | None:
    """How many times faster than recorded; ``None`` is as fast as it goes."""
    if text == "max":
        return None
    if text == "real":
        return 1.0
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise typer.BadParameter(f"{text!r} is not max, real or a factor above 0")
    return factor


async def demo(context: typer.Context) -> int:
    """See it work, in a home of its own.

    A recorded session is played, shown, and verified.
    """
    from sidecar.cli.shared.output import Output
    from sidecar.demo import demo as run

    return await run(Output())
