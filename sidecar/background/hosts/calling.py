"""Calls the plugin of an OpenCode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from bridge.opencode.link.protocol import CallError
from sidecar.background.hosts.host import HostError

if TYPE_CHECKING:
    from sidecar.link.links import ShimConnection

CALL_SECONDS: Final = 20.0


async def call(link: ShimConnection, method: str, args: Mapping[str, Any]) -> Any:
    """What a method of an OpenCode returns.

    Raises:
        HostError: it failed, or the link closed.
    """
    try:
        return await link.call(method, args, timeout=CALL_SECONDS)
    except CallError as error:
        if error.code == "unknown_method":
            raise HostError("the plugin in the open OpenCode is of an older version; restart that OpenCode") from None
        raise HostError(f"{method}: {error}", permanent=error.status in (400, 404)) from None
