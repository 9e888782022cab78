"""Who gets the page: nobody without the link, once, from this machine, and no other page."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from shutil import copytree, rmtree
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from httpx import ASGITransport, AsyncClient

from sidecar.inspector import server
from sidecar.inspector.server import PAGE
from sidecar.web.serving import MOST_CONNECTIONS
from tests.sidecar.inspector.conftest import Served, inspecting

API = "/api/sessions"


def ask(
    served: Served, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    """One request, with underscores in header names as hyphens."""
    with closing(HTTPConnection(urlsplit(served.base).netloc, timeout=30)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


@pytest.fixture(scope="module")
def opened(filled: Path) -> Any:
    """A served page, and the header of a browser that has its link."""
    with inspecting(filled) as served:
        yield served, {"authorization": f"Bearer {urlsplit(served.link).fragment}"}


def test_only_the_secret_opens_what_is_recorded(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    assert ask(served, API, **own)[0].status == 200
    secret = own["authorization"].removeprefix("Bearer ")
    wrong = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    cookies = [{"cookie": f"durable-stream-{urlsplit(served.base).port}={secret}"}, {"cookie": f"secret={secret}"}]
    for given in ({}, {"authorization": f"Bearer {wrong}"}, {"authorization": "Bearer é"}, *cookies):
        for path in (API, "/api/live", "/api/nothing", f"/api/do/answer?secret={secret}"):
            answer, body = ask(served, path, **given)
            assert answer.status == 401 and b"durable-stream inspect" in body


def test_the_page_itself_is_the_same_for_everybody_and_sets_no_cookie(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    for path in ("/", "/s/ses_1", "/page/app.js"):
        (with_it, one), (without, other) = ask(served, path, **own), ask(served, path)
        assert (with_it.status, without.status) == (200, 200) and one == other
        assert "set-cookie" not in with_it.headers and without.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1", "127.0.0.1", "localhost.evil.example"])
def test_another_name_for_this_machine_is_refused(opened: tuple[Served, dict[str, str]], host: str) -> None:
    served, own = opened
    assert ask(served, API, **own, host=host)[0].status == 421


def test_another_page_in_the_same_browser_is_refused(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert ask(served, API, **own, **headers)[0].status == 403
    body = b'{"checkpoint": "chk_1", "answer": ["once"]}'
    assert ask(served, "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0].status == 200, "a link to it"
    assert ask(served, "/", sec_fetch_site="cross-site", sec_fetch_mode="cors")[0].status == 403
    assert ask(served, API, **own, sec_fetch_site="cross-site", sec_fetch_mode="navigate")[0].status == 403
    own = own | {"content_type": "application/json"}
    assert ask(served, "/api/do/answer", "POST", body, **own)[0].status == 403, "no origin"
    own["origin"] = served.base
    assert ask(served, "/api/do/shell", "POST", body, **own)[0].status == 404
    own["content_type"] = "text/plain"
    assert ask(served, "/api/do/answer", "POST", body, **own)[0].status == 400


def test_every_answer_forbids_what_the_page_does_not_need(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    for path in ("/", API, "/page/app.js", "/page/../data.py", "/nothing"):
        answer, _ = ask(served, path, **own)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
        assert answer.status == (200 if path in ("/", API, "/page/app.js") else 404)


async def test_an_update_of_the_package_leaves_the_page_as_it_was_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server, "PAGE", page := tmp_path / "page")
    copytree(PAGE, page)
    transport = ASGITransport(server.build(cast("server.Shown", SimpleNamespace(is_team=False))))
    rmtree(page)
    async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/", "/work", "/page/app.js", "/nothing"):
            name = "app.js" if "." in path else "index.html"
            assert (await client.get(path)).content == (PAGE / name).read_bytes()


def test_silent_connections_shut_nobody_out(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    address = ("127.0.0.1", urlsplit(served.base).port)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(MOST_CONNECTIONS + 3)]
        assert ask(served, API, **own)[0].status == 200
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest made room"


def test_what_does_not_exist_is_named(opened: tuple[Served, dict[str, str]]) -> None:
    served, own = opened
    answer, body = ask(served, "/api/s/ses_nothing/head", **own)
    assert answer.status == 404 and b'"code":"not-found"' in body
