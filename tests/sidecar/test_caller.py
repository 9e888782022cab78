"""Which process is at the other end of a connection, and whether an OpenCode started it."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.link.caller import Peer, find_caller

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who holds a connection")

CONNECT = "import socket,sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def call(server: socket.socket, *before: str, environ: dict[str, str] | None = None) -> tuple[Peer, int]:
    """A process that connects, and what the sidecar knows of it: it names a wrong pid."""
    port = server.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENCODE")}
    child = subprocess.Popen(
        [*before, sys.executable, "-c", CONNECT, str(port)], stdin=subprocess.PIPE, env=clean | (environ or {})
    )
    CHILDREN.append(child)
    its_port = accepted(server)
    return Peer(its_port, port, 1), child.pid


def accepted(server: socket.socket) -> int:
    """The port of the next process that connects."""
    connection, (_, port) = server.accept()
    CONNECTIONS.append(connection)
    return int(port)


CONNECTIONS: list[socket.socket] = []
CHILDREN: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    for child in CHILDREN:
        child.communicate()
    for connection in CONNECTIONS:
        connection.close()
    CHILDREN.clear()
    CONNECTIONS.clear()


def test_the_system_says_who_it_is_whatever_the_process_says(server: socket.socket) -> None:
    peer, pid = call(server)
    found = find_caller(peer, ())
    assert (found.pid, found.is_below_opencode) == (pid, False)


def test_a_process_below_an_opencode_is_found_at_any_depth(server: socket.socket) -> None:
    peer, _ = call(server, "/bin/sh", "-c", '"$@"; true', "sh")
    assert find_caller(peer, {os.getpid()}).is_below_opencode


def test_one_that_left_the_tree_is_known_by_its_environment(server: socket.socket) -> None:
    peer, _ = call(server, environ={"OPENCODE": "1"})
    assert find_caller(peer, ()).is_below_opencode


def test_the_terminal_is_named(server: socket.socket) -> None:
    port = server.getsockname()[1]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", CONNECT, str(port)])
    its_port = accepted(server)
    own = Path(f"/proc/{pid}/fd/0").readlink()
    assert find_caller(Peer(its_port, port, 1), ()).tty == str(own)
    os.close(terminal)
    os.waitpid(pid, 0)
