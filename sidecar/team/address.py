"""How to connect to the team's Postgres. Pure.

The address is taken apart here and never given on as a text, because libpq quotes it in its errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from sidecar.notify_config import is_local_host

ELSEWHERE: Final = frozenset({"PGHOSTADDR", "PGSERVICE", "PGSERVICEFILE"})
"""Variables with which libpq connects to another machine than the address says."""

VERIFIED: Final[dict[str, Any]] = {
    "sslmode": "verify-full",
    "sslrootcert": "system",
    "gssencmode": "disable",
}
"""For every address that is not local, whatever it asks for: libpq's default goes on without TLS."""

WITH_PASSWORD: Final[dict[str, Any]] = {"channel_binding": "require", "require_auth": "scram-sha-256"}

ALWAYS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "tcp_user_timeout": 30_000,
    "application_name": "durable-stream",
    "target_session_attrs": "read-write",
}


def settings(address: str, password: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keywords for a connection to an address that ``TeamConfig`` accepted."""
    parts = urlsplit(address)
    found: dict[str, Any] = dict(parse_qsl(parts.query))
    if parts.hostname:
        found["host"] = unquote(parts.hostname)
    for name, value in (("port", parts.port), ("user", parts.username), ("dbname", parts.path.lstrip("/"))):
        if value:
            found[name] = unquote(str(value))
    if not is_local_host(found["host"]) or ELSEWHERE & environ.keys():
        own = {name: found[name] for name in ("sslrootcert",) if name in found}
        found |= VERIFIED | own | (WITH_PASSWORD if password else {})
    if password:
        found["password"] = password
    return found | ALWAYS


def place_of(address: str) -> str:
    """The address for a message: host and database, nothing else."""
    parts = urlsplit(address)
    host = parts.hostname or dict(parse_qsl(parts.query)).get("host", "")
    return f"{host}{parts.path}"
