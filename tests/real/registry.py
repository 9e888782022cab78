"""A fake npm registry on loopback: it notes its requests and has no package."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

UNAVAILABLE = 503
"""npm asks again after ten seconds, and then after a minute, unless configured not to."""
MISSING = 404
"""npm gives up at once."""


class FakeRegistry:
    """Answers every request with ``status``; ``asked`` has their paths in order."""

    def __init__(self) -> None:
        self.status = UNAVAILABLE
        self.asked: list[str] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                registry.asked.append(self.path)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(registry.status)
                self.send_header("content-length", "0")
                self.end_headers()

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names http.server looks for

            def log_message(self, *arguments: object) -> None:
                """Log nothing; ``asked`` has it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> FakeRegistry:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
