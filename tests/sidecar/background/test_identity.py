from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from sidecar.background.hosts.facts import read_facts
from sidecar.background.hosts.identity import Facts, digest, environment_lines, kernel_lines, stays

STATUS = "\n".join(
    [
        "Name:\tx",
        "Uid:\t1000\t1000\t1000\t1000",
        "Groups:\t4 27 1000 ",
        "CapBnd:\t000001ffffffffff",
        "NoNewPrivs:\t0",
        "Seccomp:\t0",
        "Seccomp_filters:\t0",
    ]
)
LIMITS = "\n".join(
    [
        f"{name:26}{soft:<21}{hard:<21}"
        for name, soft, hard in (
            ("Limit", "Soft Limit", "Hard Limit"),
            ("Max processes", 90, 100),
            ("Max open files", 1024, 20000),
        )
    ]
)
FIRST = {"mnt": "mnt:[4026531841]", "net": "net:[4026531840]", "pid": "pid:[4026531836]", "user": "user:[4026531837]"}
INNER = {**FIRST, "mnt": "mnt:[4026532177]", "pid": "pid:[4026532180]"}
ONE_STAT = f"1 (a b) c) S {' '.join(map(str, range(4, 53)))}"
PLAIN = Facts(STATUS, LIMITS, FIRST, "1:2", "", (), "boot", STATUS, ONE_STAT, True, "7")


def changed(facts: Facts, old: str, new: str) -> Facts:
    return facts._replace(status=facts.status.replace(old, new))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (PLAIN, True),
        (changed(PLAIN, "NoNewPrivs:\t0", "NoNewPrivs:\t1"), False),
        (
            changed(PLAIN, "NoNewPrivs:\t0", "NoNewPrivs:\t1")._replace(
                one_status=STATUS.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")
            ),
            False,
        ),
        (changed(PLAIN, "Seccomp:\t0", "Seccomp:\t2"), False),
        (changed(PLAIN, "Seccomp_filters:\t0", "Seccomp_filters:\t1"), False),
        (changed(PLAIN, "1ffffffffff", "0ffffffffff"), False),
        (PLAIN._replace(is_beside_one=False), False),
        (PLAIN._replace(one_status=""), False),
        (PLAIN._replace(status=""), False),
        (PLAIN._replace(spaces=INNER), True),
        (PLAIN._replace(spaces=INNER, one_stat=""), False),
    ],
    ids=str,
)
def test_only_an_identity_that_no_other_sandbox_can_get_stays(facts: Facts, expected: bool) -> None:
    assert stays(facts) is expected


@pytest.mark.parametrize(
    "other",
    [
        changed(PLAIN, "Uid:\t1000", "Uid:\t1001"),
        changed(PLAIN, "27 ", ""),
        changed(PLAIN, "NoNewPrivs:\t0", "NoNewPrivs:\t1"),
        PLAIN._replace(limits=LIMITS.replace("100 ", "99  ")),
        PLAIN._replace(limited=("pids.max=90",)),
        PLAIN._replace(root="1:3"),
        PLAIN._replace(label="guarded (enforce)"),
        PLAIN._replace(is_beside_one=False),
        PLAIN._replace(spaces={**FIRST, "user": "user:[4026532177]"}),
        PLAIN._replace(spaces=INNER),
        PLAIN._replace(status=""),
    ],
    ids=str,
)
def test_what_the_system_allows_is_in_the_kernel_key(other: Facts) -> None:
    assert digest("t", kernel_lines(other)) != digest("t", kernel_lines(PLAIN))


@pytest.mark.parametrize(
    "same",
    [
        PLAIN._replace(process="8"),
        PLAIN._replace(limits=LIMITS.replace("1024 ", "20000")),
        PLAIN._replace(boot="the next"),
        PLAIN._replace(spaces={**FIRST, "mnt": "mnt:[4026531832]", "net": "net:[4026531833]"}),
    ],
    ids=["another process", "a raised soft limit", "another boot", "another kernel"],
)
def test_a_terminal_has_the_same_kernel_key_again(same: Facts) -> None:
    assert kernel_lines(same) == kernel_lines(PLAIN)


