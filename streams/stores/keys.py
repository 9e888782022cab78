"""The digest that an index holds in place of an idempotency key. Pure."""

from __future__ import annotations

from hashlib import blake2b


def key_digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
