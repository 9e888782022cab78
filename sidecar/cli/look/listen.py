"""``listen``: prints what is published on NATS, as it happens."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run, note

if RUNS:
    import asyncio
    from collections import deque

    from bridge.nats.jetstream.connection import JetStream
    from bridge.nats.jetstream.errors import NatsError, NatsUnavailable
    from bridge.nats.jetstream.sessions import RECONNECT, Sessions
    from bridge.nats.jetstream.wire import Received
    from sidecar.cli.printing.output import Output, padded
    from sidecar.cli.printing.received_message import PLACE_CHARACTERS, as_json, expanded, is_internal, shown_message
    from sidecar.cli.printing.records import ROOMY, SHORT_ID, Lines
    from sidecar.cli.shared.identity import own_identity
    from sidecar.cli.shared.nats import connection
    from sidecar.read.wording import iso_time
    from streams.bus.subjects import SubjectError

MOST_WAITING = 10_000
"""Maximum number of messages waiting for a slow terminal or pipe; further ones are dropped and counted."""


async def listen(
    run: Run,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Subjects to print; * matches one token, > matches the rest.")
    ] = "evt.>",
) -> None:
    """Print NATS messages as they are published, until Ctrl-C.

    evt.> selects every record; evt.*.*.ses_1a2b.> selects the records of one stream. Subjects such as evt.agent.*.step
    belong to the L0 protocol, which other programs read; docs/subjects.md lists them. Does not show messages published
    earlier or while the server is unreachable.
    """
    try:
        pattern = expanded(subject)
    except SubjectError as error:
        raise typer.BadParameter(str(error), param_hint="SUBJECT") from None
    async with connection(run.own_home, waits=True) as sessions:
        await _until_interrupted(_Listening(run.out, sessions, pattern))


async def _until_interrupted(listening: _Listening) -> None:
    """Listen until SIGINT or SIGTERM, which is the ordinary end and not a failure."""
    import signal

    loop = asyncio.get_running_loop()
    task = asyncio.create_task(listening.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        task.cancel()


class _Listening:
    def __init__(self, out: Output, sessions: Sessions, pattern: str) -> None:
        self._out, self._sessions, self._pattern = out, sessions, pattern
        self._waiting: deque[Received] = deque()
        self._left_out = 0
        self._lines = Lines(out)
        self._news: asyncio.Event

    async def run(self) -> None:
        """Receive and print, through every restart of the server, until cancelled.

        Waits for a server that has not started yet, and for a server that has become unreachable.

        Raises:
            NatsRefused: the settings cannot work; for example, the token is wrong or a certificate is missing.
        """
        self._news = asyncio.Event()
        try:
            session = await self._sessions.get()
        except NatsUnavailable as error:
            self._tell(f"{error}. Waiting for the server; press Ctrl-C to stop.")
            session = await self._again(error, first=True)
        begun = f"Listening to {self._pattern}. Press Ctrl-C to stop."
        while True:
            try:
                await self._hear(session, begun)
            except NatsUnavailable as error:
                self._print_waiting()
                self._tell(f"{error}. Waiting for the server; messages published in the meantime are not shown.")
                session = await self._again(error)
            begun = f"Reconnected to NATS {session.server.version}."

    async def _again(self, told: NatsError, *, first: bool = False) -> JetStream:
        """Return the next connection. A problem is reported only if it differs from the previous one.

        Raises:
            NatsRefused: the settings cannot work. Raised only on the ``first`` attempt, because settings that worked
                before may work again.
        """
        failures = 0
        while True:
            try:
                return await self._sessions.get()
            except NatsError as error:
                if first and not isinstance(error, NatsUnavailable):
                    raise
                if str(told) != str(error):
                    self._tell(f"Still waiting: {error}.")
                told = error
            failures += 1
            await asyncio.sleep(RECONNECT.pause(failures))

    def _tell(self, text: str) -> None:
        self._out.flush()
        note(text)

    async def _hear(self, session: JetStream, begun: str) -> None:
        async with session.hearing(self._pattern, self._take):
            await session.flush()  # from here on, the server sends every message
            self._tell(begun)
            printing = asyncio.create_task(self._print_on())
            try:
                ended = asyncio.ensure_future(session.ended())
                await asyncio.wait((printing, ended), return_when=asyncio.FIRST_COMPLETED)
                if printing.done():
                    printing.result()  # this raises an error if the reader of the pipe has closed it
                raise _ended(ended.result())
            finally:
                printing.cancel()

    def _take(self, message: Received) -> None:
        if is_internal(message.subject, self._pattern):
            return
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.popleft()
            self._left_out += 1
        self._waiting.append(message)
        self._news.set()

    async def _print_on(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._print_waiting()
            await asyncio.sleep(0)

    def _print_waiting(self) -> None:
        while self._waiting:
            if self._left_out:
                note(f"{self._left_out} messages were dropped: they arrive faster than they can be printed.")
                self._left_out = 0
            self._print(self._waiting.popleft())
        self._out.flush()

    def _print(self, message: Received) -> None:
        now = own_identity().now_ms()
        if self._out.json:
            self._out.object(as_json(message.subject, message.headers, message.body, now))
            return
        told = shown_message(message.subject, message.headers, message.body, now)
        if self._out.terminal:
            roomy = self._out.width >= ROOMY
            place, width = (told.place, PLACE_CHARACTERS) if roomy else (told.place[-SHORT_ID:], SHORT_ID)
            self._lines.line(told.ts, padded(place, width), told.actor, told.line)
        else:
            self._out.cells(iso_time(told.ts), message.subject, told.type, told.actor, str(told.line))


def _ended(why: str) -> NatsError:
    return NatsUnavailable(f"The connection to NATS ended: {why}")
