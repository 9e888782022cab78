"""The second half of ``make demo``: background work that outlives the editor and two kills, and reaches the phone.

OpenCode, the sidecar and the kills are real. The model follows a script, and the phone is a local HTTP server.
Everything is in temporary directories.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.real.durable import PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelRequest, ModelServer, Step
from tests.real.opencode import RealOpenCode
from tests.sidecar.background.receiver import Receiver
from tools.demo.telling import Teller
from tools.install_opencode import binary_path

PROMPT = "Find out in the background which tests are slow, and tell me."
TASK = {"title": "Find slow tests", "prompt": "Run the tests and name the slowest."}
RESULT = "test_login takes 41 s of 52 s: it waits for a timeout."
GATE = "the tests run"
SHELL = {"command": "echo 52 tests in 52 s", "description": "Run the tests"}


def story(request: ModelRequest) -> Step | None:
    """The model: the parent spawns an agent and passes its result on; the agent runs the tests, which takes long."""
    if not request.has_tools:
        return Step(say="Find slow tests")
    text, steps = request.user_text, sum(m.get("role") == "assistant" for m in request.since_user())
    if text.startswith(PROMPT):
        return Step(say="It runs in the background.") if steps else Step(calls=[("agent_spawn", TASK)])
    if "background-agent" in text:
        return Step(say="The background agent is done. " + RESULT)
    # Resumed, the agent has its history, but answers another message.
    worked = any(m.get("role") == "tool" for m in request.messages)
    return Step(say=RESULT, hold=GATE) if worked else Step(calls=[("bash", SHELL)])


class Demo(Teller):
    """One run."""

    def run(self, directory: Path) -> bool:
        """Tell the story; return whether everything held."""
        with Receiver() as phone, ModelServer() as model, DurableStream(directory / "home") as durable:
            model.answer = story
            durable.home.mkdir(mode=0o700)
            notify = f"[notify]\nurls = [{json.dumps(phone.url)}]\nmin_seconds = 0\nescalate_after_seconds = 0\n"
            (durable.home / "config.toml").write_text(notify)
            durable.start()
            plugins = {PLUGIN: durable.plugin()}
            self.console.print("Starting OpenCode …", style="dim")
            with RealOpenCode(binary_path(), model.port, plugins=plugins, plugin_scope="global") as client:
                return self._story(phone, model, durable, client)

    def _story(self, phone: Receiver, model: ModelServer, durable: DurableStream, client: RealOpenCode) -> bool:
        parent = client.create_session("Slow tests")
        self.say("you", PROMPT)
        client.prompt(parent, PROMPT)
        intent = self._intent(durable, "running")
        model.wait_held(GATE)
        self.say("OpenCode", f"starts {intent['id'][:12]}…, “{intent['title']}”, in a session of its own")
        self.mark("you close OpenCode", "bold yellow")
        client.terminate()
        sidecar = durable.wait_running()
        os.kill(sidecar, signal.SIGKILL)
        self.mark(f"kill -9 {sidecar}: the sidecar", "bold red")
        again = durable.wait_running({sidecar})
        self.say("sidecar", f"is back (pid {again}), and the agent never stopped")
        headless = int(json.loads((durable.home / "headless.json").read_text())["servers"][-1]["pid"])
        os.kill(headless, signal.SIGKILL)
        self.mark(f"kill -9 {headless}: the OpenCode that runs the agent", "bold red")
        resumed = wait_until(lambda: [i for i in durable.lines("intents") if i["resumes"]], "the agent's return")[0]
        self.say("agent", "goes on in the same session")
        model.release(GATE)
        wait_until(lambda: phone.taken, "the message on the phone")
        self.say("phone", " ".join(str(phone.taken[0]["message"]).split()), "bold green")
        client.start()
        self.mark("you open OpenCode again", "bold yellow")
        wait_until(lambda: "done" in last_text(client, parent), "the parent's answer")
        self.say("OpenCode", last_text(client, parent))
        return self._sums(phone, durable, client, parent, str(resumed["session"]))

    def _intent(self, durable: DurableStream, state: str) -> dict[str, Any]:
        wait_until(lambda: [i["state"] for i in durable.lines("intents")] == [state], f"an intent that is {state}")
        return dict(durable.lines("intents")[0])

    def _sums(self, phone: Receiver, durable: DurableStream, client: RealOpenCode, parent: str, session: str) -> bool:
        children = [child["id"] for child in client.children(parent)]
        wakes = sum("background-agent" in json.dumps(message) for message in client.messages(parent))
        found: dict[str, tuple[Any, Any]] = {
            "sessions of the agent": (children, [session]),
            "results told to the parent": (wakes, 1),
            "messages on the phone": (len(phone.taken), 1),
        }
        self.sums({name: len(got) if isinstance(got, list) else got for name, (got, _) in found.items()})
        held = self._intent(durable, "completed")["session"] == session and all(a == b for a, b in found.values())
        self.end(held, "Nothing was lost, and nothing came twice.")
        return held


def last_text(client: RealOpenCode, session: str) -> str:
    """The last words of a session's model."""
    parts = client.messages(session)[-1].get("parts", [])
    return " ".join(str(part.get("text", "")) for part in parts if part.get("type") == "text").strip()


def main(console: Console | None = None) -> int:
    """Run the demo; 0 if everything held."""
    console = console or Console(highlight=False)
    console.print()
    console.print("A background agent outlives OpenCode and two kills", style="bold")
    console.print()
    with tempfile.TemporaryDirectory(prefix="durable-stream-demo-") as directory:
        return 0 if Demo(console).run(Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
