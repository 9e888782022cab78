"""For commands that change the log: sends requests to the sidecar, and starts a sidecar if none is running.

This module also has the messages for a sidecar that ends before it answers, and for Ctrl-C.
"""

from __future__ import annotations

import os
from asyncio import CancelledError
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sidecar.cli.shared.command import note
from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.home import Home
    from sidecar.link.client import ControlClient

REMOVING: Final = (
    "no record that should stay is lost, and the next start finishes the removal; it is safe to run the same command "
    "again"
)
REBUILDING: Final = "the log itself is intact; it is safe to run the same command again"

LOOK_SECONDS: Final = 0.2
"""How often to ask the sidecar for the progress of its work."""

TRIES: Final = 5
"""How many times in a row a sidecar may exit between its start and the connection to it."""


@asynccontextmanager
async def control(home: Home, cut_off: str) -> AsyncIterator[ControlClient]:
    """Open a link to the home's sidecar, starting one if needed.

    ``cut_off`` says what it means for the log if the sidecar ends.

    Raises:
        LinkUnavailable: the sidecar could not start (the error gives the reason) or does not answer. Nothing was
            changed.
        Failure: the sidecar ended before it answered.
    """
    from sidecar.link.client import LinkClosed

    client = await _connected(home)
    try:
        async with client:
            yield client
    except CancelledError:
        note("Interrupted: the sidecar continues the work; run the same command again to see how it ended.")
        raise
    except LinkClosed as error:
        how = "crashed" if error.reason == "lost" else "was stopped"
        raise Failure("cut-off", f"the sidecar for {home.path} {how} before it finished: {cut_off}") from None


async def _connected(home: Home) -> ControlClient:
    from sidecar.cli.shared.identity import own_identity
    from sidecar.link.client import ControlClient, LinkUnavailable
    from sidecar.link.launch import ensure_running
    from sidecar.version import VERSION

    for left in reversed(range(TRIES)):
        info = await ensure_running(home)
        try:
            return await ControlClient.connect(home, version=VERSION, nonce=own_identity().nonce)
        except LinkUnavailable:
            now = home.running()
            if not left or (now is not None and now.boot == info.boot):
                raise
    raise AssertionError("unreachable")


async def ask_running(home: Home, method: str) -> dict[str, Any]:
    """Send one request to the home's sidecar and return the answer, without starting a sidecar.

    Raises:
        ClientError: no sidecar is running, or it does not answer.
        RequestError: the sidecar refuses.
    """
    from sidecar.cli.shared.identity import own_identity
    from sidecar.link.client import ControlClient
    from sidecar.version import VERSION

    async with await ControlClient.connect(home, version=VERSION, nonce=own_identity().nonce) as client:
        return dict(await client.request(method))


def proof() -> dict[str, str]:
    """The argument that shows that a person asked in the list of OpenCode's terminal, if one did."""
    given = os.environ.get("DURABLE_STREAM_PROOF")
    return {"proof": given} if given else {}


async def ask(home: Home, method: str, args: dict[str, Any], cut_off: str) -> dict[str, Any]:
    """Send one request to the home's sidecar and return the answer. Raises the same errors as ``control``."""
    async with control(home, cut_off) as client:
        return dict(await client.request(method, args))
