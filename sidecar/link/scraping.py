"""``GET /metrics`` on the link's port, for requests with the right bearer token.

The bearer token is derived from the home's token. Links do not accept it, and the home's token cannot be computed from
it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

PATH: Final = "/metrics"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_PURPOSE: Final = b"durable-stream metrics 1"


def bearer_of(token: str) -> str:
    """The bearer token for ``GET /metrics``: HMAC-SHA256 of its purpose, keyed with the home's token."""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()


def is_allowed(authorization: Sequence[str], bearer: str) -> bool:
    """Whether a request has exactly one ``Authorization`` header, with this bearer token. Takes constant time."""
    given = authorization[0] if len(authorization) == 1 else ""
    scheme, _, value = given.partition(" ")
    # Compare bytes, because ``compare_digest`` refuses text that is not ASCII.
    is_right = hmac.compare_digest(value.strip().encode("utf-8", "replace"), bearer.encode())
    return is_right and scheme.lower() == "bearer"
