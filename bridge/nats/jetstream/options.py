"""How to reach a NATS server and how to fetch from it: data, and the checks of the files it names.

TLS fails closed: where it is wanted, a missing or unreadable file is a
refusal, and so is a server that does not offer TLS. There is no plain
connection to fall back to.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bridge.nats.jetstream.errors import NatsRefused

CA: Final = "ca.pem"
"""In the directory of certificates: whom we believe. Needed."""

CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"
"""In the same directory, both or neither: how we prove ourselves to a server that asks for it."""

_SEED_MARK: Final = "BEGIN USER NKEY SEED"
_JWT_MARK: Final = "BEGIN NATS USER JWT"


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """One connection. Texts of it show no token and no password.

    ``tls`` demands TLS from every server. ``cert_dir`` holds ``ca.pem``, and
    ``cert.pem`` with ``key.pem`` where the server wants to know us; without it
    the system's certificates are believed. ``server_id``, when given, is the only
    server that gets to see the token. Times are in seconds.
    """

    servers: tuple[str, ...] = field(repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: Path | None = None
    tls: bool = False
    cert_dir: Path | None = None
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    server_id: str | None = None
    name: str = "durable-stream"
    inbox_prefix: str = "_INBOX"
    connect_seconds: float = 5.0
    ping_seconds: float = 10.0
    request_seconds: float = 5.0

    @property
    def wants_tls(self) -> bool:
        """Whether a plain connection must never be used: TLS is on, or a server is named by ``tls://``."""
        return self.tls or any(urlsplit(server).scheme == "tls" for server in self.servers)

    @property
    def shown(self) -> str:
        """The servers without what may be secret in them."""
        return ", ".join(place(server) for server in self.servers)


@dataclass(frozen=True, slots=True)
class PullSettings:
    """How messages are asked for. Times in seconds.

    ``attempts``: deliveries after which a message is held for poison. ``backoff_s`` is the
    pause before the second one, doubled each time up to ``longest_backoff_s``.
    """

    batch_size: int = 64
    max_inflight: int = 64
    fetch_timeout_s: float = 5.0
    warmup_timeout_s: float = 10.0
    heartbeat_s: float = 1.0
    attempts: int = 5
    backoff_s: float = 1.0
    longest_backoff_s: float = 60.0


def place(server: str) -> str:
    """Host and port of a server's address, without user and password."""
    return urlsplit(server).netloc.rpartition("@")[2]


def tls_context(options: ConnectOptions) -> ssl.SSLContext | None:
    """What to check servers with; None when a plain connection is what is wanted.

    Raises:
        NatsRefused: a certificate or key is missing, cannot be read, or is none.
    """
    if not options.wants_tls:
        return None
    if options.cert_dir is None:
        return ssl.create_default_context()
    authority = options.cert_dir / CA
    _read(authority, "certificate of the authority")
    try:
        context = ssl.create_default_context(cafile=authority)
    except (ssl.SSLError, OSError) as error:
        raise NatsRefused(f"{authority} holds no certificate ({_reason(error)})", "put a PEM file there") from None
    certificate, key = options.cert_dir / CERTIFICATE, options.cert_dir / KEY
    if certificate.exists() or key.exists():
        _read(certificate, "certificate")
        _read(key, "certificate's key")
        try:
            # The empty password keeps OpenSSL from asking on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, OSError) as error:
            reason = f"{certificate} and {key} cannot be used ({_reason(error)})"
            raise NatsRefused(reason, "put a PEM certificate and its key there, without a pass phrase") from None
    return context


def check_credentials(path: Path) -> None:
    """Refuse a credentials file that cannot work, before anything is connected.

    Raises:
        NatsRefused: it is missing, cannot be read, or holds no user's token and key.
    """
    text = _read(path, "credentials file").decode("ascii", "replace")
    if _SEED_MARK not in text or _JWT_MARK not in text:
        raise NatsRefused(f"{path} is no credentials file", "make one with `nsc generate creds`")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NatsRefused(f"the {what} {path} is missing", "put it there, or correct the path in [nats]") from None
    except OSError as error:
        raise NatsRefused(
            f"the {what} {path} cannot be read ({error.strerror})", "correct its owner and mode"
        ) from None


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__
