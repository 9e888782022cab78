"""Error codes: every error that a user can see has one; it is printed and listed in docs/operations.md."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import bridge
import sidecar
import streams
from bridge.opencode.link.protocol import RequestError
from sidecar.agents.deciding import AgentFailed
from sidecar.agents.owner import NotOwner
from sidecar.agents.runtime import UnknownAgent
from sidecar.cli.shared import command
from sidecar.cli.shared.command import code_of
from sidecar.failure import Failure
from sidecar.read.select import SelectError
from streams.errors import CodedError, CorruptLog
from tests.sidecar.cli.helpers import ROOT, run

KEBAB = re.compile(r"[a-z]+(-[a-z]+)*")
ROW = re.compile(r"^\| .+? \| (.+) \|$", re.M)
CODE = re.compile(rf"`({KEBAB.pattern})`")

INTERNAL = {
    "streams.bus": "the bus is used by programs, and no command lets its errors through",
    "streams.stores.commit.WouldStall": "control flow within the store",
    "streams.stores.sqlite.removed.DamagedRow": "becomes CorruptLog",
    "streams.stores.head.BadLine": "becomes CorruptLog",
    "bridge.opencode.link": "ends a link, or becomes ClientError",
    "bridge.nats.l0": "a message on the wire",
    "bridge.nats.headers": "a message on the wire",
    "bridge.nats.jetstream.publishing.PublishStopped": "control flow of the mirror",
    "bridge.nats.jetstream.client_errors": "becomes NatsError",
    "sidecar.mirror.calling": "a failed effect",
    "sidecar.mirror.server": "shown by `status`",
    "sidecar.mirror.task": "control flow of the mirror",
    "sidecar.mirror.rebuild": "shown by `status`",
    "sidecar.agents": "a dead letter, a line of `agents`, or becomes RequestError",
    "sidecar.background": "a failed effect, the model's tool result, or becomes RequestError",
    "sidecar.record.opencode2": "a service's state in `status` and `doctor`",
    "sidecar.care.checks.asking": "a line of `status` and `doctor`",
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
    for path in (ROOT / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
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
    carried = given({"Failure", "RequestError", "InputRefused", "WorktreeError", "SelectError"})
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
