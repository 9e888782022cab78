"""``GET /metrics`` on the link's port, for whoever sends the right bearer.

The bearer is derived from the token, so it proves nothing on a link, and the token cannot be computed from it.
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
    """The bearer for ``GET /metrics``: HMAC-SHA256 of its purpose, keyed with the home's token."""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).hexdigest()


def is_allowed(authorization: Sequence[str], bearer: str) -> bool:
    """Whether the ``Authorization`` headers of a request are exactly one, with this bearer. Takes constant time."""
    given = authorization[0] if len(authorization) == 1 else ""
    scheme, _, value = given.partition(" ")
    # Compare bytes, because the comparison refuses text that is not ASCII.
    is_right = hmac.compare_digest(value.strip().encode("utf-8", "replace"), bearer.encode())
    return is_right and scheme.lower() == "bearer"
