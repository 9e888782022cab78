"""The HTTP headers with which the requests that an effect sends continue the effect's trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_headers: ContextVar[Mapping[str, str]] = ContextVar("outbound_headers", default=MappingProxyType({}))


def outbound_headers() -> dict[str, str]:
    """``traceparent`` and, if the chain has one, ``tracestate``, while an effect runs; otherwise nothing."""
    return dict(_headers.get())


@contextmanager
def outbound(headers: Mapping[str, str]) -> Iterator[None]:
    """Let ``outbound_headers`` return these headers in the block, and in the tasks that the block starts."""
    token = _headers.set(headers)
    try:
        yield
    finally:
        _headers.reset(token)
