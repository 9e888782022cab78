"""Installing into the real OpenCode 2: by our command, and by its own `plugin add` of the packed npm package."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.install.npm import PLUGIN_PACKAGE
from tests.real.durable import EXECUTABLE, SHIM, DurableStream, wait_until
from tests.real.model_server import HANG_LIMIT_S, ModelServer
from tests.real.opencode2 import RealOpenCode2
from tests.real.registry import FakeRegistry
from tools.install_opencode import VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode

EVERYWHERE, PROJECT, PACKAGE = "everywhere", "project", "package"


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[DurableStream]:
    with DurableStream(tmp_path / "records") as stream:
        yield stream


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[FakeRegistry]:
    """A registry with our package."""
    with FakeRegistry() as fake:
        (tmp_path / "packed").mkdir()
        names = fake.publish(SHIM.parents[1], tmp_path / "packed")
        assert {"README.md", "package.json", "src/index.js", "src/tools.json"} <= set(names)
        assert not [name for name in names if not name.startswith(("src/", "README.md", "package.json"))]
        yield fake


def test_each_way_to_install_into_a_running_service_works_and_copies_get_along(
    model: ModelServer, durable: DurableStream, registry: FakeRegistry
) -> None:
    order = (PACKAGE, PROJECT, EVERYWHERE)
    with opencode2(model, durable, registry) as client:
        ask(client)
        put(client, durable, EVERYWHERE)
        ask(client)
        assert_linked(durable, client)
        remove(client, durable, EVERYWHERE)
        wait_until(lambda: plugins(client) == [], "the service to forget the plugin")
        ask(client)
        for count, place in enumerate(order, 1):
            put(client, durable, place)
            wait_until(lambda count=count: len(plugins(client)) == count, f"the copy {place}")  # type: ignore[misc]
            ask(client)
            if place == PACKAGE:
                assert_linked(durable, client)
                assert [(each["source"]["target"], each["state"]["status"]) for each in plugins(client)] == [
                    (PLUGIN_PACKAGE, "active")
                ]
                found = told(durable, client)
                assert [found[name] for name in ("plugin", "opencode 2", "links")] == ["ok"] * 3
        client.restart()
        ask(client)
        assert {each["state"]["status"] for each in plugins(client)} == {"active"}
        assert len({each["id"] for each in plugins(client)}) == len(order)
        assert_linked(durable, client)
        assert told(durable, client)["copies"] == "note"
        for place in reversed(order):
            remove(client, durable, place)
            ask(client)
        wait_until(lambda: plugins(client) == [], "the end of every copy")
        assert told(durable, client)["plugin"] == "problem"
        durable.end_with(client)


def test_the_package_without_the_program_does_nothing_and_says_so(
    model: ModelServer, durable: DurableStream, registry: FakeRegistry
) -> None:
    with opencode2(model, durable, registry, program=None) as client:
        put(client, durable, PACKAGE)
        ask(client)
        (found,) = plugins(client)
        assert found["state"] == {"status": "active"} and "needs-its-python-package" in found["id"]
        assert client.leftovers() == [client.pid] and not durable.home.exists()
        assert [found["id"] in line for line in opencode(client, "plugin", "list").splitlines()] == [False, True]


def opencode2(
    model: ModelServer, durable: DurableStream, registry: FakeRegistry, program: Path | None = EXECUTABLE
) -> RealOpenCode2:
    """An OpenCode 2 whose user has ``program`` on the PATH, and whose npm asks ``registry``."""
    places = [str(program.parent)] if program else []
    places += [each for each in os.environ["PATH"].split(os.pathsep) if not Path(each, EXECUTABLE.name).exists()]
    environment = {"PATH": os.pathsep.join(places), "DURABLE_STREAM_HOME": str(durable.home)}
    environment |= {"npm_config_registry": registry.url, "npm_config_offline": "false"}
    return RealOpenCode2(binary_path(VERSION_2), model.port, environment=environment)


def put(client: RealOpenCode2, durable: DurableStream, place: str) -> None:
    """Install the plugin in a place, as its user would."""
    if place == PACKAGE:
        opencode(client, "plugin", "add", PLUGIN_PACKAGE)
    else:
        durable.in_project(client, "install", *(["--project", "."] if place == PROJECT else []))


def remove(client: RealOpenCode2, durable: DurableStream, place: str) -> None:
    if place == PACKAGE:
        opencode(client, "plugin", "remove", PLUGIN_PACKAGE)
    else:
        durable.in_project(client, "uninstall", *(["--project", "."] if place == PROJECT else []))


def opencode(client: RealOpenCode2, *arguments: str) -> str:
    done = subprocess.run(
        [str(client.binary), *arguments],
        cwd=client.project,
        env=client.environment(),
        capture_output=True,
        text=True,
        timeout=HANG_LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def ask(client: RealOpenCode2) -> None:
    """A prompt, which the model answers."""
    session = client.new_session()
    client.prompt(session, "SAY:hi")
    client.wait(session)
    types = [each["type"] for each in client.api("GET", f"/api/session/{session}/message")["data"]]
    assert {"user", "assistant"} <= set(types)


def plugins(client: RealOpenCode2) -> list[dict[str, Any]]:
    """What the service says of our plugins in the project."""
    found = client.api("GET", f"/api/plugin?location[directory]={client.project}")["data"]
    return [each for each in found if each["id"].startswith("durable-stream")]


def assert_linked(durable: DurableStream, client: RealOpenCode2) -> None:
    durable.wait_linked()
    (link,) = durable.status()["links"]
    assert (link["pid"], link["opencode_version"]) == (client.pid, VERSION_2)


def told(durable: DurableStream, client: RealOpenCode2) -> dict[str, str]:
    """The level of each check of ``doctor`` in the project."""
    found = map(json.loads, durable.in_project(client, "doctor", "--json").splitlines())
    return {each["name"]: each["level"] for each in found}
