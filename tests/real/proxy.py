"""A real HTTP proxy, as in a company's network: it reaches the model, and refuses everything else on this machine."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from contextlib import closing
from email.message import Message
from urllib.parse import urlsplit

from tests.answering import AnsweringServer

_HOP = frozenset({"connection", "proxy-connection", "transfer-encoding", "keep-alive", "content-length"})


class RefusingProxy(AnsweringServer):
    """``refused`` are the addresses that it was asked for and did not reach."""

    def __init__(self, model_port: int) -> None:
        super().__init__()
        self.refused: list[str] = []
        self._model_port = model_port

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a user who has set the proxy, and no exceptions."""
        return {"HTTP_PROXY": self.address, "http_proxy": self.address, "NO_PROXY": "", "no_proxy": ""}

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        target = urlsplit(path)
        if target.port != self._model_port:
            self.refused.append(path)
            return 403, b"", {}
        given = {name: value for name, value in headers.items() if name.lower() not in _HOP}
        with closing(http.client.HTTPConnection("127.0.0.1", self._model_port)) as connection:
            connection.request(method, target.path, body, given)
            answer = connection.getresponse()
            content = answer.read()
        return answer.status, content, {n: v for n, v in answer.getheaders() if n.lower() not in _HOP}
