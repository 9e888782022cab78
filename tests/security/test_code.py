"""The code itself: no data that runs, no shell, no SQL built from data, constant-time comparison of secrets.

The rules are flake8-bandit's, through ruff; ``make lint`` applies them. The tests check that they are on, that
each exception was reviewed, and that they catch what they should.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.sources import trees

ROOT = Path(__file__).parents[2]
PACKAGES = ("streams", "bridge", "sidecar")

LOOKED_AT = {
    ("sidecar/link/launch.py", "S603"): "starts the sidecar: our own command as a list, no shell",
    ("sidecar/record/opencode2/http.py", "S501"): "plain HTTP on loopback: there is no certificate to check",
    ("sidecar/processes.py", "S603"): "asks ps about a pid, where there is no /proc: a list, no shell",
    ("sidecar/cli/shared/command.py", "S606"): "starts this command again, with its own arguments: no shell",
    (
        "sidecar/mirror/server/child.py",
        "S606",
    ): "becomes the NATS server: the sidecar's own command as a list, no shell",
    ("sidecar/mirror/server/executable.py", "S603"): "asks the program for its version: a list, no shell",
    (
        "sidecar/background/people/channels.py",
        "S603",
    ): "shows a desktop notification: a list, no shell, texts after `--`",
    ("sidecar/care/checks/opencode.py", "S603"): "asks the installed command for its version: a list, no shell",
    (
        "sidecar/cli/printing/pager.py",
        "S603",
    ): "starts the pager that the user named, as a shell would split it, no shell",
    ("sidecar/background/hosts/starter.py", "S603"): "starts the OpenCode that the user runs: a list, no shell",
    ("sidecar/background/copies/store.py", "S603"): "runs git in a repository of ours: a list, no shell",
    ("sidecar/background/copies/store.py", "S607"): "finds git on the PATH without its relative entries",
    **{
        (
            f"sidecar/read/story/{name}.py",
            "S608",
        ): "the text has names of tables and conditions; values are bound"
        for name in (
            *("catalog", "changes", "conversation", "copying", "ended_spans", "moment", "past", "reading", "tables"),
            "timeline",
        )
    },
    **{
        (f"sidecar/inspector/{name}.py", "S608"): "the text has the condition `ALIVE`; values are bound"
        for name in ("beside", "search", "spending")
    },
    ("streams/stores/sqlite/rows.py", "S608"): "the text holds column names and question marks; values are bound",
    ("streams/stores/sqlite/copied.py", "S608"): "the text has names of columns; values are bound",
    **{
        (f"sidecar/team/{name}.py", "S608"): "the text has only constants; values are bound"
        for name in ("functions", "log", "schema")
    },
    ("streams/identity.py", "S311"): "a seeded run is for reproducing, and `serve` never uses it",
}


def findings(*arguments: str, stdin: str | None = None) -> list[dict[str, object]]:
    options = ["--isolated", "--select", "S", "--ignore", "S101", "--ignore-noqa", "--output-format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def test_the_rules_are_on_for_all_packages() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert {rule for rule in lint["ignore"] if rule.startswith("S")} <= {"S101"}
    off = [path for path, rules in lint["per-file-ignores"].items() if any(rule.startswith("S") for rule in rules)]
    assert not [path for path in off if path.startswith(PACKAGES)]


def test_each_exception_was_looked_at() -> None:
    found = {
        (str(Path(str(finding["filename"])).relative_to(ROOT)), str(finding["code"])) for finding in findings(*PACKAGES)
    }
    assert found == set(LOOKED_AT)


BREACHES = {
    "S301": "pickle.loads(x)",
    "S302": "marshal.loads(x)",
    "S307": "eval(x)",
    "S102": "exec(x)",
    "S602": "subprocess.run(x, shell=True)",
    "S605": "os.system(x)",
    "S506": "yaml.load(x)",
    "S608": 'db.execute(f"SELECT a FROM t WHERE b = {x}")',
    "S306": "tempfile.mktemp()",
    "S103": "os.chmod('/x', 0o777)",
    "S323": "ssl._create_unverified_context()",
    "S324": "hashlib.md5(x)",
    "S104": "s.bind(('0.0.0.0', 1))",
}


def test_a_breach_is_caught() -> None:
    code = (
        "import hashlib, marshal, os, pickle, ssl, subprocess, tempfile, yaml\n" + "\n".join(BREACHES.values()) + "\n"
    )
    assert set(BREACHES) <= {finding["code"] for finding in findings("-", stdin=code)}


# --- what ruff does not know ---

BANNED = frozenset({"shelve", "dill", "cloudpickle", "jsonpickle", "joblib", "telnetlib", "ftplib", "xmlrpc"})


def faults_of(path: str, tree: ast.Module) -> list[str]:
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            faults += [f"{path}:{node.lineno}: imports {name}" for name in names if name.split(".")[0] in BANNED]
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            for side in (node.left, *node.comparators):
                name = side.attr if isinstance(side, ast.Attribute) else side.id if isinstance(side, ast.Name) else ""
                if re.search(r"token|proof|hmac", name) and name != "token_path":
                    faults.append(f"{path}:{node.lineno}: {name} is compared with ==, which tells how much of it fits")
    return faults


def test_secrets_are_compared_in_constant_time_and_nothing_unpickles() -> None:
    # A ``token`` there names one item of one origin, or is a part of a subject: no secret.
    others = {
        "sidecar/record/ingest.py",
        "bridge/opencode/capture/translate.py",
        "streams/bus/subjects.py",
        "bridge/nats/subjects.py",
    }
    files = [file for package in PACKAGES for file in trees(package).items() if file[0] not in others]
    assert [fault for path, tree in files for fault in faults_of(path, tree)] == []
    link = (ROOT / "bridge/opencode/link/link.py").read_text()
    assert link.count("hmac.compare_digest(") == 2, "each side checks the other's proof"


@pytest.mark.parametrize("code", ["import shelve", "from dill import loads", "a.proof == b", "x = token != given"])
def test_such_a_breach_is_caught_too(code: str) -> None:
    assert faults_of("a.py", ast.parse(code))


@pytest.mark.parametrize("path", sorted((ROOT / "plugin-shim" / "src").glob("*.js")), ids=lambda path: path.name)
def test_the_shim_runs_no_data_and_no_shell(path: Path) -> None:
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
    assert not re.findall(r"\beval\s*\(|\bnew\s+Function\b|\bexec(?:Sync|File)?\s*\(|shell\s*:\s*true|node:vm", code)
