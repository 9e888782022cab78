"""Commands that change the log, by the running sidecar or by themselves: what to say when one is cut off.

Either the sidecar ends before it answers, or the user presses Ctrl-C.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from sidecar.cli.command import Failure, note

if TYPE_CHECKING:
    from sidecar.client import ControlClient
    from sidecar.home import Home

REMOVING: Final = (
    "no record that was to stay is lost, and what was begun is finished at the next start; "
    "run the same command again, which is safe, and it does what was not begun"
)
MOVING: Final = (
    "no record is lost, the log is either where it was or wholly moved; "
    "run the same command again, which is safe, and it goes on where it was"
)
LOOKING: Final = "nothing was to be changed; run the same command again"
DISCARDING: Final = "the log itself is whole; run the same command again, which is safe, and it deletes the rest"


T = TypeVar("T")


class SidecarGone(Exception):
    """The sidecar ended before it was asked anything: nothing was begun."""


async def by_sidecar_or_ourselves(
    home: Home, asked: Callable[[], Awaitable[T]], ourselves: Callable[[], Awaitable[T]]
) -> T:
    """What the running sidecar is ``asked`` for; by ``ourselves`` where none runs, or it ends before it is asked."""
    if home.running() is not None:
        with suppress(SidecarGone):
            return await asked()
    return await ourselves()


@asynccontextmanager
async def control(home: Home, cut_off: str) -> AsyncIterator[ControlClient]:
    """A link to the running sidecar; ``cut_off`` says what it means for the log that it ended in the middle.

    Raises:
        SidecarGone: it ended before it was asked.
        Failure: it ended before it answered.
        LinkUnavailable: it runs, and cannot be asked.
    """
    from sidecar.client import ControlClient, LinkClosed, LinkUnavailable
    from sidecar.version import VERSION
    from streams.identity import system_identity

    try:
        client = await ControlClient.connect(home, version=VERSION, nonce=system_identity().nonce)
    except LinkUnavailable:
        if home.running() is None:
            raise SidecarGone from None
        raise
    try:
        async with client:
            yield client
    except CancelledError:
        if cut_off is not LOOKING:
            note("Interrupted: the sidecar goes on with it; run the same command again to see how it ended.")
        raise
    except LinkClosed as error:
        how = "was killed or died" if error.reason == "lost" else "was stopped"
        raise Failure(f"the sidecar for {home.path} {how} before it was done: {cut_off}") from None


@contextmanager
def by_ourselves(cut_off: str) -> Iterator[None]:
    """Around what a command does itself, where no sidecar runs; ``cut_off`` as in ``control``."""
    try:
        yield
    except CancelledError:
        note(f"Interrupted: {cut_off}.")
        raise
