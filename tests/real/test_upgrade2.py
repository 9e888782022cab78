"""From OpenCode 1 to 2 under a living sidecar: one home, one installed plugin file, one log, nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.real.durable import DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded import expected, family
from tests.real.recorded2 import assert_event_for_event, assert_recorded, outcomes
from tools.install_opencode import VERSION, VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode


def test_an_upgrade_goes_on_in_the_same_log(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> None:
    with RealOpenCode(opencode_binary, model.port, serve=False) as one:
        durable.in_project(one, "install")
        one.start()
        old = one.create_session()
        one.prompt(old, 'CALL:bash {"command": "echo x", "description": "d"} THEN: SAY:in one')
        sidecar = durable.wait_linked()
        binary = binary_path(VERSION_2)
        with RealOpenCode2(binary, model.port, root=one.root, config={"snapshot": False}) as two:
            new = two.new_session()  # a terminal of 1 is still open
            two.prompt(new, 'CALL:shell {"command": "echo x"} THEN: SAY:in two')
            one.prompt(old, "SAY:still in one")
            two.wait(new)
            assert_recorded(durable, two, new)
            durable.assert_recorded(expected(family(one, old)))
            assert {link["opencode_version"] for link in durable.status()["links"]} == {VERSION, VERSION_2}
            found = durable.in_project(one, "doctor", "--json", path=[binary.parent]).splitlines()
            told = {each["name"]: each["level"] for each in map(json.loads, found)}
            assert {name: told[name] for name in ("opencode", "opencode2", "opencode 2", "plugin")} == {
                "opencode": "ok", "opencode2": "ok", "opencode 2": "ok", "plugin": "ok",
            }  # fmt: skip
            one.terminate()
            two.prompt(new, "SAY:still in two")
            two.wait(new)
            assert old not in {info["id"] for info in two.api("GET", "/api/session?limit=100")["data"]}
            assert_event_for_event(durable, two, new)
            assert [outcomes(durable.log(each), each) for each in (old, new)] == [["completed"] * 2] * 2
            keys = Counter(r["event"]["idempotency_key"] for records in durable.whole_log().values() for r in records)
            assert set(keys.values()) == {1}
            assert durable.running() == sidecar
            durable.end_with(two, one)
