"""A fake npm registry on loopback: it notes its requests and has only the packages that a test publishes."""

from __future__ import annotations

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

UNAVAILABLE = 503
"""npm asks again after ten seconds, and then after a minute, unless configured not to."""
MISSING = 404
"""npm gives up at once."""


class FakeRegistry:
    """Answers every request for something that was not published with ``status``; ``asked`` has the paths of all
    requests in order."""

    def __init__(self) -> None:
        self.status = UNAVAILABLE
        self.asked: list[str] = []
        self._published: dict[str, bytes] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                registry.asked.append(self.path)
                self.rfile.read(int(self.headers.get("content-length") or 0))
                content = registry._published.get(self.path)
                self.send_response(registry.status if content is None else 200)
                self.send_header("content-length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the names http.server looks for

            def log_message(self, *arguments: object) -> None:
                """Log nothing; ``asked`` has it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def publish(self, directory: Path, packed: Path) -> list[str]:
        """Pack an npm package into the directory ``packed`` and offer it; return the names of the packed files."""
        command = ["npm", "pack", "--offline", "--json", "--ignore-scripts", "--pack-destination", str(packed)]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=True)
        (told,) = json.loads(done.stdout)
        name, version, file = told["name"], told["version"], f"/{told['name']}/-/{told['filename']}"
        dist = {"tarball": f"{self.url[:-1]}{file}", "integrity": told["integrity"], "shasum": told["shasum"]}
        packages = {version: {"name": name, "version": version, "dist": dist}}
        about = {"name": name, "dist-tags": {"latest": version}, "versions": packages}
        self._published |= {f"/{name}": json.dumps(about).encode(), file: (packed / told["filename"]).read_bytes()}
        return [entry["path"] for entry in told["files"]]

    def __enter__(self) -> FakeRegistry:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
