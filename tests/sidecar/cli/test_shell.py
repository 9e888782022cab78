"""The command line as a program: help, start-up, exit codes, and errors: each has a code, printed and listed."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from typer.core import TyperGroup
from typer.main import get_command

import bridge
import sidecar
import streams
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.deciding import AgentFailed
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import UnknownAgent
from sidecar.cli.app import app, build
from sidecar.cli.shared import command
from sidecar.cli.shared.command import code_of, explain
from sidecar.failure import Failure
from sidecar.read.find_by_id import SelectError
from sidecar.version import VERSION
from streams.errors import CodedError, CorruptLog, StoreUnavailable
from tests.sidecar.cli.helpers import LIMIT_SECONDS, ROOT, environment, run, run_process
from tests.sources import nodes

GROUP = get_command(app)
COMMANDS = sorted(info.name or "" for info in app.registered_commands)
GROUPED = sorted(
    f"{group.name} {info.name}"
    for group in app.registered_groups
    if group.typer_instance is not None
    for info in group.typer_instance.registered_commands
)
HEAVY = (
    "asyncio",
    "pydantic",
    "rich",
    "websockets",
    "orjson",
    "msgspec",
    "ulid",
    "bridge",
    "streams.event",
)


@pytest.mark.parametrize("name", [*COMMANDS, *GROUPED])
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = CliRunner().invoke(GROUP, [*name.split(), "--help"], prog_name="durable-stream")
    assert done.exit_code == 0
    assert f"Example:\n    durable-stream {name}" in done.stdout


@pytest.mark.parametrize("name", ["", *COMMANDS, *GROUPED])
def test_every_example_of_the_help_can_be_parsed(name: str) -> None:
    out = CliRunner().invoke(GROUP, [*name.split(), "--help"], prog_name="durable-stream").stdout
    examples = re.findall(r"^    durable-stream (.*?)(?:  .*)?$", out.partition("Example:")[2], re.M)
    assert examples
    group = GROUP
    for example in examples:
        root = group.make_context("durable-stream", shlex.split(example))
        assert isinstance(group, TyperGroup)
        verb, command, rest = group.resolve_command(root, [*root._protected_args, *root.args])
        if isinstance(command, TyperGroup):
            root = command.make_context(verb, rest, parent=root)
            inner, command, rest = command.resolve_command(root, [*root._protected_args, *root.args])
            verb = f"{verb} {inner}"
        assert command is not None and verb == (name or verb)
        command.make_context(verb, rest, parent=root)  # a wrong option or a missing argument raises


def test_help_lists_every_command_and_an_example() -> None:
    out = CliRunner().invoke(GROUP, ["-h"], prog_name="durable-stream").stdout
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "Example:" in out and all(len(line) <= 80 for line in out.splitlines())


def test_the_list_of_commands_alone_looks_the_same() -> None:
    full, listed = (
        CliRunner().invoke(get_command(each), ["-h"], prog_name="durable-stream") for each in (app, build(listing=True))
    )
    assert full.exit_code == listed.exit_code == 0 and full.stdout == listed.stdout


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has loaded when it ends, and those with which it asks a running sidecar."""
    program = (
        f"import sys, json; sys.argv = {['durable-stream', *arguments]!r}\n"
        "from sidecar.cli import main\n"
        "try: main()\n"
        "except SystemExit:\n"
        "    if 'sidecar.care.checks.running_sidecar' in sys.modules: import sidecar.link.client\n"
        "    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=environment(), timeout=30
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy() -> None:
    loaded = loaded_by("--help")
    assert "sidecar.cli.app" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize("verb", ["streams", "log", "status"])
def test_what_a_short_command_reads_with_is_light(recorded_home: Path, verb: str) -> None:
    loaded = loaded_by("--home", str(recorded_home), verb)
    assert "streams.log.reader" in loaded and ("sidecar.link.client" in loaded) == (verb == "status")
    assert not loaded & {"websockets", "rich", "pydantic", "nats", "platformdirs"}


def test_only_a_command_that_runs_imports_what_it_works_with(recorded_home: Path) -> None:
    """Its help does not. A word that only looks like a wish for help does not keep it from running."""
    assert "sidecar.read.find_by_id" not in loaded_by("--home", str(recorded_home), "query", "--help")
    done = run_process(recorded_home, "query", "--text", "--help")
    assert done.code == 0 and "No event matches." in done.err


def test_version(empty: Path) -> None:
    assert run_process(empty, "--version").out == f"durable-stream {VERSION}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["show"], ["log", "s", "--from", "-1"], ["play", "x", "--speed", "0"], ["--nope"]]
)
def test_wrong_usage_is_2(empty: Path, arguments: list[str]) -> None:
    done = run(empty, *arguments)
    assert done.code == 2 and "Usage:" in done.err


