"""Translates the configuration into settings of the NATS server and the NATS client. Pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.stream_plan import UNLIMITED
from sidecar.config import MIB, NatsConfig

SERVER_NAME: Final = "durable-stream"
MAX_PAYLOAD: Final = 8 * MIB
"""Maximum size of a message on an embedded server: the largest that NATS recommends."""

LOG_BYTES: Final = MIB
LOG_FILES: Final = 2
FREE_PORT: Final = -1


def server_config(directory: Path, config: NatsConfig, *, token: str, port: int) -> str:
    """The embedded server's configuration file, as JSON, which is valid in the server's own format.

    If ``port`` is ``FREE_PORT``, the server chooses a port and writes it to ``directory/ports``. The server listens
    only on the loopback address and never logs message contents.
    """
    wanted: dict[str, Any] = {
        "server_name": SERVER_NAME,
        "host": "127.0.0.1",
        "port": port,
        "ports_file_dir": str(directory / "ports"),
        "authorization": {"token": token, "timeout": 5},
        "max_payload": MAX_PAYLOAD,
        "max_connections": 256,
        "jetstream": {
            "store_dir": str(directory / "store"),
            # By default the server syncs every two minutes, so a power failure would lose confirmed messages.
            "sync_interval": "always",
            "max_file_store": config.max_store_bytes,
            "max_memory_store": 64 * MIB,
        },
        "log_file": str(directory / "server.log"),
        "logfile_size_limit": LOG_BYTES,
        "logfile_max_num": LOG_FILES,
        "debug": False,
        "trace": False,
    }
    return json.dumps(wanted, indent=1, ensure_ascii=False) + "\n"


def mirror_bytes(config: NatsConfig) -> int:
    """Maximum size of the mirror's stream, in bytes; -1: no limit. An embedded server reserves a quarter of its space
    for other streams, because a full server would stop the mirror.
    """
    if config.max_mirror_bytes:
        return config.max_mirror_bytes
    return config.max_store_bytes // 4 * 3 if config.mode == "embedded" else UNLIMITED


def external_options(config: NatsConfig) -> ConnectOptions:
    return ConnectOptions(
        servers=config.servers,
        credentials=config.credentials,
        cert_dir=config.cert_dir,
        tls_hostname=config.tls_hostname,
        tls_handshake_first=config.tls_handshake_first,
        inbox_prefix=config.inbox_prefix,
    )


def embedded_options(*, port: int, token: str, server_id: str | None) -> ConnectOptions:
    """Connection settings for the embedded server; ``server_id`` is ``None`` until the server has reported it."""
    return ConnectOptions(servers=(f"nats://127.0.0.1:{port}",), token=token, server_id=server_id)
