"""The phone, with the real client: a question, answered by its link, then the "done", though OpenCode is closed.

The phone's service fails twice.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode, free_port
from tests.searching import files_with
from tests.sidecar.background.receiver import SECRET, Receiver

pytestmark = pytest.mark.real_opencode


def press(link: str, answer: str) -> int:
    """Press a button of the page behind a link."""
    form = urllib.parse.urlencode({"answer": answer}).encode()
    with urllib.request.urlopen(link, form, timeout=30) as page:
        return int(page.status)


def test_the_phone_answers_and_is_told_when_opencode_is_closed(
    opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    with Receiver(failing=2) as phone, DurableStream(tmp_path / "home") as durable:
        durable.home.mkdir(mode=0o700)
        config = durable.home / "config.toml"
        notify = f"[notify]\nurls = [{json.dumps(phone.url)}]\nmin_seconds = 0\nescalate_after_seconds = 0.5\n"
        config.write_text(f"{notify}answer_port = {free_port()}\n")
        durable.start()
        options = {"plugins": {PLUGIN: durable.plugin()}, "plugin_scope": "global"}
        with RealOpenCode(opencode_binary, model.port, **options) as client:  # type: ignore[arg-type]
            parent = client.create_session("parent")
            asked = f"CALL:checkpoint_ask {json.dumps({'question': 'Ship it?'})}THEN: HOLD:closed SAY:forty two"
            prompt = json.dumps({"prompt": asked, "title": "count to it"})
            client.prompt(parent, f"CALL:agent_spawn {prompt}THEN: SAY:started")
            wait_until(lambda: phone.taken, "the question on the phone")
            client.terminate()
            link = re.search(r"http\S+", phone.taken[0]["message"])
            assert link is not None and press(link[0], "yes, do") == 200
            model.wait_held("closed")
            model.release("closed")
            wait_until(lambda: len(phone.taken) == 2, "the end on the phone")
            (intent,) = durable.lines("intents")
            assert intent["state"] == "completed"

            def mine() -> list[dict[str, Any]]:
                rows = [each for each in durable.lines("notices") if each["about"] == intent["id"]]
                return [each for each in rows if each["kind"] == "alert"]

            # The phone has the message before the sidecar records that it was sent.
            wait_until(lambda: [len(each["channels"]) for each in mine()] == [2], "the record of both channels")
            (alert,) = mine()
            assert (alert["about"], alert["session"], alert["state"]) == (intent["id"], parent, "sent")
            assert [(e["channel"].split(":")[0], e["state"]) for e in alert["channels"]] == [
                ("toast", "absent"),
                ("json", "sent"),
            ]
            assert "count to it" in phone.taken[1]["message"]
        assert (phone.asked, len(phone.taken)) == (4, 2)
        durable.stop()
        signature = link[0].rpartition("/")[2]
        assert files_with(durable.home, SECRET) == [config.name]
        assert files_with(durable.home, signature) == []
