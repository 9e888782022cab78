"""Who gets the page: nobody without the link, once, from this machine, and no other page."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

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
    """A served page, and the cookie of the one login."""
    with inspecting(filled) as served:
        link = served.link.removeprefix(served.base)
        answer, _ = ask(served, link)
        assert answer.status == 303 and answer.headers["location"] == "/"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        yield served, link, cookie.partition(";")[0]


def test_only_the_cookie_opens_the_page(opened: tuple[Served, str, str]) -> None:
    served, _, cookie = opened
    assert ask(served, API, cookie=cookie)[0].status == 200
    for given in ({}, {"cookie": cookie[:-1] + ("0" if cookie[-1] != "0" else "1")}, {"cookie": "durable-stream-1=x"}):
        for path in ("/", API, "/page/app.js", "/s/ses_1", "/api/live"):
            answer, body = ask(served, path, **given)
            assert answer.status == 401 and b"durable-stream inspect" in body


def test_a_link_works_once(opened: tuple[Served, str, str]) -> None:
    served, link, cookie = opened
    assert ask(served, link)[0].status == 401
    assert ask(served, "/login/" + "0" * 64)[0].status == 401
    assert ask(served, link, cookie=cookie)[0].status == 303, "the same browser opens it again"
    assert ask(served, "/login/x?to=//evil.example/", cookie=cookie)[0].headers["location"] == "/"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:1", "127.0.0.1", "localhost.evil.example"])
def test_another_name_for_this_machine_is_refused(opened: tuple[Served, str, str], host: str) -> None:
    served, _, cookie = opened
    assert ask(served, API, cookie=cookie, host=host)[0].status == 421


def test_another_page_in_the_same_browser_is_refused(opened: tuple[Served, str, str]) -> None:
    served, _, cookie = opened
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert ask(served, API, cookie=cookie, **headers)[0].status == 403
    body = b'{"checkpoint": "chk_1", "answer": ["once"]}'
    own = {"cookie": cookie, "content_type": "application/json"}
    assert ask(served, "/api/do/answer", "POST", body, **own)[0].status == 403, "no origin"
    own["origin"] = served.base
    assert ask(served, "/api/do/shell", "POST", body, **own)[0].status == 404
    own["content_type"] = "text/plain"
    assert ask(served, "/api/do/answer", "POST", body, **own)[0].status == 400


def test_every_answer_forbids_what_the_page_does_not_need(opened: tuple[Served, str, str]) -> None:
    served, _, cookie = opened
    for path in ("/", API, "/page/app.js", "/page/../data.py", "/nothing"):
        answer, _ = ask(served, path, cookie=cookie)
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
        assert answer.status == (200 if path in ("/", API, "/page/app.js") else 404)


def test_silent_connections_shut_nobody_out(opened: tuple[Served, str, str]) -> None:
    served, _, cookie = opened
    address = ("127.0.0.1", urlsplit(served.base).port)
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(MOST_CONNECTIONS + 3)]
        assert ask(served, API, cookie=cookie)[0].status == 200
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the oldest made room"


def test_what_does_not_exist_is_named(opened: tuple[Served, str, str]) -> None:
    served, _, cookie = opened
    answer, body = ask(served, "/api/s/ses_nothing/head", cookie=cookie)
    assert answer.status == 404 and b'"code":"not-found"' in body
