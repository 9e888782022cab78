"""Only a person decides: at a terminal whose foreground process asks, with the real command line and a real sidecar.

The shapes are those in which a model's shell runs a command.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.background.people.answerers import Answerers
from sidecar.cli.app import COMMANDS, GROUPS
from sidecar.config import Deed
from sidecar.home import Home
from sidecar.link import client as client_module
from sidecar.link.client import ControlClient
from sidecar.link.local import PEER
from sidecar.registry import NoArgs, Requests
from streams.identity import system_identity
from tests.at_terminal import at_terminal
from tests.sidecar.cli.helpers import ROOT, command, environment
from tests.sidecar.life import end_sidecars

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the shapes are commands of Linux")

LIMIT_S = 60
TERMINAL = {"directory": "/", "kernel": "k", "environment": "e"}
DEEDS = {
    "answer": ["checkpoints", "chk_1", "--answer", "once"],
    "apply": ["intents", "int_1", "--apply"],
    "cancel": ["intents", "int_1", "--cancel"],
    "discard": ["intents", "int_1", "--discard"],
    "fork": ["fork", "ses_1", "--at", "1", "--yes"],
    "spawn": ["spawn", "do it", "--directory", "/nowhere"],
}
BEHIND = "import os, sys; os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])"
NONE = {"answer": "no-checkpoint", "apply": "no-intent", "cancel": "no-intent", "discard": "no-intent"}
NONE |= {"fork": "no-log", "spawn": "not-found"}
"""What is wrong with them, once they may ask."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a deep path, and a running sidecar."""
    made = tmp_path_factory.mktemp("person") / ("deep" * 40) / "home"
    made.mkdir(parents=True)
    yield made
    end_sidecars(Home(made))


def said(*words: str, **environ: str) -> str:
    """The code with which a command fails that is run as a model's shell runs it: without a terminal."""
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment(**environ),
        start_new_session=True,
        check=False,
    )
    return code_of(done.stdout + done.stderr)


def code_of(text: str) -> str:
    """The code at the end of a complaint."""
    return text.rstrip().rpartition("[")[2].rstrip("]")


def by_hand(*words: str) -> str:
    """The code with which a command fails that a person runs."""
    with at_terminal() as options:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment(),
            check=False,
            **options,
        )
    return code_of(done.stderr)


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "agent_claim": ("claim", {"agent": "a"}),
    "checkpoint_answer": ("answer", {"checkpoint": "chk_1", "answer": ["once"]}),
    "dlq_drop": ("drop", {"letter": "a"}),
    "reservation_release": ("release", {"session": "a"}),
    "forget": ("forget", {"streams": []}),
    "fork": ("fork", {"stream": "ses_1", "event": "1"}),
    "intent_apply": ("apply", {"intent": "int_1"}),
    "intent_cancel": ("cancel", {"intent": "int_1"}),
    "intent_discard": ("discard", {"intent": "int_1"}),
    "intent_resume": ("spawn", {"intent": "int_1", "terminal": TERMINAL}),
    "machine_apply": ("apply", {"machine": "m", "intent": "int_1", "directory": "/"}),
    "machine_ask": ("spawn", {"machine": "m", "name": "spawn"}),
    "mirror_rebuild": ("rebuild", {}),
    "prune": ("prune", {"request": {"older_than_ms": 1, "max_bytes": None, "streams": []}}),
    "spawn": ("spawn", {"prompt": "do it", "directory": "/"}),
    "terminal": ("spawn", TERMINAL),
}
"""The requests that destroy or decide for a person: the deed, and arguments."""
FREE = {
    *("agents", "checkpoints", "intent_changes", "intents", "metrics", "mirror", "nats", "ping", "requests"),
    "reservations",
    *("status", "dlq_redrive", "import_file", "import_history", "mark", "notify_test", "send", "signal"),
    *("stop", "turn_stop"),
}
"""Those that read, add, or can be taken back."""


async def test_each_request_that_destroys_or_decides_is_refused_without_a_person(home: Path) -> None:
    assert {deed for deed, _ in REQUESTS.values()} == set(get_args(Deed))
    assert said(*command(home, "intents", "int_1", "--cancel")) == "needs-person"  # the sidecar runs now
    async with await ControlClient.connect(Home(home), version="x", nonce=system_identity().nonce) as client:
        known = {each["name"] for each in await client.request("requests")}
        assert known == {*REQUESTS, *FREE} and not FREE & REQUESTS.keys(), "a new request chooses"
        for name, (_, args) in REQUESTS.items():
            with pytest.raises(RequestError) as refused:
                await client.request(name, args)
            assert refused.value.code == "needs-person", name


