"""The tables of the team's Postgres: those of a home's database, each with the home's number before its key.

One schema, ``durable_stream``, has them. The first home whose role may create it does. Or an owner makes them:

    python -m sidecar.team.schema | psql -1 postgresql://owner@db.example.org/team
"""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any, Final

import psycopg

from sidecar.read.story import tables
from sidecar.read.story.copying import COPIED, key_of
from sidecar.team import functions
from sidecar.team.errors import TeamRefused
from sidecar.team.functions import SCHEMA

HOME: Final = f"{SCHEMA}_home"
"""The schema with one home's tables as views, in the form of its database. The setting ``ONE`` says which home."""

ONE: Final = f"{SCHEMA}.home"

VERSION: Final = f"2.{tables.STORY_VERSION}"
"""Of the tables. A home of another version copies nothing."""

LOG: Final = """
    CREATE TABLE about (version TEXT NOT NULL);
    CREATE TABLE homes (
        home INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, log_id TEXT NOT NULL UNIQUE, machine TEXT NOT NULL,
        head BIGINT NOT NULL DEFAULT -1, head_hash BYTEA NOT NULL DEFAULT '', removals BIGINT NOT NULL DEFAULT 0,
        story TEXT NOT NULL DEFAULT '', changes BIGINT NOT NULL DEFAULT 0, story_head BIGINT NOT NULL DEFAULT -1,
        owner NAME NOT NULL DEFAULT session_user
    );
    CREATE TABLE streams (
        home INT NOT NULL, id BIGINT NOT NULL, name TEXT NOT NULL, next_offset BIGINT NOT NULL, hash BYTEA NOT NULL,
        PRIMARY KEY (home, id), UNIQUE (home, name)
    );
    CREATE TABLE records (
        home INT NOT NULL, position BIGINT NOT NULL, stream BIGINT NOT NULL, place BIGINT NOT NULL, ts BIGINT NOT NULL,
        type TEXT NOT NULL, actor TEXT NOT NULL, correlation_id TEXT, causation_id TEXT, event_id TEXT NOT NULL,
        key BYTEA NOT NULL, hash BYTEA NOT NULL, crc BIGINT NOT NULL, batch_index BIGINT NOT NULL,
        batch_count BIGINT NOT NULL, event BYTEA NOT NULL, PRIMARY KEY (home, position)
    );
    CREATE UNIQUE INDEX ON records (home, stream, place);
    CREATE INDEX ON records (home, event_id);
    CREATE TABLE bases (
        home INT NOT NULL, stream TEXT NOT NULL, place BIGINT NOT NULL, hash BYTEA NOT NULL, at_ms BIGINT NOT NULL,
        PRIMARY KEY (home, stream)
    );
    CREATE TABLE marks (
        home INT NOT NULL, stream TEXT NOT NULL, place BIGINT NOT NULL, at_ms BIGINT NOT NULL,
        PRIMARY KEY (home, stream)
    );
    CREATE TABLE singles (
        home INT NOT NULL, position BIGINT NOT NULL, stream TEXT NOT NULL, place BIGINT NOT NULL,
        at_ms BIGINT NOT NULL, PRIMARY KEY (home, position)
    );
    CREATE TABLE copied (home INT NOT NULL, name TEXT NOT NULL, upto BIGINT NOT NULL, PRIMARY KEY (home, name));
    """

RECORDS: Final = ("int4", *["int8"] * 4, *["text"] * 5, "bytea", "bytea", *["int8"] * 3, "bytea")
"""The types of the columns of ``records``, for a binary ``COPY``."""

INDEXES: Final = (
    *("moment(home, place, n)", "moment(home, session, n)", "moment(home, news) WHERE next IS NULL"),
    *("place(home, stream)", "place(home, key)", "session(home, name, born)", "session(home, key, born)"),
    *("session(home, place, key)", "session(home, place) WHERE died IS NULL", "session(home, parent)"),
    *("turn(home, session, born)", "turn(home, key)", "item(home, turn, key)", "undone(home, session, message)"),
    *("span(home, session, at)", "span(home, session) WHERE till IS NULL AND died IS NULL", "span(home, key)"),
    *("step(home, session, n)", "step(home, turn, n)"),
    *("edit(home, session, turn, n)", "allowed(home, ask)", "branch(home, session)", "branch(home, above)"),
    *("spawn(home, turn)", "mark(home, session, kind, n)"),
)

_VIEWS: Final = {
    "records": 'position, stream, place AS "offset", ts, type, actor, correlation_id, causation_id, event_id, key,'
    " hash, crc, batch_index, batch_count, event",
    "streams": "id, name, next_offset, hash",
    "bases": 'stream, place AS "offset", hash, at_ms',
    "marks": 'stream, place AS "offset", at_ms',
    "singles": 'position, stream, place AS "offset", at_ms',
}
_OF_HOMES: Final = {
    "head": "head AS position, head_hash AS hash FROM homes WHERE true",
    "derived": f"{tables.STORY_VERSION} AS version, least(story_head, head) AS position FROM homes WHERE story <> ''",
    "removals": "removals AS version FROM homes WHERE true",
    "removed_ranges": 'head AS first, head AS "end" FROM homes WHERE false',
    "pending": "1 AS what FROM homes WHERE false",
}

