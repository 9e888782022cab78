"""The SQL functions with which the agents of a team write to the team's own log, as which home 0 is kept.

A role that may run them needs no right to the tables. They run with the rights of the tables' owner.
"""

from __future__ import annotations

from typing import Final

SCHEMA: Final = "durable_stream"

LOG_ID: Final = "team"
"""The id and the machine of home 0."""

_AS: Final = (
    f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = {SCHEMA}, pg_temp SET enable_seqscan = off"
    " SET plan_cache_mode = force_generic_plan AS $$"
)
"""The plans are the same for any batch, and making one takes longer than the work."""

# One row is locked by all: positions are then dense, and their order is that of the commits. With a sequence, a
# follower that goes by position alone would miss the records of transactions that committed late.
_APPEND: Final = f"""CREATE FUNCTION append(
    names text[], times bigint[], types text[], actors text[], correlations text[], causations text[], ids text[],
    keys bytea[], shapes bytea[], crcs bigint[], events bytea[], expected text[], expected_at bigint[],
    keeps_first boolean, claimed bytea, token text,
    OUT positions bigint[], OUT places bigint[], OUT hashes bytea[],
    OUT known int[], OUT known_at bigint[], OUT moved text, OUT moved_to bigint, OUT is_lost boolean
) {_AS}
DECLARE
    total CONSTANT int := cardinality(names);
    latest bigint;
    own text[] := '{{}}'; numbers bigint[]; ends bigint[]; tails bytea[];
    of_streams bigint[] := array_fill(NULL::bigint, ARRAY[total]);
    indexes bigint[] := of_streams;
    at int; number bigint; written int := 0;
BEGIN
    SELECT head INTO latest FROM homes WHERE home = 0 FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO homes (home, log_id, machine, story, owner) OVERRIDING SYSTEM VALUE
            VALUES (0, '{LOG_ID}', '{LOG_ID}', 'none', current_user) ON CONFLICT DO NOTHING;
        SELECT head INTO latest FROM homes WHERE home = 0 FOR UPDATE;
    END IF;
    IF token IS NOT NULL THEN
        -- Locked until the commit, so whoever takes the claim later sees what is written here.
        PERFORM FROM claims WHERE home = 0 AND effect = claimed AND runner = token FOR UPDATE;
        IF NOT FOUND THEN
            is_lost := true;
            RETURN;
        END IF;
    END IF;
    -- The records themselves are read later: sending much to a client that sleeps would hold the lock.
    SELECT array_agg(array_position(keys, key)), array_agg(position) INTO known, known_at
        FROM records WHERE home = 0 AND key = ANY (keys);
    IF cardinality(known) = total OR (known IS NOT NULL AND NOT keeps_first) THEN
        RETURN;
    END IF;
    SELECT array_agg(name), array_agg(id), array_agg(next_offset), array_agg(hash) INTO own, numbers, ends, tails
        FROM streams WHERE home = 0 AND name = ANY (names || expected);
    FOR i IN 1 .. cardinality(expected) LOOP
        moved_to := coalesce(ends[array_position(own, expected[i])], 0);
        IF moved_to <> expected_at[i] THEN
            moved := expected[i];
            RETURN;
        END IF;
    END LOOP;
    positions := of_streams;
    places := of_streams;
    hashes := array_fill(NULL::bytea, ARRAY[total]);
    FOR i IN 1 .. total LOOP
        CONTINUE WHEN i = ANY (known);
        at := array_position(own, names[i]);
        IF at IS NULL THEN
            INSERT INTO streams SELECT 0, coalesce(max(id), 0) + 1, names[i], 0, decode(repeat('00', 32), 'hex')
                FROM streams WHERE home = 0 RETURNING id INTO number;
            at := coalesce(cardinality(own), 0) + 1;
            own := own || names[i];
            numbers := numbers || number;
            ends := ends || 0::bigint;
            tails := tails || decode(repeat('00', 32), 'hex');
        END IF;
        latest := latest + 1;
        positions[i] := latest;
        of_streams[i] := numbers[at];
        places[i] := ends[at];
        hashes[i] := sha256(tails[at] || shapes[i]);
        indexes[i] := written;
        ends[at] := ends[at] + 1;
        tails[at] := hashes[i];
        written := written + 1;
    END LOOP;
    INSERT INTO records
        SELECT 0, p, s, o, t, ty, a, co, ca, d, k, h, c, x, written, e
        FROM unnest(positions, of_streams, places, times, types, actors, correlations, causations, ids, keys, hashes,
            crcs, indexes, events) AS new (p, s, o, t, ty, a, co, ca, d, k, h, c, x, e)
        WHERE p IS NOT NULL;
    UPDATE streams SET next_offset = tail.ended, hash = tail.last
        FROM unnest(numbers, ends, tails) AS tail (id, ended, last) WHERE home = 0 AND streams.id = tail.id;
    UPDATE homes SET head = latest, head_hash = hashes[array_position(positions, latest)], story_head = latest
        WHERE home = 0;
END $$"""  # noqa: S608 - constants

