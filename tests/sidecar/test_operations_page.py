"""The pages docs/operations.md and docs/protocol.md show what commands print, all settings and all requests."""

from __future__ import annotations

import ast
import asyncio
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.opencode.link.protocol import RequestError
from sidecar.config import Config
from sidecar.home import Home
from sidecar.link.client import ControlClient
from sidecar.registry import Args, NoArgs, Requests
from streams.errors import StoreUnavailable
from streams.identity import seeded_identity, system_identity
from tests.sidecar.cli.helpers import append, run
from tests.sidecar.support import REPOSITORY, serving
from tests.sources import nodes
from tests.streams.builders import events

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
LINKED = "2026-11-22 01:53:48,183 INFO sidecar: link opened: pid 7, instance 12ab, OpenCode 1.18.33\n"


def shown() -> dict[str, str]:
    """The output that the page shows, by command."""
    blocks = re.findall(r"```console\n\$ durable-stream ([^\n]*)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(blocks)


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = tmp_path / "ada"
    for name in ("shop/.git", "shop/.opencode", "bin"):
        (ada / name).mkdir(parents=True)
    (ada / "bin" / "opencode").write_text("#!/bin/sh\necho 1.18.33\n")
    (ada / "bin" / "opencode").chmod(0o755)
    monkeypatch.chdir(ada / "shop")
    for name in ("XDG_CONFIG_HOME", "OPENCODE_CONFIG_DIR", "OPENCODE_PURE", "DURABLE_STREAM"):
        monkeypatch.delenv(name, raising=False)
    environ = {"HOME": str(ada), "PATH": f"{ada / 'bin'}:/usr/bin:/bin"}
    home = Home(ada / ".local/share/durable-stream")
    home.create()
    home.ensure_token(seeded_identity(1).nonce)
    home.log_path.write_text(LINKED)
    asyncio.run(append(home.store_path, [events(43)]))

    pages = shown()
    assert list(pages) == ["install", "doctor --fix"]
    printed = {"install": run(home.path, "install", **environ).out}
    (ada / ".opencode").mkdir()
    home.path.chmod(0o755)
    printed["doctor --fix"] = run(home.path, "doctor", "--fix", **environ).out
    for command, text in printed.items():
        shown_text = re.sub(r"\d+ MiB", "N MiB", text.replace(str(ada), "/home/ada"))
        # A line of the page that says … stands for lines that it leaves out.
        wanted = re.escape(re.sub(r"\d+ MiB", "N MiB", pages[command])).replace("…\\\n", "(?:.*\n)+")
        assert re.fullmatch(wanted, shown_text), (command, shown_text)


def test_the_page_lists_every_setting_with_its_default() -> None:
    (block,) = re.findall(r"^```toml\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    listed = Config.model_validate(tomllib.loads(block))
    assert listed == Config()
    # A setting without a default is in a comment, with an example.
    written = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", block, flags=re.MULTILINE))
    assert {(section, key) for section, keys in written.items() for key in keys} == {
        (section, key.alias or name)
        for section, field in Config.model_fields.items()
        for name, key in type(field.default).model_fields.items()
    }


def test_the_page_lists_every_check_of_doctor() -> None:
    section = PAGE.read_text().partition("\n## Doctor\n")[2].partition("\n## ")[0]
    listed = {
        name for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for name in re.findall("`([^`]+)`", row)
    }
    named = {
        str(call.args[0].value)
        for call in nodes("sidecar")
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Check"
        if isinstance(call.args[0], ast.Constant)
    }
    assert named and named - listed == set()


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
    with serving(home):
        async with await ControlClient.connect(home, version="test", nonce=system_identity().nonce) as client:
            table = await client.request("requests")
    answered = {request["name"]: list(request["args"].get("properties", {})) for request in table}
    described = [each for request in table for each in request["args"].get("properties", {}).values()]
    assert all(request["value"] for request in table) and all(each["description"] for each in described)
    page = (REPOSITORY / "docs" / "protocol.md").read_text()
    section = page.partition("### Requests\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", section, re.MULTILINE)
    assert {name: re.findall(r"`(\w+)`", args) for name, args in rows} == answered and len(rows) == len(answered)
