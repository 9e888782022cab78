"""Reads events that an older version wrote.

A table maps each ``schema_version`` to the function that converts to the next version.

The log is never rewritten. Hashes, migrations and ``verify`` work on the bytes as they were written; only
readers get the newest version. An event of a newer version has no entry, so it is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes the fields of an event and returns the fields of the event in the next version. Pure; may change the dictionary
it gets.

An upcaster is not called for an event whose payload was forgotten. An error that it raises makes the record unreadable.
"""

UPCASTERS: Final[dict[int, Upcaster]] = {}
"""The upcaster from each version to the next. The table is empty, because version 1 is the first and the newest
version."""

KEPT: Final = ("id", "ts", "type", "stream_id", "idempotency_key", "causation_id", "correlation_id", "actor")
"""Fields that no upcaster changes, because the stores find records by their written values."""


def upcast(fields: dict[str, Any], table: Mapping[int, Upcaster]) -> dict[str, Any]:
    """Return the fields of the newest version that ``table`` leads to; without an entry, ``fields`` itself.

    The function takes ownership of ``fields``. If the payload was forgotten, only the version number changes.
    """
    if fields["schema_version"] not in table:
        return fields
    # Import ``hashing`` here, because it imports the event, which imports this module.
    from streams.hashing import is_digest

    while (upcaster := table.get(fields["schema_version"])) is not None:
        kept: dict[str, Any] = {name: fields[name] for name in KEPT if name in fields}
        kept["schema_version"] = fields["schema_version"] + 1
        found = fields if is_digest(fields.get("payload")) else upcaster(fields)
        fields = {**found, **kept}
    return dict(sorted(fields.items()))
