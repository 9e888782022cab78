"""The digest that an index holds in place of an idempotency key. Pure."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=1024)  # an append asks for it first to look the key up, and then to store it
def key_digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
