"""A fake npm registry on loopback: it notes its requests and has only the packages that a test publishes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

from tests.answering import AnsweringServer

UNAVAILABLE = 503
"""npm asks again after ten seconds, and then after a minute, unless configured not to."""
MISSING = 404
"""npm gives up at once."""


class FakeRegistry(AnsweringServer):
    """Answers every request for something that was not published with ``status``; ``asked`` has the paths of all
    requests in order."""

    def __init__(self) -> None:
        super().__init__()
        self.status, self.url = UNAVAILABLE, f"{self.address}/"
        self.asked: list[str] = []
        self._published: dict[str, bytes] = {}

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        self.asked.append(path)
        content = self._published.get(path)
        return (200, content, {}) if content is not None else (self.status, b"", {})

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
