"""Fixtures of the tests against the real OpenCode client.

A test module shares one server. It may set ``OPENCODE``, the client's configuration:

    OPENCODE = {"permission": {"bash": "ask"}}
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.events import EventStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.sidecar.read.story.moments import compared_home
from tests.streams.sizes import size
from tools.install_opencode import binary_path


@pytest.fixture(scope="session")
def opencode_binary() -> Path:
    """The pinned OpenCode. If it is missing, tests fail; a skip would hide the loss."""
    path = binary_path()
    if not path.exists():
        pytest.fail(f"OpenCode is not installed at {path}: run `make opencode`", pytrace=False)
    return path


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    """The module's scripted model."""
    with ModelServer() as server:
        yield server
    assert server.errors == [], "the scripted model failed; see its errors"


@pytest.fixture(scope="module")
def durable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DurableStream]:
    """A home for the module; its sidecar is stopped at the end. Moments of it are then what they were."""
    home = tmp_path_factory.mktemp("durable") / "home"
    with DurableStream(home) as stream:
        yield stream
    asyncio.run(compared_home(home, size("MOMENTS", 3)))


@pytest.fixture(scope="module")
def opencode(
    request: pytest.FixtureRequest, opencode_binary: Path, model: ModelServer, durable: DurableStream
) -> Iterator[RealOpenCode]:
    """The module's running OpenCode with the plugin, configured by ``OPENCODE``. No process is left of it."""
    config = getattr(request.module, "OPENCODE", {})
    with RealOpenCode(opencode_binary, model.port, config=config, plugins={PLUGIN: durable.plugin()}) as client:
        yield client
        durable.end_with(client)
        wait_until(lambda: client.leftovers() == [], "the end of all processes")


@pytest.fixture
def events(opencode: RealOpenCode) -> Iterator[EventStream]:
    """The events of the module's OpenCode since the test began."""
    with opencode.events() as stream:
        yield stream


@pytest.fixture
def session(opencode: RealOpenCode) -> str:
    """A fresh session of the module's OpenCode."""
    return opencode.create_session()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what each process of the test said last: it may not come again."""
    report = yield
    if report.failed and call.when == "call":
        for name, value in item.funcargs.items():
            if isinstance(value, DurableStream | ModelServer | RealOpenCode):
                report.sections.append((f"the end of what {name} did", value.report()))
    return report
