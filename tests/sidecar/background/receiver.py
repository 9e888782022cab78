"""A channel's other side: a local HTTP server that takes what ``apprise`` posts, or refuses it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

SECRET = "hunter2-of-the-phone"


class Receiver:
    """A context manager. It answers the first ``failing`` messages with 500; ``taken`` are the others, in order."""

    def __init__(self, failing: int = 0) -> None:
        self.asked = 0
        self.taken: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked += 1
                works = outer.asked > failing
                if works:
                    outer.taken.append(json.loads(body))
                self.send_response(200 if works else 500)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address for ``[notify] urls``, with a password in it."""
        return f"json://ada:{SECRET}@127.0.0.1:{self._server.server_address[1]}/phone"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