def test_each_command_is_in_the_table_of_those_that_need_a_person() -> None:
    page = (ROOT / "SECURITY.md").read_text().partition("## What needs a person")[2].partition("\n## ")[0]
    rows = [row.split(" | ", 1) for row in page.splitlines() if row.startswith("| ") and "---" not in row][1:]
    groups = {f"{group} {row.name}" for group, (_, rows) in GROUPS.items() for row in rows}
    known = {row.name for row in COMMANDS} | groups
    found = {what: re.findall("`([^`]+)`", cells) for what, cells in rows}
    named = Counter(re.sub(" --.*", "", word) for words in found.values() for word in words if "--" not in word)
    fenced = [words for what, words in found.items() if "scripts_may" in what]
    deeds = {deed for words in fenced for deed in words if deed in get_args(Deed)}
    assert deeds == set(get_args(Deed))
    assert known <= named.keys() and named.keys() - known <= deeds


@pytest.mark.parametrize("deed", DEEDS)
def test_a_person_at_a_terminal_may_and_a_command_without_one_may_not(home: Path, deed: str) -> None:
    for words in [DEEDS[deed], *([["intents", "int_1", "--undo"]] if deed == "apply" else [])]:
        assert said(*command(home, *words)) == "needs-person"
    assert by_hand(*command(home, *DEEDS[deed])) == NONE[deed]


def test_no_shape_of_a_models_shell_passes_for_a_person(home: Path, tmp_path: Path) -> None:
    words = command(home, *DEEDS["answer"])
    told = tmp_path / "told"
    script = tmp_path / "answer.sh"
    script.write_text(f'"$@" > {told} 2>&1 < /dev/null\n')
    inner = ["/bin/sh", str(script), *words]
    clean = ["env", "-i", f"PYTHONPATH={environment()['PYTHONPATH']}", f"HOME={tmp_path}"]
    shell = " ".join(inner)
    shapes = [
        inner,
        ["setsid", "--wait", "nohup", *inner],
        [*clean, *inner],
        ["setsid", "--wait", *clean, *inner],
    ]
    for shape in shapes:
        said(*shape)
        assert code_of(told.read_text()) == "needs-person", shape
        told.unlink()
    # A terminal of its own shows where it comes from, unless all of that is left behind.
    said("script", "-qec", shell, "/dev/null", OPENCODE="1")
    assert code_of(told.read_text()) == "needs-person"
    said("script", "-qec", shell, "/dev/null", OPENCODE_TERMINAL="1")
    assert code_of(told.read_text()) == "needs-person"
    # In the background of a person's terminal.
    by_hand("/bin/sh", "-c", '"$@"; true', "sh", sys.executable, "-c", BEHIND, *inner)
    assert code_of(told.read_text()) == "needs-person"
    by_hand("/bin/sh", "-c", '"$@"; true', "sh", *inner)
    assert code_of(told.read_text()) == "no-checkpoint"


async def test_the_token_is_no_person(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TCP a program may say of which process it is; only the home's socket lets the system say it."""
    monkeypatch.setattr(client_module, "connected", lambda home: None)
    async with await ControlClient.connect(Home(home), version="x", nonce=system_identity().nonce) as client:
        with pytest.raises(RequestError) as refused:
            await client.request("intent_cancel", {"intent": "int_1", "proof": "0" * 64})
    assert refused.value.code == "needs-person"


async def test_what_an_opencode_started_in_its_own_terminal_is_no_person() -> None:
    async def done(args: NoArgs) -> str:
        return "done"

    with at_terminal() as options:
        opencode = subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & wait"], **options)
        with_it = Path(f"/proc/{opencode.pid}/task/{opencode.pid}/children")
        while not (child := with_it.read_text().split()):
            os.sched_yield()
        for linked, code in (([], ""), ([opencode.pid], "needs-person"), ([int(child[0])], "needs-person")):
            requests = Requests()
            handler = Answerers(linked.copy, (), str).only("spawn", done)
            requests.register("spawn", NoArgs, handler, "")
            PEER.set(int(child[0]))
            if code:
                with pytest.raises(RequestError) as refused:
                    await requests.answer("spawn", {})
                assert refused.value.code == code
            else:
                assert await requests.answer("spawn", {}) == "done"
        opencode.kill()
        os.kill(int(child[0]), 9)
        opencode.wait()
