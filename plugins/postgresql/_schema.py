"""The schema of a namespace: its tables, and the functions that make each write one round trip.

All writers lock the one row of `store` first, so transactions have one order, and a snapshot that has the row's
revision has every commit up to it. A session is over when its row is deleted under that lock, never by the clock
alone: a renewal and a reader that come at the same moment then agree.
"""

from __future__ import annotations

SCHEMA_VERSION = 1
"""Raised when an older release could not work with the schema."""

KEPT_TOMBSTONES = 100_000
_PRUNE_EVERY = 256

_TABLES = """
CREATE TABLE {ns}.store (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), schema_version integer NOT NULL,
    store_id text NOT NULL, revision bigint NOT NULL DEFAULT 0, floor bigint NOT NULL DEFAULT 0,
    last_session bigint NOT NULL DEFAULT 0);
INSERT INTO {ns}.store (schema_version, store_id)
    VALUES ({version}, replace(gen_random_uuid()::text, '-', ''));
CREATE TABLE {ns}.entries (
    key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL, revision bigint NOT NULL,
    session_id bigint);
CREATE INDEX entries_by_revision ON {ns}.entries (revision);
CREATE INDEX entries_by_session ON {ns}.entries (session_id) WHERE session_id IS NOT NULL;
CREATE TABLE {ns}.tombstones (key text COLLATE "C" PRIMARY KEY, revision bigint NOT NULL);
CREATE INDEX tombstones_by_revision ON {ns}.tombstones (revision);
CREATE TABLE {ns}.sessions (id bigint PRIMARY KEY, timeout_ms integer NOT NULL, deadline timestamptz NOT NULL);
"""

