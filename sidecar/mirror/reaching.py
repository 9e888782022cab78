"""Connects a command to the home's NATS server: the configured one, or the sidecar's embedded one.

The embedded server's port and token change with each start, so each attempt to
connect first asks the sidecar, which proves its identity on the link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge.nats.jetstream.errors import NatsRefused, NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from sidecar.config import NatsConfig
from sidecar.home import Home
from sidecar.link.client import ClientError, ControlClient, RequestError
from sidecar.mirror.settings import embedded_options, external_options
from sidecar.private_files import HomeError
from sidecar.version import VERSION


def sessions_of(home: Home, config: NatsConfig, nonce: Callable[[], str]) -> Sessions:
    """A ``Sessions`` object for the server named in ``config``, whose mode must not be off. The caller closes the
    object.

    Connecting raises ``NatsRefused`` if the settings cannot work, and ``NatsUnavailable`` if no server answers.
    """

    async def options() -> ConnectOptions:
        if config.mode == "external":
            return external_options(config)
        return await _embedded(home, config, nonce)

    return Sessions(options)


async def _embedded(home: Home, config: NatsConfig, nonce: Callable[[], str]) -> ConnectOptions:
    if home.running() is None:
        raise NatsUnavailable(
            "no sidecar is running, and the embedded NATS server runs only with the sidecar",
            "start a sidecar with `durable-stream serve`",
        )
    try:
        async with await ControlClient.connect(home, version=VERSION, nonce=nonce) as client:
            answer: dict[str, Any] = await client.request("nats")
    except RequestError as error:
        raise NatsUnavailable(error.message) from None
    except ClientError as error:
        raise NatsUnavailable(str(error)) from None
    except HomeError as error:
        raise NatsRefused(f"{error.path}: {error.problem}", error.hint) from None
    return embedded_options(port=int(answer["port"]), token=str(answer["token"]), server_id=answer["server_id"])
