"""The layer rule holds in the product, and ``tools/layers.py`` catches each kind of breach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tools.layers import IDENTITY, MAKERS, PACKAGES, breaches, faults_in, files


def test_the_layers_hold() -> None:
    assert {path.split("/")[0] for path in files()} == set(PACKAGES)
    assert IDENTITY in files() and len(files()) > 40
    with ThreadPoolExecutor(1) as fresh:  # it makes hundreds of syntax trees, for which see `tests/sources.py`
        assert fresh.submit(breaches).result() == []


DOC = '"""A file."""\n'


@pytest.mark.parametrize(
    ("path", "code", "told"),
    [
        ("streams/a.py", "import bridge", "streams must not import bridge"),
        ("streams/a.py", "from sidecar.app import Sidecar", "streams must not import sidecar.app"),
        ("streams/a.py", "import os, sidecar", "streams must not import sidecar"),
        ("streams/a.py", "def f():\n    from nats.aio import client", "streams must not import nats.aio"),
        ("streams/a.py", "if TYPE_CHECKING:\n    import rich", "streams must not import rich"),
        ("streams/stores/a.py", "from ... import bridge", "streams must not import <beyond the top>"),
        ("streams/a.py", "importlib.import_module('bridge.opencode')", "streams must not import bridge.opencode"),
        ("streams/a.py", "__import__(name)", "streams must not import <computed>"),
        ("streams/log/verify.py", "import aiofiles", "aiofiles is imported in streams/stores/journal/*.py"),
        ("streams/stores/plan.py", "import aiofiles.os", "aiofiles.os is imported in"),
        ("streams/event.py", "from ulid import ULID", "ulid is imported in streams/identity.py only"),
        ("streams/log/verify.py", "import sqlite3", "sqlite3 is imported in streams/stores/sqlite/*.py"),
        ("bridge/a.py", "import sidecar.config", "bridge must not import sidecar.config"),
        ("bridge/a.py", "import aiofiles", "bridge must not import aiofiles"),
        (
            "bridge/nats/jetstream/connection.py",
            "import nats.errors",
            "nats.errors is imported in bridge/nats/jetstream/client*.py only",
        ),
        ("bridge/opencode/link/link.py", "from websockets import connect", "bridge must not import websockets"),
        (
            "sidecar/app.py",
            "from websockets.asyncio import server",
            "websockets.asyncio is imported in",
        ),
        ("streams/stores/plan.py", "from streams.log.reader import LogReader", "streams must not import streams.log"),
        (
            "sidecar/read/a.py",
            "from sidecar.cli.printing.output import one_line",
            "sidecar must not import sidecar.cli",
        ),
        ("sidecar/care/a.py", "from streams.stores.sqlite import reader", "sidecar must not import streams.stores"),
        ("sidecar/record/a.py", "from sidecar.app import Sidecar", "a room may not know what composes it"),
        ("sidecar/agents/a.py", "import orjson", "sidecar/agents must not import orjson"),
        ("sidecar/agents/effects/a.py", "import langchain", "sidecar/agents must not import langchain"),
        ("sidecar/agents/a.py", "from bridge.nats import headers", "sidecar/agents may not know bridge/nats"),
        ("sidecar/agents/a.py", "from sidecar.config import Config", "sidecar/agents may not know sidecar"),
        ("sidecar/app.py", "import nats", "nats is imported in bridge/nats/jetstream/client*.py only"),
        ("streams/a.py", "import time\ntime.time()", "time.time outside"),
        ("streams/a.py", "import time as t\nt.time_ns()", "time.time_ns outside"),
        ("streams/a.py", "from time import time\nnow = time", "time.time outside"),
        ("streams/a.py", "from datetime import datetime\ndatetime.now()", "datetime.datetime.now outside"),
        ("streams/a.py", "import datetime\ndatetime.datetime.utcnow()", "datetime.datetime.utcnow outside"),
        ("streams/a.py", "import datetime as d\nd.date.today()", "datetime.date.today outside"),
        ("bridge/a.py", "import os\nos.urandom(8)", "os.urandom outside"),
        ("bridge/a.py", "from os import urandom\nurandom(8)", "os.urandom outside"),
        ("bridge/a.py", "import random", "random outside"),
        ("bridge/a.py", "from secrets import token_hex", "secrets outside"),
        ("bridge/a.py", "def f():\n    import uuid", "uuid outside"),
        ("sidecar/link/a.py", "import time as t\nt.time()", "time.time outside"),
        ("sidecar/a.py", "from secrets import token_hex", "secrets outside"),
        ("sidecar/app.py", "import time\ntime.time()", "time.time outside"),
        (
            "sidecar/cli/a.py",
            "def f():\n    from streams.identity import system_identity as s\n    s()",
            "system_identity outside",
        ),
        (
            "sidecar/read/a.py",
            "import streams.identity\nstreams.identity.system_identity()",
            "system_identity outside",
        ),
    ],
)
def test_a_breach_is_caught(path: str, code: str, told: str) -> None:
    faults = faults_in(path, DOC + code)
    assert faults and any(told in fault for fault in faults), faults
    assert all(fault.startswith(f"{path}:") for fault in faults)


def test_a_missing_docstring_is_caught() -> None:
    assert faults_in("sidecar/a.py", "import os") == ["sidecar/a.py:1: no module docstring"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (
            "streams/a.py",
            "import os, time\nfrom datetime import datetime\ndatetime.fromisoformat('x'); time.monotonic()",
        ),
        ("streams/a.py", "import orjson, msgspec, pydantic\nfrom streams.event import StreamEvent"),
        ("streams/stores/a.py", "from ..event import StreamEvent\nfrom . import plan"),
        ("streams/stores/journal/files.py", "import aiofiles"),
        ("streams/identity.py", "import secrets, time, random\ntime.time_ns()"),
        *((path, "from streams.identity import system_identity\nsystem_identity()") for path in MAKERS),
        (
            "bridge/opencode/capture/a.py",
            "import streams.event, pydantic, orjson, bridge.opencode.link.link\nevent.time = 5\nrecord.now",
        ),
        (
            "sidecar/link/connection.py",
            "import websockets, rich, bridge.opencode.link.frames, streams\ntime.monotonic()",
        ),
    ],
)
def test_what_is_allowed_is_not_told(path: str, code: str) -> None:
    assert faults_in(path, DOC + code) == []
