"""``GET /metrics``: only with the bearer that is derived from the token, never for a browser or on the link's port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sidecar.care.scraping import Scraping, bearer_of
from tests.sidecar.peers import TOKEN, peer, serving, works

TEXT = "# TYPE a gauge\na 1.0\n"
RIGHT = f"Authorization: Bearer {bearer_of(TOKEN)}"


@asynccontextmanager
async def scraping(text: Callable[[], bytes] = TEXT.encode) -> AsyncIterator[Scraping]:
    async with AsyncExitStack() as stack:
        scraping = Scraping(0, TOKEN, text)
        await scraping.start(stack)
        yield scraping


async def ask(
    port: int, *headers: str, host: str = "127.0.0.1", path: str = "/metrics", method: str = "GET"
) -> tuple[int, str]:
    """The status and the rest of the answer to a plain HTTP request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close", *headers, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_bearer_reads_them(scheme: str) -> None:
    async with scraping() as server:
        status, answer = await ask(server.port, RIGHT.replace("Bearer", scheme))
        assert status == 200 and answer.endswith(TEXT)
        assert "content-type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
        assert answer.lower().count("content-type:") == 1 and "access-control" not in answer.lower()
        assert server.status()["refused"] == 0


WRONG = {
    "none": [],
    "the token itself": [f"Authorization: Bearer {TOKEN}"],
    "another": [f"Authorization: Bearer {'0' * 64}"],
    "a part": [RIGHT[:-1]],
    "more": [RIGHT + "0"],
    "basic": [RIGHT.replace("Bearer", "Basic")],
    "no scheme": [RIGHT.replace("Bearer ", "")],
    "twice": [RIGHT, RIGHT],
    "not ASCII": ["Authorization: Bearer \xe9"],
    "in the query": [],
    "another page": [],
}


async def test_every_other_is_refused_alike_and_counted() -> None:
    async with scraping() as server:
        answers = set()
        paths = {"in the query": f"/metrics?bearer={bearer_of(TOKEN)}", "another page": "/"}
        for name, headers in WRONG.items():
            status, answer = await ask(server.port, *headers, path=paths.get(name, "/metrics"))
            assert status == 401, name
            answers.add("\n".join(line for line in answer.split("\r\n") if not line.startswith("date:")))
        assert len(answers) == 1 and "www-authenticate: Bearer" in answers.pop()
        assert server.status()["refused"] == len(WRONG)


async def test_a_browser_another_host_and_what_is_not_there_are_refused_with_the_right_bearer_too() -> None:
    async with scraping() as server:
        assert (await ask(server.port, RIGHT, "Origin: null"))[0] == 403
        assert (await ask(server.port, RIGHT, host="evil.example"))[0] == 403
        assert (await ask(server.port, RIGHT, path="/"))[0] == 404
        assert (await ask(server.port, RIGHT, method="POST"))[0] == 405
        assert server.status()["refused"] == 2


async def test_the_port_of_the_link_serves_nothing_but_the_link() -> None:
    async with serving() as server:
        assert (await ask(server.port, RIGHT))[0] == 426
        await works(server)


async def test_the_bearer_proves_nothing_on_a_link() -> None:
    async with serving() as server, peer(server) as shim:
        assert await shim.shake(token=bearer_of(TOKEN)) == {"type": "bye", "reason": "auth"}


async def test_a_failure_of_ours_is_told_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> bytes:
        raise KeyError("sk-secret-1")

    async with scraping(fails) as server:
        status, answer = await ask(server.port, RIGHT)
        assert status == 500 and "secret" not in answer + caplog.text and "KeyError" in caplog.text
