"""A real HTTP proxy, as in a company's network: it reaches the model, and refuses everything else on this machine."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import urlsplit

_HOP = frozenset({"connection", "proxy-connection", "transfer-encoding", "keep-alive"})


class RefusingProxy:
    """A context manager. ``refused`` are the addresses that it was asked for and did not reach."""

    def __init__(self, model_port: int) -> None:
        self.refused: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target = urlsplit(self.path)
                if target.port != model_port:
                    outer.refused.append(self.path)
                    self.send_response(403)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                connection = http.client.HTTPConnection("127.0.0.1", model_port)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                connection.request(self.command, target.path, body, headers)
                answer = connection.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := answer.read1():
                    self.wfile.write(piece)
                connection.close()

            do_POST = do_GET  # noqa: N815 - the name is the base class's

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user who has set the proxy, and no exceptions."""
        address = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {"HTTP_PROXY": address, "http_proxy": address, "NO_PROXY": "", "no_proxy": ""}

    def __enter__(self) -> RefusingProxy:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