def test_ctrl_c_ends_a_command_whose_thread_answers_a_long_question() -> None:
    """Python would wait for the thread."""
    program = """
import asyncio, threading
from sidecar.cli.shared import command

async def long(run):
    print("asked", flush=True)
    await asyncio.to_thread(threading.Event().wait)

command._result(long, (None,), {})
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"asked\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(LIMIT_SECONDS) == 130
        finally:
            process.kill()


def test_an_unexpected_error_is_one_line_too(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, **options: bool) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("sidecar.read.find_by_id.LogReader", fail)
    done = run(empty, "streams")
    assert done.code == 1 and done.err.count("\n") == 1
    assert "unexpected RuntimeError: first line second line" in done.err


def test_our_errors_and_the_systems_are_explained() -> None:
    assert explain(StoreUnavailable("the disk is full", "make room")) == "the disk is full; make room"
    assert explain(Failure("no-log", "what; do that")) == "what; do that"
    assert explain(PermissionError(13, "Permission denied", "/x")).startswith("/x: Permission denied; ")


def test_play_of_a_missing_file(tmp_path: Path) -> None:
    done = run(tmp_path / "home", "play", "nowhere.jsonl")
    assert done.code == 1 and "nowhere.jsonl: this file does not exist" in done.err


class TestInstall:
    def test_round_trip(self, tmp_path: Path) -> None:
        place = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
        home = tmp_path / "home"
        plugin = tmp_path / "config" / "opencode" / "plugin" / "durable-stream.js"
        done = run(home, "install", "--json", **place)
        assert done.objects()[0] | {"done": []} == {
            "action": "install", "scope": "global", "plugin": str(plugin), "changed": True, "done": [],
        }  # fmt: skip
        assert str(home) in plugin.read_text()
        again = run(home, "install", "--global", **place)
        assert again.code == 0 and "up to date" in again.out and "Restart" not in again.out
        done = run(home, "uninstall", **place)
        assert done.code == 0 and not plugin.exists() and str(home) in done.out

    def test_two_copies_are_warned_of(self, tmp_path: Path) -> None:
        place = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path)}
        (tmp_path / "project").mkdir()
        run(tmp_path / "home", "install", **place)
        done = run(tmp_path / "home", "install", "--project", str(tmp_path / "project"), **place)
        assert done.code == 0 and "both copies" in done.err and "uninstall --global" in done.err

    def test_a_project_that_is_not_there(self, tmp_path: Path) -> None:
        done = run(tmp_path, "install", "--project", str(tmp_path / "none"))
        assert done.code == 1 and "not-found" in done.err

    def test_both_places_at_once_is_wrong_usage(self, tmp_path: Path) -> None:
        assert run(tmp_path, "install", "--global", "--project", str(tmp_path)).code == 2


def test_doctor_exits_with_1_for_a_problem(tmp_path: Path) -> None:
    done = run(tmp_path, "doctor", "--json", XDG_CONFIG_HOME=str(tmp_path / "config"))
    levels = {check["name"]: check["level"] for check in done.objects()}
    assert (done.code, levels["plugin"], levels["config"]) == (1, "problem", "ok")
    plain = run(tmp_path, "doctor", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert "problem  plugin: not installed" in plain.out


KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")
ROW = re.compile(r"^\| .+? \| (.+) \|$", re.M)
CODE = re.compile(rf"`({KEBAB.pattern})`")
INTERNAL = {
    "streams.bus": "the bus is used by programs, and no command lets its errors through",
    "streams.stores.commit.WouldStall": "control flow within the store",
    "streams.stores.sqlite.removed.DamagedRow": "becomes CorruptLog",
    "streams.stores.head.BadLine": "becomes CorruptLog",
    "streams.stores.journal.whole_log.Moved": "control flow of a read",
    "streams.stores.sqlite.deriving.NotDerived": "the records move without the tables",
    "streams.stores.sqlite.cursors_and_snapshots.NotSaved": "the records move without the hints",
    "bridge.opencode.link": "ends a link, or becomes ClientError",
    "bridge.nats.l0": "a message on the wire",
    "bridge.nats.headers": "a message on the wire",
    "bridge.nats.jetstream.client_errors": "becomes NatsError",
    "sidecar.mirror.calling": "a failed effect",
    "sidecar.agents.effects.claims.ClaimLost": "control flow of the runner of effects",
    "sidecar.mirror.server": "shown by `status`",
    "sidecar.mirror.follower": "control flow of the mirror",
    "sidecar.agents": "a dead letter, a line of `agents`, or becomes RequestError",
    "sidecar.background": "a failed effect, the model's tool result, or becomes RequestError",
    "sidecar.record.opencode2": "a service's state in `status` and `doctor`",
    "sidecar.care.checks.running_sidecar": "a line of `status` and `doctor`",
}
"""Exceptions that no command ends with, by the beginning of their names, and why."""
CARRIED = {RequestError, Failure, SelectError, CodedError}
"""Their codes are given where they are raised."""


def modules() -> Iterator[str]:
    for package in (streams, bridge, sidecar):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield found.name


def errors() -> list[type[Exception]]:
    """Every exception class that a command can end with."""
    found = {}
    for name in modules():
        for value in vars(importlib.import_module(name)).values():
            if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == name:
                full = f"{name}.{value.__qualname__}"
                if value not in CARRIED and not full.startswith(tuple(INTERNAL)):
                    found[full] = value
    return list(found.values())


def given(names: set[str]) -> set[str]:
    """The codes given where an error of one of these classes is raised."""
    found = set()
    for node in nodes("sidecar"):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names):
            continue
        first = node.args[0]
        for part in first.values if isinstance(first, ast.BoolOp) else [first]:
            if isinstance(part, ast.Constant):
                found.add(str(part.value))
    return found


def nats_codes() -> set[str]:
    """The codes that replace those of two classes."""
    folder = ROOT / "bridge" / "nats" / "jetstream"
    sources = ((folder / f"{name}.py").read_text() for name in ("client_errors", "errors", "options"))
    return {code for text in sources for code in re.findall(r'"(nats-[a-z-]+)"', text)}


def all_codes() -> set[str]:
    system = {
        *(code for code, _ in (*command._SYSTEM_ERRORS.values(), command._SYSTEM)),
        command.UNEXPECTED,
        "disk-error",
    }
    carried = given({"Failure", "RequestError", "InputRefused", "CopyError", "SelectError"})
    agents = {AgentFailed.code, NotOwner.code, UnknownAgent.code}
    return system | carried | agents | nats_codes() | {vars(error)["code"] for error in errors()}


def test_every_class_has_a_code_of_its_own() -> None:
    owned: dict[str, type[Exception]] = {}
    for error in errors():
        code = vars(error).get("code")
        assert isinstance(code, str), f"{error.__qualname__} of {error.__module__} has no code"
        assert owned.setdefault(code, error) is error, f"{error} has the code of {owned[code]}"
    assert len(owned) > 20


def test_codes_are_kebab_case_and_listed_once_beside_what_to_do() -> None:
    codes = all_codes()
    assert [code for code in codes if not KEBAB.fullmatch(code)] == []
    page = (ROOT / "docs" / "operations.md").read_text().split("## Error codes")[1].split("\n## ")[0]
    # In brackets are remarks, which may name commands.
    rows = [CODE.findall(re.sub(r"\([^)]*\)", "", row)) for row in ROW.findall(page)]
    listed = [found[0] for row in rows for found in row]
    assert sorted(listed) == sorted(codes)
    assert all(row == sorted(row) for row in rows)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptLog("log/0", 3, 7, "half a line"), "log-damaged"),
        (Failure("no-log", "nothing yet"), "no-log"),
        (SelectError("ambiguous", "matches two"), "ambiguous"),
        (SelectError("pruned", "pruned", "ses_1"), "pruned"),
        (RequestError("still-needed", "a turn is in progress"), "still-needed"),
        (PermissionError(13, "Permission denied", "/x"), "no-permission"),
        (OSError(5, "Input/output error"), "system"),
        (RuntimeError("what"), "unexpected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_has_the_code_of_its_class_or_its_own(error: Exception, code: str) -> None:
    assert code_of(error) == code


def test_a_command_prints_it_at_the_end_of_its_one_line(recorded_home: Path, tmp_path: Path) -> None:
    for arguments in (["log", "nobody"], ["show", "01NONE"]):
        done = run(recorded_home, *arguments)
        assert done.code == 1 and re.fullmatch(r"durable-stream: .+ \[not-found\]\n", done.err), done
    done = run(tmp_path / "none", "log")
    assert done.code == 1 and done.err.endswith(" [no-log]\n"), done
