"""The parts of a log's directory that the rest of the program may use: manifest, lock and size.

The parts are defined in ``streams/stores``, but nothing above ``streams/log`` may import from there.
"""

from __future__ import annotations

from streams.stores.directory import (
    LOCK,
    read_manifest,
    refuse_links,
)
from streams.stores.space import store_bytes
from streams.stores.sqlite.search_index import SearchIndex

__all__ = [
    "LOCK",
    "SearchIndex",
    "read_manifest",
    "refuse_links",
    "store_bytes",
]