_FUNCTIONS: Final = (
    """CREATE FUNCTION ints_of(list text) RETURNS TABLE (value bigint) LANGUAGE sql IMMUTABLE AS $$
        SELECT jsonb_array_elements_text(list::jsonb)::bigint $$""",
    """CREATE FUNCTION texts_of(list text) RETURNS TABLE (value text) LANGUAGE sql IMMUTABLE AS $$
        SELECT jsonb_array_elements_text(list::jsonb) $$""",
)
"""Take the place of SQLite's ``json_each``, by the type of the values."""

_WRITTEN_OUT: Final = "ßẞŉǰẖẗẘẙẚİﬀﬁﬂﬃﬄﬅﬆſ\u212a"
"""All letters outside of ASCII whose folded form has some of ASCII."""

_FOLDED: Final = reduce(
    lambda sql, letter: f"replace({sql}, chr({ord(letter)}), '{''.join(filter(str.isascii, letter.casefold()))}')",
    _WRITTEN_OUT,
    """lower(convert_from(event, 'UTF8') COLLATE "C")""",
)
_SEARCH: Final = (
    f"""CREATE FUNCTION folded(event bytea) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE COST 1000
        AS $$ SELECT {_FOLDED} $$""",
    """DO $$ DECLARE place text; BEGIN
        SELECT extnamespace::regnamespace INTO place FROM pg_extension WHERE extname = 'pg_trgm';
        IF FOUND THEN
            EXECUTE format('CREATE INDEX records_text ON records USING gin (folded(event) %s.gin_trgm_ops)', place);
        END IF;
    END $$""",
)
"""How a text is looked for: quickly, if the database has the extension ``pg_trgm``, or else in each record."""

_TYPES: Final = {"INTEGER": ("BIGINT", "int8"), "TEXT": ("TEXT", "text"), "REAL": ("DOUBLE PRECISION", "float8")}


def story_types(name: str) -> list[str]:
    """The types of the columns of a table of the story, the home's number first, for a binary ``COPY``."""
    return ["int4", *(_TYPES[column.split()[1]][1] for column in tables.columns(name))]


def _story_table(name: str) -> str:
    columns = []
    for column in tables.columns(name):
        own, kind, *rest = column.split()
        never = " NOT NULL" if rest else ""
        columns.append(f'"{own}" {_TYPES[kind][0]}{never}')
    return f"CREATE TABLE {name} (home INT NOT NULL, {', '.join(columns)}, PRIMARY KEY (home, {key_of(name)}))"


def _view(name: str, selected: str) -> str:
    return f"CREATE VIEW {HOME}.{name} AS SELECT {selected} AND home = current_setting('{ONE}')::int"


def statements() -> list[str]:
    """All that creates the tables, in order; the first schema is on the path already."""
    texts = [text for text in (LOG + functions.TABLES).split(";") if text.strip()]
    texts += [*map(_story_table, COPIED), *(f"CREATE INDEX ON {index}" for index in INDEXES), *_FUNCTIONS, *_SEARCH]
    texts += functions.FUNCTIONS
    own = {name: ", ".join(f'"{column.split()[0]}"' for column in tables.columns(name)) for name in COPIED}
    texts += [f"CREATE SCHEMA {HOME}"]
    texts += [_view(name, f"{columns} FROM {SCHEMA}.{name} WHERE true") for name, columns in (_VIEWS | own).items()]
    texts += [_view(name, selected) for name, selected in _OF_HOMES.items()]
    # The order of SQLite's texts, which is that of their bytes.
    return [text.replace(" TEXT", ' TEXT COLLATE "C"') for text in texts]


def prepare(connection: psycopg.Connection[Any]) -> None:
    """Create the tables if there are none.

    Raises:
        TeamRefused: they are of another version, or this role may not create them.
    """
    with connection.transaction():
        # Two homes may come first at the same time.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('durable_stream'))")
        found = connection.execute("SELECT to_regclass('durable_stream.about')").fetchone()
        if found is None or found[0] is None:
            try:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}".encode())
                for text in statements():
                    connection.execute(text.encode())
                connection.execute("INSERT INTO about VALUES (%s)", [VERSION])
            except psycopg.errors.InsufficientPrivilege:
                raise TeamRefused(
                    "the database has no tables of Durable Stream, and this role may not create them",
                    "let a role that may connect first, as the page on teams says",
                ) from None
        version = connection.execute("SELECT version FROM about").fetchone()
    if version is None or version[0] != VERSION:
        raise TeamRefused(
            f"the team's tables are of version {version and version[0]}, and this one copies version {VERSION}",
            "use the same version of Durable Stream on all machines",
        )


if __name__ == "__main__":
    filled = f"INSERT INTO about VALUES ('{VERSION}')"  # noqa: S608 - a constant
    texts = (f"CREATE SCHEMA {SCHEMA}", f"SET search_path = {SCHEMA}", *statements(), filled)
    sys.stdout.writelines(f"{text.strip()};\n" for text in texts)