_FUNCTIONS = """
-- Called first by all that writes: the lock, and the end of sessions, those of `leaving` among them.
CREATE FUNCTION {ns}.begin_writing(leaving bigint[]) RETURNS {ns}.store
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
DECLARE s store; ended bigint[];
BEGIN
    PERFORM set_config('lock_timeout', '5s', true);
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    SELECT * INTO STRICT s FROM store FOR UPDATE;
    WITH gone AS (
        DELETE FROM sessions WHERE id = ANY (leaving) OR deadline <= clock_timestamp() RETURNING id)
    SELECT array_agg(id) INTO ended FROM gone;
    IF ended IS NOT NULL THEN
        s.revision := s.revision + 1;
        WITH gone AS (DELETE FROM entries WHERE session_id = ANY (ended) RETURNING key)
        INSERT INTO tombstones SELECT key, s.revision FROM gone
            ON CONFLICT (key) DO UPDATE SET revision = excluded.revision;
        PERFORM publish(s);
    END IF;
    RETURN s;
END $$;

CREATE FUNCTION {ns}.publish(s {ns}.store) RETURNS void
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
BEGIN
    IF s.revision % {prune_every} = 0 THEN
        s.floor := greatest(s.floor, coalesce(
            (SELECT revision FROM tombstones ORDER BY revision DESC OFFSET {kept} LIMIT 1), 0));
        DELETE FROM tombstones WHERE revision <= s.floor;
    END IF;
    UPDATE store SET revision = s.revision, floor = s.floor;
    PERFORM pg_notify('{channel}', '');
END $$;

-- outcome: committed (keys and versions of the puts), conflict (the one key) or expired.
CREATE FUNCTION {ns}.transact(
    session bigint, kinds text[], compared text[], compared_versions bigint[], compared_values bytea[],
    changed text[], new_values bytea[], ephemeral boolean[],
    OUT outcome text, OUT at_revision bigint, OUT keys text[], OUT versions bigint[])
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
DECLARE s store; failed text; deletes bigint;
BEGIN
    s := begin_writing('{}');
    at_revision := s.revision;
    IF session IS NOT NULL AND NOT EXISTS (SELECT FROM sessions WHERE id = session) THEN
        outcome := 'expired';
        RETURN;
    END IF;
    SELECT c.key INTO failed
        FROM unnest(kinds, compared, compared_versions, compared_values)
            WITH ORDINALITY c (kind, key, version, value, place)
        LEFT JOIN entries e ON e.key = c.key
        WHERE NOT CASE c.kind
            WHEN 'missing' THEN e.key IS NULL
            WHEN 'exists' THEN e.key IS NOT NULL
            WHEN 'version' THEN e.version IS NOT DISTINCT FROM c.version
            ELSE e.value IS NOT DISTINCT FROM c.value END
        ORDER BY c.place LIMIT 1;
    IF FOUND THEN
        outcome := 'conflict';
        keys := ARRAY[failed];
        RETURN;
    END IF;
    outcome := 'committed';
    WITH put AS (
        INSERT INTO entries
            SELECT o.key, o.value, 1, s.revision + 1, CASE WHEN o.ephemeral THEN session END
            FROM unnest(changed, new_values, ephemeral) o (key, value, ephemeral) WHERE o.value IS NOT NULL
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = entries.version + 1,
            revision = excluded.revision, session_id = excluded.session_id
        RETURNING entries.key, entries.version)
    SELECT array_agg(put.key), array_agg(put.version) INTO keys, versions FROM put;
    WITH gone AS (
        DELETE FROM entries e USING unnest(changed, new_values) o (key, value)
        WHERE e.key = o.key AND o.value IS NULL RETURNING e.key)
    INSERT INTO tombstones SELECT gone.key, s.revision + 1 FROM gone
        ON CONFLICT (key) DO UPDATE SET revision = excluded.revision;
    GET DIAGNOSTICS deletes = ROW_COUNT;
    IF keys IS NOT NULL OR deletes > 0 THEN
        s.revision := s.revision + 1;
        at_revision := s.revision;
        PERFORM publish(s);
    END IF;
END $$;

CREATE FUNCTION {ns}.open_session(timeout_ms integer) RETURNS bigint
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
DECLARE s store;
BEGIN
    s := begin_writing('{}');
    UPDATE store SET last_session = last_session + 1;
    INSERT INTO sessions
        VALUES (s.last_session + 1, timeout_ms, clock_timestamp() + timeout_ms * interval '1 ms');
    PERFORM pg_notify('{channel}', '');
    RETURN s.last_session + 1;
END $$;

-- Returns the sessions that live. A crash may forget the last moments of this: sessions then end that much sooner.
CREATE FUNCTION {ns}.renew(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
DECLARE live bigint[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '5s', true);
    WITH renewed AS (
        UPDATE sessions SET deadline = clock_timestamp() + timeout_ms * interval '1 ms'
        WHERE id = ANY (ids) AND deadline > clock_timestamp() RETURNING id)
    SELECT coalesce(array_agg(id), '{}') INTO live FROM renewed;
    RETURN live;
END $$;

CREATE FUNCTION {ns}.raise_revision(above bigint, new_id text) RETURNS bigint
LANGUAGE plpgsql SET search_path = {ns}, pg_temp AS $$
DECLARE s store;
BEGIN
    s := begin_writing('{}');
    s.revision := greatest(s.revision, above) + 1;
    s.floor := s.revision;
    DELETE FROM tombstones;
    UPDATE store SET last_session = greatest(last_session, s.revision), store_id = coalesce(new_id, store_id);
    PERFORM publish(s);
    RETURN s.revision;
END $$;
"""


def filled(sql: str, namespace: str) -> str:
    """The SQL with the names of a namespace in place of `{ns}` and the like."""
    for name, value in (
        ("ns", f'"{namespace}"'),
        ("channel", channel(namespace)),
        ("version", str(SCHEMA_VERSION)),
        ("kept", str(KEPT_TOMBSTONES)),
        ("prune_every", str(_PRUNE_EVERY)),
    ):
        sql = sql.replace(f"{{{name}}}", value)
    return sql


def channel(namespace: str) -> str:
    """The channel for notifications of a namespace."""
    return f"insync_{namespace}"


def ddl(namespace: str, *, make_schema: bool = True, role: str | None = None) -> str:
    """All statements that make a namespace; `role`: who else may use it."""
    statements = (f'CREATE SCHEMA "{namespace}";' if make_schema else "") + filled(
        _TABLES + _FUNCTIONS, namespace
    )
    if role is not None:
        quoted = '"' + role.replace('"', '""') + '"'
        statements += (
            f'\nGRANT USAGE ON SCHEMA "{namespace}" TO {quoted};\n'
            f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{namespace}" TO {quoted};\n'
        )
    return statements
