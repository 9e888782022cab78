"""``GET /metrics`` on the link's port: only with the bearer that is derived from the token, and never for a browser."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.link.scraping import bearer_of
from sidecar.link.server import LinkServer
from tests.sidecar.peers import TOKEN, peer, serving, works

TEXT = "# TYPE a gauge\na 1.0\n"
RIGHT = f"Authorization: Bearer {bearer_of(TOKEN)}"


async def ask(server: LinkServer, *headers: str, host: str = "127.0.0.1", path: str = "/metrics") -> tuple[int, str]:
    """The status and the rest of the answer to a plain HTTP request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}:{server.port}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode("latin-1"))
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_right_bearer_reads_them(scheme: str) -> None:
    async with serving(metrics=TEXT.encode) as server:
        status, answer = await ask(server, RIGHT.replace("Bearer", scheme))
        assert status == 200 and answer.endswith(TEXT)
        assert "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
        assert answer.count("Content-Type") == 1 and "Access-Control" not in answer
        assert server.counters.refused_scrapes == 0
        await works(server)


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
}


async def test_every_other_is_refused_alike_and_counted() -> None:
    async with serving(metrics=TEXT.encode) as server:
        answers = set()
        for name, headers in WRONG.items():
            path = f"/metrics?bearer={bearer_of(TOKEN)}" if name == "in the query" else "/metrics"
            status, answer = await ask(server, *headers, path=path)
            assert status == 401, name
            answers.add("\n".join(line for line in answer.split("\r\n") if not line.startswith("Date:")))
        assert len(answers) == 1 and "WWW-Authenticate: Bearer" in answers.pop()
        assert server.counters.refused_scrapes == len(WRONG)
        assert server.counters.failed_proofs == 0
        await works(server)


async def test_a_browser_and_another_host_are_refused_with_the_right_bearer_too() -> None:
    async with serving(metrics=TEXT.encode) as server:
        assert (await ask(server, RIGHT, "Origin: null"))[0] == 403
        assert (await ask(server, RIGHT, host="evil.example"))[0] == 403
        assert (server.counters.refused_origin, server.counters.refused_host) == (1, 1)


async def test_they_are_there_when_all_links_are_taken_and_count_as_none() -> None:
    async with serving(metrics=TEXT.encode, max_connections=1) as server, peer(server) as shim:
        await shim.shake()
        assert (await ask(server, RIGHT))[0] == 200
        assert (server.connections, server.counters.refused_busy) == (1, 0)


async def test_the_bearer_proves_nothing_on_a_link() -> None:
    async with serving(metrics=TEXT.encode) as server, peer(server) as shim:
        assert await shim.shake(token=bearer_of(TOKEN)) == {"type": "bye", "reason": "auth"}


async def test_a_failure_of_ours_is_told_without_its_text() -> None:
    def fails() -> bytes:
        raise KeyError("sk-secret-1")

    async with serving(metrics=fails) as server:
        status, answer = await ask(server, RIGHT)
        assert status == 500 and "secret" not in answer
        assert server.counters.handler_errors == 1
        await works(server)
