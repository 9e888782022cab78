"""The table of requests: what is checked before a handler runs, and which errors reach the caller."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.opencode.link.protocol import RequestError
from sidecar.home import Home
from sidecar.link.client import ControlClient
from sidecar.registry import Args, NoArgs, Requests
from streams.errors import StoreUnavailable
from streams.identity import system_identity
from tests.sidecar.support import HANG_SECONDS, REPOSITORY, running, start


class Count(Args):
    upto: int = Field(description="where to stop", ge=0)


async def counted(args: Count) -> list[int]:
    return list(range(args.upto))


@pytest.fixture
def requests() -> Requests:
    table = Requests()
    table.register("count", Count, counted, "the numbers")
    return table


async def test_a_handler_gets_its_checked_arguments(requests: Requests) -> None:
    assert await requests.answer("count", {"upto": 3}) == [0, 1, 2]


@pytest.mark.parametrize("args", [{}, {"upto": "many"}, {"upto": -1}, {"upto": 1, "secret": "hunter2"}])
async def test_wrong_arguments_are_refused_without_their_values(requests: Requests, args: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        await requests.answer("count", args)
    assert caught.value.code == "bad-arguments" and "count" in caught.value.message
    assert "hunter2" not in caught.value.message and "many" not in caught.value.message


async def test_an_unknown_request_is_refused_and_shown_shortened(requests: Requests) -> None:
    with pytest.raises(RequestError) as caught:
        await requests.answer("x" * 5000, {})
    assert caught.value.code == "unknown-request" and len(caught.value.message) < 200


async def test_the_table_is_a_request_itself(requests: Requests) -> None:
    count, own = await requests.answer("requests", {})
    assert (count["name"], count["value"], own["name"]) == ("count", "the numbers", "requests")
    assert count["args"]["properties"]["upto"]["description"] == "where to stop"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StoreUnavailable("no", "wait"), StoreUnavailable.code),
        (NatsUnavailable("no", "wait"), NatsUnavailable("no", "wait").code),
        (OSError(28, "No space left on device", "/log"), "disk-error"),
        (RequestError("own", "text"), "own"),
    ],
)
async def test_errors_meant_for_the_caller_keep_their_code(error: Exception, code: str) -> None:
    async def fails(args: NoArgs) -> None:
        raise error

    table = Requests()
    table.register("fail", NoArgs, fails, "")
    with pytest.raises(RequestError) as caught:
        await table.answer("fail", {})
    assert caught.value.code == code


async def test_the_protocol_page_lists_the_requests_that_a_sidecar_answers(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    process = start(home)
    try:
        running(home)
        async with await ControlClient.connect(home, version="test", nonce=system_identity().nonce) as client:
            table = await client.request("requests")
    finally:
        process.terminate()
        process.wait(HANG_SECONDS)
    answered = {}
    for request in table:
        args = request["args"].get("properties", {}).items()
        answered[request["name"]] = (
            "; ".join(f"`{name}`: {about['description']}" for name, about in args),
            request["value"],
        )
    page = (REPOSITORY / "docs" / "protocol.md").read_text()
    section = page.partition("### Requests\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|$", section, re.MULTILINE)
    assert {name: (args.strip(), value.strip()) for name, args, value in rows} == answered and len(rows) == len(
        answered
    )
