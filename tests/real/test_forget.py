"""What was said in a session, or about it, is nowhere in the home once the session is forgotten."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.real.background import intents, only, spawn, with_plugin
from tests.real.durable import DurableStream, wait_until
from tests.real.model_server import ModelServer

pytestmark = pytest.mark.real_opencode

WORD = "xylophone"
KEPT = "harpsichord"


def holding(home: Path, word: str) -> list[str]:
    files = [path for path in home.rglob("*") if path.is_file()]
    return [str(path.relative_to(home)) for path in files if word.encode() in path.read_bytes()]


def wakes(durable: DurableStream) -> list[str]:
    return [notice["state"] for notice in durable.lines("notices") if notice["kind"] == "wake"]


def test_forgotten_words_are_in_no_file_and_nothing_is_done_again(
    opencode_binary: Path, model: ModelServer, tmp_path: Path
) -> None:
    with DurableStream(tmp_path / "home") as durable, with_plugin(opencode_binary, model, durable) as client:
        parent, other = client.create_session(WORD), client.create_session("other")
        for session, word in ((parent, WORD), (other, KEPT)):
            client.prompt(session, spawn(f"SAY:{word}", f"play the {word}"))
            wait_until(lambda s=session: [i["state"] for i in intents(durable, s)] == ["completed"], "the work")
            client.prompt(session, f"CALL:notify_user {json.dumps({'message': word})} THEN: SAY:{word}")
            client.prompt_async(session, f"CALL:checkpoint_ask {json.dumps({'question': word})} THEN: SAY:heard {word}")
            durable.cli("checkpoints", only(durable, "ask", background=False)["id"], "--answer", word)
            wait_until(lambda s=session: "heard" in json.dumps(client.messages(s)[-1]), "the answer")
            wait_until(
                lambda: [n["state"] for n in durable.lines("notices") if n["kind"] == "wake"][-1] == "observed", ""
            )
        calls = len(model.requests)
        child = intents(durable, parent)[0]["session"]
        exported = [line["event"] for line in durable.lines("export", parent) if "event" in line]
        told = {event["type"]: event["payload"] for event in exported if event["source"]["adapter"] == "runtime"}
        assert told["intent.created"]["prompt"] == f"SAY:{WORD}" and "intent.completed" in told
        assert told["checkpoint.opened"]["text"] == WORD and told["checkpoint.answered"]["answer"] == [WORD]
        assert WORD in told["notice.queued"]["text"] and KEPT not in json.dumps(exported)
        would = durable.lines("forget", parent)[0]
        assert {each["id"] for each in would["sessions"]} == {parent, child}
        done = durable.lines("forget", parent, "--yes")[0]["done"]
        assert would["records"] == done["records"]
        assert holding(durable.home, WORD) == [] and holding(durable.home, KEPT)
        assert [i["root"] for i in intents(durable)] == [other]
        durable.cli("verify")

        os.kill(durable.wait_linked(), signal.SIGKILL)
        client.prompt(other, spawn("SAY:again bassoon", "again"))
        wait_until(lambda: [i["state"] for i in intents(durable, other)] == ["completed"] * 2, "the next work")
        ours = [request for request in model.requests[calls:] if request.session in (parent, child)]
        assert ours == [] and holding(durable.home, WORD) == []
        durable.cli("verify")
        # A child alone: its words are also in the session above.
        second = intents(durable, other)[0]["session"]
        durable.cli("forget", second, "--yes")
        assert KEPT not in json.dumps([r for r in durable.log(other) if "background-agent" in json.dumps(r)])
        (again,) = intents(durable, other)
        durable.cli("forget", again["session"], "--yes")
        agents = [r["event"] for name, rows in durable.whole_log().items() if name.startswith("agent/") for r in rows]
        left = [(each["type"], each["payload"]) for each in agents if "bassoon" in str(each)]
        assert left == [], "also the prompt: the work was registered before it had a session"
