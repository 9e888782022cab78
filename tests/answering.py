"""One HTTP server on loopback for the tests: a subclass says what it answers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class AnsweringServer:
    """A context manager; ``address`` is where it listens, from the beginning."""

    def __init__(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def any_method(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, content, headers = outer.answer(self.command, self.path, body, self.headers)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = any_method  # noqa: N815 - the names http.server looks for

            def log_message(self, *arguments: object) -> None:
                """Log nothing: a subclass notes what a test wants to know."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.port = int(self._server.server_address[1])
        self.address = f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        """The status, the content and further headers."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