def test_numbers_that_are_used_again_are_told_apart_by_process_1() -> None:
    inner = PLAIN._replace(spaces=INNER)
    later = inner._replace(one_stat=ONE_STAT.replace(" 22 ", " 23 "))
    assert len({tuple(kernel_lines(each)) for each in (inner, later, inner._replace(boot="the next"))}) == 3


def test_nobody_shares_unknown_filters_or_an_unknown_process() -> None:
    for each in (PLAIN._replace(status=""), changed(PLAIN, "Seccomp_filters:\t0", "Seccomp_filters:\t2")):
        assert kernel_lines(each) != kernel_lines(each._replace(process="8"))


def test_a_key_needs_the_token() -> None:
    assert digest("t", ["b", "a"]) == digest("t", ["a", "b"]) != digest("u", ["a", "b"])


@pytest.mark.parametrize("noise", ["TERM", "SSH_TTY", "TMUX_PANE", "OPENCODE_PID", "AGENT", "_"])
def test_the_name_of_a_terminal_is_noise(noise: str) -> None:
    assert environment_lines({"A": "1", noise: "x"}, "/") == environment_lines({"A": "1", noise: "y"}, "/")


@pytest.mark.parametrize(
    "right", ["SSH_AUTH_SOCK", "DISPLAY", "WAYLAND_DISPLAY", "HTTPS_PROXY", "OPENCODE_CONFIG", "X"]
)
def test_a_socket_a_display_and_all_that_is_unknown_counts(right: str) -> None:
    assert environment_lines({right: "/x"}, "/") != environment_lines({right: "/y"}, "/")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OPENCODE_CONFIG_DIR", "./cfg", True),
        ("OPENCODE_CONFIG_DIR", "cfg", True),
        ("OPENCODE_CONFIG", "../opencode.json", True),
        ("PATH", "/usr/bin:node_modules/.bin", True),
        ("X", "..", True),
        ("PATH", "/usr/bin:/bin", False),
        ("OPENCODE_CONFIG_DIR", "", False),
        ("OPENCODE_PERMISSION", '{"edit":"deny"}', False),
    ],
)
def test_a_relative_place_belongs_to_its_directory(name: str, value: str, expected: bool) -> None:
    assert (environment_lines({name: value}, "/a") != environment_lines({name: value}, "/b")) is expected


IDENTITY = Path(__file__).parents[3] / "plugin-shim" / "src" / "identity.js"
NODE = """
const {{ digest, environmentLines, kernelLines }} = await import({module});
const [env, cwd] = JSON.parse(process.argv[1]);
console.log(digest("t", kernelLines()), digest("t", environmentLines(env, cwd)));
process.stdin.on("data", () => undefined);
"""


@pytest.mark.parametrize(
    "before",
    [
        [],
        ["setpriv", "--no-new-privs"],
        ["prlimit", "--nofile=100:200"],
        ["unshare", "-rmn"],
        ["unshare", "-rpf", "--mount-proc"],
    ],
    ids=" ".join,
)
def test_the_plugin_computes_the_same_keys(before: list[str]) -> None:
    if before and (not shutil.which(before[0]) or subprocess.run([*before, "true"], check=False).returncode):
        pytest.skip(f"{before[0]} does not work here")
    environment = {"A": "1", "PATH": "/bin:x", "É\udcff": "é", "TERM": "x", "SSH_AUTH_SOCK": "/s", "B": "a\nb"}
    environment = {name.encode("utf-8", "replace").decode(): value for name, value in environment.items()}
    code = NODE.format(module=json.dumps(str(IDENTITY)))
    command = [*before, "node", "--input-type=module", "-e", code, json.dumps([environment, "/a"])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        kernel, variables = node.stdout.readline().split()
        pid = node.pid if "-rpf" not in before else child_of(node.pid)
        facts = read_facts(pid)
        if "-rpf" in before:  # from outside, its process 1 is another one
            facts = facts._replace(one_stat=Path(f"/proc/{pid}/stat").read_text())
        assert digest("t", kernel_lines(facts)) == kernel
        assert digest("t", environment_lines(environment, "/a")) == variables
        node.kill()


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_a_process_without_facts_is_alone() -> None:
    assert kernel_lines(read_facts(2**30)) != kernel_lines(read_facts(2**30 + 1))
