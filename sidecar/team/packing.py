"""Arrays in Postgres' binary form. psycopg finds out the type of each element, which takes longer than the append."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any, Final

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

_OIDS: Final = {"text": (25, 1009), "int8": (20, 1016), "bytea": (17, 1001)}
"""The numbers of a type and of its array type, which are the same in every Postgres."""

_NULL: Final = b"\xff\xff\xff\xff"


class _Array:
    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Texts(_Array):
    """A ``text[]``. Postgres takes no NUL."""

    def __init__(self, values: Sequence[str | None]) -> None:
        given = [value if value is None else value.replace("\0", "\ufffd").encode() for value in values]
        super().__init__(_packed("text", given))


class Numbers(_Array):
    """An ``int8[]``."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__(_packed("int8", [pack("!q", value) for value in values]))


class Bytes(_Array):
    """A ``bytea[]``."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__(_packed("bytea", values))


def _packed(kind: str, values: Sequence[bytes | None]) -> bytes:
    element = _OIDS[kind][0]
    if not values:
        return pack("!iiI", 0, 0, element)
    parts = [pack("!iiIii", 1, None in values, element, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (len(value).to_bytes(4), value)
    return b"".join(parts)


def _dumper(kind: str) -> type[Dumper]:
    class Packed(Dumper):
        format = Format.BINARY
        oid = _OIDS[kind][1]

        def dump(self, obj: Any) -> bytes:
            packed: bytes = obj.data
            return packed

    return Packed


_DUMPERS: Final = ((Texts, _dumper("text")), (Numbers, _dumper("int8")), (Bytes, _dumper("bytea")))


def register(connection: Connection[Any]) -> None:
    """Let a connection take the arrays of this file as values."""
    for kind, dumper in _DUMPERS:
        connection.adapters.register_dumper(kind, dumper)