_HINT: Final = f"""CREATE FUNCTION keep_hint(kind_of text, called text, version_of bigint, at bigint, kept bytea)
RETURNS void {_AS}
BEGIN
    INSERT INTO hints VALUES (0, kind_of, called, version_of, at, kept) ON CONFLICT (home, kind, name)
        DO UPDATE SET version = excluded.version, position = excluded.position, state = excluded.state;
END $$"""  # noqa: S608 - constants

# The clock is the server's, and not that of a transaction's beginning. After the server itself was away, nobody could
# renew a claim, so for one term nobody takes another one's.
_CLAIM: Final = f"""CREATE FUNCTION claim(wanted bytea[], tokens text[], seconds float8) RETURNS SETOF text {_AS}
BEGIN
    RETURN QUERY INSERT INTO claims
        SELECT 0, each.effect, each.token, clock_timestamp() + make_interval(secs => seconds)
            FROM unnest(wanted, tokens) AS each (effect, token) ORDER BY each.effect
        ON CONFLICT (home, effect) DO UPDATE SET runner = excluded.runner, until = excluded.until
            WHERE claims.until < clock_timestamp()
            AND pg_postmaster_start_time() + make_interval(secs => seconds) < clock_timestamp()
        RETURNING runner;
END $$"""  # noqa: S608 - constants

_RENEW: Final = f"""CREATE FUNCTION renew(held bytea[], tokens text[], seconds float8) RETURNS SETOF text {_AS}
BEGIN
    RETURN QUERY UPDATE claims SET until = clock_timestamp() + make_interval(secs => seconds)
        FROM unnest(held, tokens) AS each (effect, token)
        WHERE home = 0 AND claims.effect = each.effect AND runner = each.token RETURNING runner;
END $$"""  # noqa: S608 - constants

_RELEASE: Final = f"""CREATE FUNCTION release(held bytea, token text) RETURNS void {_AS}
BEGIN
    DELETE FROM claims WHERE home = 0 AND effect = held AND runner = token;
END $$"""  # noqa: S608 - constants

TABLES: Final = """
    CREATE UNIQUE INDEX records_key ON records (key, home) WHERE home = 0;
    CREATE TABLE hints (
        home INT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, version BIGINT NOT NULL, position BIGINT NOT NULL,
        state BYTEA NOT NULL, PRIMARY KEY (home, kind, name)
    );
    CREATE TABLE claims (
        home INT NOT NULL, effect BYTEA NOT NULL, runner TEXT NOT NULL, until TIMESTAMPTZ NOT NULL,
        PRIMARY KEY (home, effect)
    );
    """
"""Cursors and snapshots of the team's log, and who carries out an effect of it, until when.

The index of keys begins with the key: a condition that the index itself has is no part of a lookup, so one that begins
with ``home`` would be read from end to end.
"""

FUNCTIONS: Final = (
    *(_APPEND, _HINT, _CLAIM, _RENEW, _RELEASE),
    # Everybody may run a new function.
    *(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC" for name in ("append", "keep_hint", "claim", "renew", "release")),
)
