"""A channel's other side: a local HTTP server that takes what ``apprise`` posts, or refuses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.message import Message
from typing import Any

from tests.answering import AnsweringServer

SECRET = "hunter2-of-the-phone"


class Receiver(AnsweringServer):
    """It answers the first ``failing`` messages with 500; ``taken`` are the others, in order."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self.asked, self._failing = 0, failing
        self.taken: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Its address for ``[notify] urls``, with a password in it."""
        return f"json://ada:{SECRET}@127.0.0.1:{self.port}/phone"

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        self.asked += 1
        if self.asked <= self._failing:
            return 500, b"", {}
        self.taken.append(json.loads(body))
        return 200, b"", {}
