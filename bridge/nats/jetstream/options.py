"""Settings for reaching a NATS server and for fetching messages, and checks of the files that the settings name.

TLS fails closed: with TLS on, a missing or unreadable file and a server
without TLS are errors. There is no fallback to a plain connection.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bridge.nats.jetstream.errors import NatsRefused
from streams.system.retry import Retry

CA: Final = "ca.pem"
"""In the certificate directory: the certificate of the authority that signs server certificates. Required."""

CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"
"""In the same directory: the client's own certificate and its key, for servers that require them. Both files must be
there, or neither.
"""

DELIVERIES: Final = Retry(1.0, 60.0, attempts=5)
"""How a message is delivered again, unless the settings say otherwise."""

_SEED_MARK: Final = "BEGIN USER NKEY SEED"
_JWT_MARK: Final = "BEGIN NATS USER JWT"
_FILE: Final = "nats-file-refused"


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Settings of one connection. The text form of this object shows neither the token nor the password.

    ``cert_dir`` holds ``ca.pem``, and ``cert.pem`` with ``key.pem`` if the server asks for a client certificate;
    without a ``cert_dir``, the system's certificate authorities are trusted. If ``server_id`` is given, no other server
    receives the token. Times are in seconds.
    """

    servers: tuple[str, ...] = field(repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    cert_dir: Path | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    server_id: str | None = None
    name: str = "durable-stream"
    inbox_prefix: str = "_INBOX"
    connect_seconds: float = 5.0
    ping_seconds: float = 10.0
    request_seconds: float = 10.0

    @property
    def wants_tls(self) -> bool:
        """Whether plain connections are forbidden: a server's address begins with ``tls://``."""
        return any(urlsplit(server).scheme == "tls" for server in self.servers)

    @property
    def shown(self) -> str:
        """Host and port of each server, without user and password."""
        return ", ".join(place(server) for server in self.servers)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How a pull consumer requests messages, at most ``max_inflight`` at a time. Times are in seconds.

    A message that is not answered within ``ack_wait_s`` is delivered again; while a handler is running, the
    subscription extends that time.
    """

    max_inflight: int = 64
    fetch_timeout_s: float = 5.0
    heartbeat_s: float = 1.0
    ack_wait_s: float = 30.0
    retry: Retry = DELIVERIES


def place(server: str) -> str:
    """Host and port of a server's address, without user and password."""
    return urlsplit(server).netloc.rpartition("@")[2]


def tls_context(options: ConnectOptions) -> ssl.SSLContext | None:
    """The TLS context that verifies the server; ``None`` without TLS.

    Raises:
        NatsRefused: a certificate or key is missing, unreadable or invalid.
    """
    if not options.wants_tls:
        return None
    if options.cert_dir is None:
        return ssl.create_default_context()
    files = [options.cert_dir / CA]
    try:
        context = ssl.create_default_context(cafile=files[0])
        certificate, key = options.cert_dir / CERTIFICATE, options.cert_dir / KEY
        if certificate.exists() or key.exists():
            files = [certificate, key]
            # The empty password keeps OpenSSL from asking for a password on the terminal.
            context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        hint = "put PEM files there that you can read, the key without a passphrase, or change `cert_dir` in [nats]"
        raise _refused(f"cannot use {' and '.join(map(str, files))}", error, hint) from None
    return context


def check_credentials(path: Path) -> None:
    """Check a credentials file before connecting.

    Raises:
        NatsRefused: the file is missing, unreadable, or lacks a user's token and key.
    """
    try:
        text = path.read_text("ascii", "replace")
    except OSError as error:
        raise _refused(f"cannot read the credentials file {path}", error, "change `credentials` in [nats]") from None
    if _SEED_MARK not in text or _JWT_MARK not in text:
        raise NatsRefused(f"{path} is not a credentials file", "create one with `nsc generate creds`", _FILE)


def _refused(what: str, error: OSError, hint: str) -> NatsRefused:
    why = getattr(error, "reason", None) or error.strerror or type(error).__name__
    return NatsRefused(f"{what} ({why})", hint, _FILE)
