"""``make demo-team``: two machines of a team, here on one. Each has its own home and OpenCode. They share a Postgres
and a NATS server.

OpenCode, the sidecars and the servers are real; the models follow a script. Everything is in temporary directories.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from rich.console import Console

from tests.nats_servers import TOKEN, real_server
from tests.postgres import Postgres, programs
from tests.real.durable import EXECUTABLE, PLUGIN, DurableStream, wait_until
from tests.real.model_server import MODEL_ID, ModelRequest, ModelServer, Step
from tests.real.opencode import RealOpenCode
from tools.demo.background import last_text
from tools.demo.telling import Teller
from tools.install_opencode import binary_path

FIX = "Fix the login; reserve what you edit."
FORM = "Tidy up the login form."
ASK = "Let the desk run the slow tests, and tell me."
TASK = {"title": "Run the slow tests", "prompt": "Run the slow tests, and say what fails."}
SHELL = {"command": "echo 52 tests passed", "description": "Run the slow tests"}
RESULT = "All 52 slow tests pass."
REMOTE = "git@git.example.org:team/shop.git"
FILE = "src/auth/login.py"
PRICE = {"input": 3, "output": 15}
"""Dollars for a million tokens."""
USED = 9_000
"""The tokens of each request."""


class Machine(NamedTuple):
    name: str
    durable: DurableStream
    client: RealOpenCode


class Models:
    """The models of all sessions. ``desk`` is the other machine, with its project, as a tool names it."""

    def __init__(self) -> None:
        self.desk = ""

    def answer(self, request: ModelRequest) -> Step | None:
        if not request.has_tools:
            return Step(say="A title", usage=10)
        step = self._step(request.user_text, sum(m.get("role") == "assistant" for m in request.since_user()), request)
        step.usage = USED
        return step

    def _step(self, text: str, steps: int, request: ModelRequest) -> Step:
        if "background-agent" in text:
            return Step(say=f"The desk is done: {RESULT}")
        if text.startswith(FIX):
            reserve = {"paths": ["src/auth"], "why": "it rejects valid passwords", "minutes": 30}
            return Step(say="I reserved src/auth/, and begin.") if steps else Step(calls=[("reserve", reserve)])
        if text.startswith(FORM):
            told = any("is reserved by" in str(m.get("content")) for m in request.since_user())
            said = "The laptop has src/auth/ now, so I leave it alone." if told else "I edit it."
            return Step(say=said) if steps else Step(calls=[("read", {"filePath": FILE})])
        if text.startswith(ASK):
            spawn = {**TASK, "on": self.desk}
            return Step(say="It runs on the desk.") if steps else Step(calls=[("agent_spawn", spawn)])
        return Step(say=RESULT) if steps else Step(calls=[("bash", SHELL)])


class Demo(Teller):
    """One run."""

    def run(self, directory: Path) -> bool:
        """Tell the story; return whether everything held."""
        models = Models()
        with ExitStack() as stack:
            self.console.print("Starting Postgres, NATS and two OpenCodes …", style="dim")
            postgres = Postgres(fsync="off")
            stack.callback(postgres.close)
            nats = stack.enter_context(real_server(directory / "nats"))
            model = stack.enter_context(ModelServer())
            model.answer = models.answer
            servers = (postgres.start(), nats.port, model)
            with ThreadPoolExecutor() as pool:
                allowed: dict[str, Any] = {"laptop": {}, "desk": {"laptop": ["spawn", "answer"]}}
                begin = lambda name: machine(stack, directory / name, allowed[name], *servers)  # noqa: E731
                laptop, desk = pool.map(begin, allowed)
            models.desk = f"desk:{desk.client.project}"
            return self._story(laptop, desk)

    def _story(self, laptop: Machine, desk: Machine) -> bool:
        fixing = laptop.client.create_session("Fix the login")
        self._asks(laptop, fixing, FIX)
        self.say("laptop", f"  {last_text(laptop.client, fixing)}")
        form = desk.client.create_session("Tidy up the form")
        wait_until(lambda: desk.durable.lines("reservations"), "the reservation on the desk")
        self._asks(desk, form, FORM)
        (read,) = (part["state"]["output"] for part in desk.client.parts(form, "tool"))
        told = re.search(r"\[Durable Stream: (.*)\. Do not", read)
        self.say("desk", f"  its model reads the file, and with it: {told[1] if told else read}", "bold yellow")
        self.say("desk", f"  {last_text(desk.client, form)}")

        self._asks(laptop, fixing, ASK)
        self.say("laptop", f"  {last_text(laptop.client, fixing)}")
        (question,) = wait_until(lambda: laptop.durable.lines("checkpoints", "--on", "desk"), "the question")
        self.say("desk", f"  asks: may I run `{SHELL['command']}`?", "bold yellow")
        self.say("you", f"durable-stream checkpoints --on desk {question['id'][:8]} --answer once    (on the laptop)")
        laptop.durable.cli("checkpoints", "--on", "desk", question["id"], "--answer", "once")
        wait_until(lambda: RESULT in last_text(laptop.client, fixing), "the result on the laptop")
        self.say("laptop", f"  {last_text(laptop.client, fixing)}", "bold green")
        return self._page(laptop, fixing, form, told is not None)

    def _asks(self, machine: Machine, session: str, text: str) -> None:
        self.say(machine.name, f"you: {text}")
        machine.client.prompt(session, text)

    def _page(self, laptop: Machine, fixing: str, form: str, is_told: bool) -> bool:
        """What one page shows of both machines."""
        with inspecting(laptop.durable.home) as page:
            wanted = {(laptop.name, fixing), ("desk", form)}
            rows = wait_until(lambda: shown(page, wanted), "both machines on the page")
            self.say("you", f"durable-stream inspect --team    ({page.split('#')[0]})")
            for row in rows:
                cost = f"${row.get('cost') or 0:.2f}"
                self.say("", f"{row['machine']:8}{cost:>7}  {row['title']}")
        costs = {row["machine"]: row["cost"] for row in laptop.durable.lines("costs", "--team")}
        self.say("you", "durable-stream costs --team")
        for name, cost in sorted(costs.items()):
            self.say("", f"{name:8}${cost:.2f}")
        held = [row["path"] for row in laptop.durable.lines("reservations")]
        wakes = sum("background-agent" in json.dumps(message) for message in laptop.client.messages(fixing))
        counts = {"machines on one page": len(costs), "results told to the laptop": wakes, "paths reserved": len(held)}
        self.sums(counts)
        is_right = is_told and wakes == 1 and held == ["src/auth/"] and sorted(costs) == ["desk", "laptop"]
        self.end(is_right, "Two machines worked as one team, and each keeps its own log.")
        return is_right


def machine(
    stack: ExitStack, home: Path, allow: dict[str, list[str]], postgres: Postgres, nats: int, model: ModelServer
) -> Machine:
    """A home and its OpenCode, in a clone of the team's repository. ``allow``: what other machines may do there."""
    name = home.name
    home.mkdir(mode=0o700)
    rights = "".join(f"{other} = {json.dumps(deeds)}\n" for other, deeds in allow.items())
    (home / "config.toml").write_text(
        f'[team]\ndatabase = "{postgres.address()}"\nmachine = "{name}"\n[worker]\nlog = "team"\n'
        f'[nats]\nmode = "external"\nservers = ["nats://{TOKEN}@127.0.0.1:{nats}"]\n[machines.allow]\n{rights}'
    )
    durable = stack.enter_context(DurableStream(home))
    if not allow:
        durable.start()  # it says which tools there are, because one of them reaches other machines
    models = {"mock": {"models": {MODEL_ID: {"cost": PRICE}}}}
    config = {"provider": models, "permission": {"bash": "ask"}}
    files = {FILE: "def login(name, password):\n    return password is STORED[name]\n"}
    client = stack.enter_context(
        RealOpenCode(
            binary_path(),
            model.port,
            plugins={PLUGIN: durable.plugin()},
            plugin_scope="global",
            config=config,
            files=files,
        )
    )
    subprocess.run(["git", "remote", "add", "origin", REMOTE], cwd=client.project, check=True)
    durable.terminal = client.environment()
    client.sessions()  # loads the plugin, which starts the sidecar: what others ask for may do what this OpenCode may
    durable.wait_linked()
    return Machine(name, durable, client)


@contextmanager
def inspecting(home: Path) -> Iterator[str]:
    """The link of the page over the team, while it is served."""
    command = [EXECUTABLE, "--home", home, "inspect", "--team", "--no-browser"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def shown(page: str, wanted: set[tuple[str, str]]) -> list[dict[str, Any]]:
    """The sessions on the page, once all that are wanted are there; else none."""
    address, _, secret = page.partition("#")
    request = Request(f"{address}api/sessions", headers={"authorization": f"Bearer {secret}"})
    with urlopen(request) as answer:
        rows: list[dict[str, Any]] = json.load(answer)["sessions"]
    return rows if wanted <= {(row["machine"], row["own"]) for row in rows} else []


def main(console: Console | None = None) -> int:
    """Run the demo; 0 if everything held."""
    console = console or Console(highlight=False)
    console.print()
    console.print("Two machines of a team: reservations, work for the other one, one page", style="bold")
    console.print()
    try:
        programs()
    except AssertionError as error:
        console.print(str(error), style="bold red")
        return 1
    with tempfile.TemporaryDirectory(prefix="durable-stream-demo-") as directory:
        return 0 if Demo(console, 7).run(Path(directory)) else 1


if __name__ == "__main__":
    sys.exit(main())
