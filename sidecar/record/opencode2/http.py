"""Requests to an OpenCode service on loopback, with JSON answers. Each request has a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson

from sidecar.record.opencode2.registration import Registration, check_listener

ANSWER_SECONDS: Final = 30.0
"""How long the service may take to begin or to continue an answer."""

WHOLE_SECONDS: Final = 120.0
"""How long a whole answer may take, however steadily it arrives."""

MAX_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of an answer, in bytes."""


class ServiceGone(Exception):
    """The service did not answer, or its answer was unreadable; it has probably stopped or is stopping."""


class ServiceError(Exception):
    """The service refused a request with the HTTP status ``status``."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class ServiceClient:
    """Sends requests to one service. Cancelling a request closes its connection."""

    def __init__(self, registration: Registration) -> None:
        self._service = registration

    @property
    def pid(self) -> int:
        """The service's process."""
        return self._service.pid

    async def get(self, path: str) -> Any:
        """The decoded answer to a ``GET``; ``None`` if the answer is empty.

        Raises:
            ServiceError: the status is not 200, 201 or 204.
            ServiceGone: the answer is incomplete, unreadable or did not arrive.
        """
        return await self.send("GET", path)

    async def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        """The decoded answer to a request with a JSON body or no body; ``None`` if the answer is empty. ``headers`` are
        sent next to its own. Raises the same errors as ``get``.
        """
        import httpx  # imported here, because most sidecars serve OpenCode 1 only

        try:
            async with asyncio.timeout(WHOLE_SECONDS):
                content = await self._content(method, path, None if body is None else orjson.dumps(body), headers or {})
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceGone(type(error).__name__) from None
        try:
            return orjson.loads(content) if content else None
        except ValueError:
            raise ServiceGone("the answer is not JSON") from None

    async def _content(self, method: str, path: str, sent: bytes | None, more: Mapping[str, str]) -> bytes:
        import httpx

        service = self._service
        await asyncio.to_thread(check_listener, service.port)
        host = f"[{service.host}]" if ":" in service.host else service.host
        headers = {**more, "accept": "application/json"}
        headers |= {"content-type": "application/json"} if sent is not None else {}
        # Loopback never goes through a proxy that the environment names, and needs no certificates.
        async with (
            httpx.AsyncClient(
                auth=httpx.BasicAuth("opencode", service.password),
                timeout=ANSWER_SECONDS,
                trust_env=False,
                verify=False,  # noqa: S501 - plain HTTP
            ) as client,
            client.stream(method, f"http://{host}:{service.port}{path}", content=sent, headers=headers) as answer,
        ):
            if answer.status_code not in (200, 201, 204):
                raise ServiceError(answer.status_code)
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MAX_BYTES:
                    raise ServiceGone("the answer is too large")
            return bytes(content)
