"""From OpenCode 1 to 2 under a living sidecar, in one home: one installed plugin file, one log, nothing twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sidecar.install.plugin import PLUGIN_NAME
from tests.real.durable import DurableStream
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tests.real.recorded import expected, family
from tests.real.recorded2 import assert_recorded
from tools.install_opencode import VERSION, VERSION_2, binary_path

pytestmark = pytest.mark.real_opencode


def test_an_upgrade_goes_on_in_the_same_log(opencode_binary: Path, model: ModelServer, durable: DurableStream) -> None:
    with RealOpenCode(opencode_binary, model.port, serve=False) as one:
        durable.in_project(one, "install")
        plugin = one.config_directory / "plugin" / PLUGIN_NAME
        installed = plugin.read_bytes()
        one.start()
        old = one.create_session()
        one.prompt(old, 'CALL:bash {"command": "echo x", "description": "d"} THEN: SAY:in one')
        sidecar = durable.wait_linked()
        binary = binary_path(VERSION_2)
        with RealOpenCode2(binary, model.port, root=one.root) as two:
            new = two.new_session()  # a terminal of 1 is still open
            two.prompt(new, 'CALL:shell {"command": "echo x"} THEN: SAY:in two')
            one.prompt(old, "SAY:still in one")
            two.wait(new)
            durable.assert_recorded(expected(family(one, old)))
            assert versions(durable) == {VERSION, VERSION_2}
            told = [
                (each["name"], each["level"])
                for each in map(
                    json.loads, durable.in_project(one, "doctor", "--json", path=[binary.parent]).splitlines()
                )
                if each["name"] in ("opencode", "opencode 2", "plugin", "copies", "versions")
            ]
            assert told == [
                *[("opencode", "ok")] * 2, ("plugin", "ok"), ("versions", "ok"), ("opencode 2", "ok")
            ]  # fmt: skip
            one.terminate()
            assert {old, new} <= {info["id"] for info in two.api("GET", "/api/session?limit=100")["data"]}
            for session in (new, old):  # the second is one that 2 took over from 1
                two.prompt(session, "SAY:still in two")
                two.wait(session)
            two.until(lambda: versions(durable) == {VERSION_2}, "the end of the link of 1")
            two.restart()
            two.prompt(again := two.new_session(), "SAY:after the restart")
            two.wait(again)
            two.until(lambda: versions(durable) == {VERSION_2}, "a link of the service that was started again")
            for session in (new, again):
                assert_recorded(durable, two, session)
            inputs = [r["event"]["type"] for r in durable.log(old)].count("human.input")
            assert inputs == 3, "what 1 recorded of a session that 2 took over is not recorded again"
            keys = Counter(r["event"]["idempotency_key"] for records in durable.whole_log().values() for r in records)
            assert set(keys.values()) == {1} and {old, new} <= set(durable.whole_log())
            assert not durable.lines("query", "--type", "capture.gap"), "every subscription heard everything"
            assert durable.running() == sidecar and plugin.read_bytes() == installed
            durable.end_with(two, one)


def versions(durable: DurableStream) -> set[str]:
    """The versions of the OpenCodes that are linked."""
    return {link["opencode_version"] for link in durable.status()["links"]}
