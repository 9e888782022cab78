"""The internals that we use of nats-py (``bridge/nats/jetstream/client.py``) and websockets
(``sidecar/link/server.py``).

If a release moves any of them, a test here fails and names it.
"""

from __future__ import annotations

import ast
import inspect
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from packaging.requirements import Requirement
from websockets.server import ServerProtocol

from bridge.nats.jetstream import client as ours

OVERRIDDEN = ("_connect_command", "_process_msg", "_process_op_err", "_process_pong")
USED_OF_CLIENT = {
    "_flush_pending",
    "_pending",
    "_flush_queue",
    "_pending_data_size",
    "_pings_outstanding",
    "_pongs",
    "_pongs_received",
    "_send_command",
    "_server_info",
    "_subs",
    "_transport",
}
USED_OF_OTHERS = {"_cb": Subscription, "_stop_processing": Subscription, "_io_writer": TcpTransport}
OWN = {"_direct", "_ended", "_wanted"}


def names_of(kind: type) -> set[str]:
    """The methods of a class, and the attributes that its methods set."""
    tree = ast.parse(inspect.getsource(kind).lstrip())
    set_here = {
        each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    return set(dir(kind)) | set_here


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_what_is_overridden_is_there_with_the_same_parameters(name: str) -> None:
    theirs, mine = getattr(Client, name), getattr(ours.GuardedClient, name)
    assert mine is not theirs
    assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
    assert inspect.iscoroutinefunction(mine) == inspect.iscoroutinefunction(theirs)


def test_what_is_used_is_there() -> None:
    assert USED_OF_CLIENT - names_of(Client) == set()
    for name, kind in USED_OF_OTHERS.items():
        assert name in names_of(kind), f"{kind.__name__}.{name}"


def test_no_other_private_member_is_used() -> None:
    tree = ast.parse(Path(ours.__file__).read_text())
    used = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    used |= {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    private = {name for name in used if name.startswith("_") and name[1:2] != "_" and name.isidentifier()}
    assert private - OWN == {*OVERRIDDEN, *USED_OF_CLIENT, *USED_OF_OTHERS}


def test_websockets_keeps_the_limit_that_we_raise_for_a_proved_peer() -> None:
    protocol = ServerProtocol(max_size=10)
    assert protocol.max_message_size == 10


@pytest.mark.parametrize("library", ["nats-py", "websockets"])
def test_only_the_minor_version_that_is_tested_may_be_installed(library: str) -> None:
    found = version(library)
    major, minor = (int(part) for part in found.split(".")[:2])
    needed = [Requirement(text) for text in requires("opencode-durable-stream") or ()]
    (allowed,) = [each.specifier for each in needed if each.name == library and not str(each.marker).count("dev")]
    assert found in allowed
    assert f"{major}.{minor + 1}.0" not in allowed and f"{major}.{minor - 1}.0" not in allowed
