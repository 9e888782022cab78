"""What the rest of the program may use of a log's directory: its manifest, lock and hints, and its size.

The stores have their own modules for these; nothing above ``streams/log`` imports from ``streams/stores``.
"""

from __future__ import annotations

from streams.stores.directory import (
    FORMATS,
    LOCK,
    Backend,
    read_manifest,
    refuse_links,
    refuse_writer,
    take_lock,
)
from streams.stores.hints import Hints
from streams.stores.space import store_bytes

__all__ = [
    "FORMATS",
    "LOCK",
    "Backend",
    "Hints",
    "read_manifest",
    "refuse_links",
    "refuse_writer",
    "store_bytes",
    "take_lock",
]
