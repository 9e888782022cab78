"""A peer that knows the token and misbehaves: it takes the sidecar's place in a home and floods the plugin."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from bridge.opencode.link.frames import PROTOCOL
from bridge.opencode.link.link import SidecarLink
from bridge.opencode.link.protocol import Identified
from sidecar.home import Home, SidecarInfo
from streams.identity import system_identity


def noise() -> Iterator[str]:
    """Bytes that are not a frame."""
    while True:
        yield "\x00not a frame" * 1000


def calls() -> Iterator[str]:
    """Calls whose answers nobody reads."""
    for number in itertools.count():
        yield json.dumps({"type": "call", "id": number, "method": f"none.{'x' * 500}", "args": {}})


def contexts() -> Iterator[str]:
    """Big valid frames."""
    while True:
        yield json.dumps({"type": "context", "context": {"filler": "x" * 1_000_000}})


def strangers() -> Iterator[str]:
    """As many small frames of an unknown type as possible."""
    while True:
        yield '{"type":"stranger"}'


class FloodingPeer:
    """Serves a home on a port of its own while the context lasts; each link gets the next of ``floods``.

    It authenticates and welcomes a shim, then sends frames endlessly and acknowledges nothing.
    """

    def __init__(self, home: Path, *floods: Callable[[], Iterator[str]]) -> None:
        self.sent = 0
        """Frames that went out after a welcome."""
        self.links = 0
        self._home = Home(home)
        self._floods = itertools.cycle(floods)
        self._ended = threading.Event()

    def __enter__(self) -> FloodingPeer:
        self._home.create()
        self._token = self._home.ensure_token(system_identity().nonce)
        self._server = serve(self._flood, "127.0.0.1", 0, compression=None, max_size=None, close_timeout=1)
        self._port = int(self._server.socket.getsockname()[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="peer", daemon=True)
        self._thread.start()
        self._home.write_info(SidecarInfo(os.getpid(), self._port, "peer", "0", PROTOCOL, 0))
        return self

    def __exit__(self, *_: object) -> None:
        self._home.remove_info()
        self._ended.set()
        self._server.shutdown()
        self._thread.join()

    def _flood(self, socket: ServerConnection) -> None:
        link = SidecarLink(
            token=self._token, port=self._port, nonce=system_identity().nonce(), boot="peer", version="0"
        )
        try:
            identified = False
            while not identified:
                identified = any(isinstance(event, Identified) for event in link.receive(socket.recv()))
                for text in link.data_to_send():
                    socket.send(text)
            link.welcome()
            for text in link.data_to_send():
                socket.send(text)
            self.links += 1
            for text in next(self._floods)():
                if self._ended.is_set():
                    return
                socket.send(text)
                self.sent += 1
        except (ConnectionClosed, OSError):
            return  # the plugin hung up, which is what it should do
