"""What the commands that speak with NATS share: the way to the home's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sidecar.cli.command import Failure

if TYPE_CHECKING:
    from bridge.nats.sessions import Sessions
    from sidecar.config import NatsConfig
    from sidecar.home import Home

TURN_ON = 'set mode = "embedded" or "external" in [nats] of config.toml'


def connection(home: Home, config: NatsConfig) -> Sessions:
    """A connection to be made to the home's server; the caller closes it.

    Raises:
        Failure: NATS is off, the embedded server does not run, or the client library is missing.
    """
    if config.mode == "off":
        raise Failure(f"NATS is off in {home.path}, so nothing is mirrored; {TURN_ON}")
    if config.mode == "embedded" and home.running() is None:
        raise Failure(
            f"the embedded NATS server of {home.path} runs with the sidecar, and none runs; "
            "start it: `durable-stream serve`"
        )
    try:
        from sidecar.nats.reaching import sessions_of
    except ModuleNotFoundError as error:
        from sidecar.nats.service import LIBRARY, MISSING

        if error.name is None or error.name.split(".")[0] not in LIBRARY:
            raise
        raise Failure(MISSING) from None
    return sessions_of(home, config)
