"""Shared by the NATS commands: connecting to the server, and describing the state of server and mirror."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from sidecar.cli.shared.identity import own_identity
from sidecar.failure import Failure
from sidecar.read.wording import counted

if TYPE_CHECKING:
    from bridge.nats.jetstream.sessions import Sessions
    from sidecar.config import NatsConfig
    from sidecar.home import Home

OFF: Final[Mapping[str, Any]] = {
    "mode": "off",
    "connected": False,
    "servers": None,
    "version": None,
    "problem": "",
    "server": None,
    "mirror": None,
    "deltas": None,
    "machines": None,
}
"""What ``status`` says about NATS when it is off."""

TURN_ON = 'set `mode` to "embedded" or "external" in [nats] in config.toml'


@asynccontextmanager
async def connection(home: Home) -> AsyncIterator[Sessions]:
    """A connection to the home's server, which opens when it is used.

    Raises:
        Failure: NATS is off, or the embedded server is not running.
    """
    from sidecar.config import load_config
    from sidecar.mirror.reaching import sessions_of

    config = load_config(home.config_path).nats
    if config.mode == "off":
        raise Failure("nats-off", f"NATS is off in {home.path}, so nothing is mirrored; {TURN_ON}")
    if config.mode == "embedded" and home.running() is None:
        raise Failure(
            "nats-not-running",
            f"the embedded NATS server of {home.path} runs with the sidecar, which is not running; start a "
            "sidecar with `durable-stream serve`",
        )
    sessions = sessions_of(home, config, own_identity().nonce)
    try:
        yield sessions
    finally:
        await sessions.close()


# --- the state of NATS in words, the same in `status` and `mirror status` ---


def at_rest(config: NatsConfig) -> dict[str, Any]:
    """The ``nats`` field of ``status`` while no sidecar is running. Only the server knows how far the mirror is."""
    from sidecar.mirror.settings import external_options

    servers = external_options(config).shown if config.mode == "external" else None
    return dict(OFF) | {"mode": config.mode, "servers": servers}


def nats_words(found: Mapping[str, Any], *, runs: bool = True) -> str:
    """The server in words, from the field ``nats`` of ``status``. ``runs``: whether a sidecar is running."""
    if found["mode"] == "off":
        return f"off; {TURN_ON}"
    version = f", {found['version']}" if found["version"] else ""
    if found["mode"] == "external":
        connected = f", {'' if found['connected'] else 'not '}connected{version}" if runs else ""
        return f"{found['servers']}{connected}"
    if not runs:
        return "embedded server, which starts with the sidecar"
    server = found["server"]
    if server is None:
        return "embedded server cannot run"
    if server["port"] is None:
        return f"embedded server {server['state']}"
    again = f", {counted(server['restarts'], 'restart')}" if server["restarts"] else ""
    return f"embedded server {server['version']} {server['state']}, port {server['port']}, pid {server['pid']}{again}"


def machines_words(found: Mapping[str, Any]) -> str:
    """This machine among others in words, from ``nats.machines`` of ``status``."""
    waits = [
        f"{counted(count, 'request')} {'waits' if count == 1 else 'wait'} for {machine}"
        for machine, count in Counter(each["machine"] for each in found["waiting"]).items()
    ]
    unasked = found["counts"].get("unasked", 0)
    refused = [f"{counted(unasked, 'answer')} refused that nobody here asked for"] if unasked else []
    return "; ".join([f"{found['name']} here", *waits, *refused])


def mirror_words(found: Mapping[str, Any]) -> str:
    state = found["state"]
    if not found["lag"]:
        doing = {"idle": "", "publishing": ""}.get(state, f", {state}")
        return f"the whole log, up to position {found['head']}{doing}" if found["head"] >= 0 else "nothing mirrored yet"
    return f"{counted(found['lag'], 'record')} behind the log, {state}"
