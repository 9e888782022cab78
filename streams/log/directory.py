"""The parts of a log's directory that the rest of the program may use: manifest, lock, hints and size.

The parts are defined in ``streams/stores``, but nothing above ``streams/log`` may import from there.
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
from streams.stores.sqlite.kept import KeptRows, ReadRows

__all__ = [
    "FORMATS",
    "LOCK",
    "Backend",
    "Hints",
    "KeptRows",
    "ReadRows",
    "read_manifest",
    "refuse_links",
    "refuse_writer",
    "store_bytes",
    "take_lock",
]
