"""What a process may do, as two keys: ``kernel``, what the system allows it, and ``environment``, its variables.

Pure; ``facts.py`` reads the facts. The plugin computes the same keys in ``plugin-shim/src/identity.js``, and a test
compares them. The keys are keyed digests, from which nobody can learn anything without the home's token.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NOBODY: Final = "nobody"
"""The identity of work if nobody knows which process asked for it. None has it, so the work waits for a person."""

SPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
FIRST_PIDS: Final = "pid:[4026531836]"
"""The kernel's own pid namespace. Its number never changes."""

_STATUS: Final = re.compile(
    r"(Uid|Gid|Groups|CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp|Seccomp_filters):\s*(.*)"
)
_LIKE_ONE: Final = ("CapBnd", "NoNewPrivs", "Seccomp", "Seccomp_filters")

NOISE: Final = re.compile(
    r"_|PWD|OLDPWD|SHLVL|LINES|COLUMNS|TERM|TERM_.*|COLORTERM|COLORFGBG|WINDOWID|WINDOW|STY|GPG_TTY|"
    r"SSH_TTY|SSH_CLIENT|SSH_CONNECTION|XDG_SESSION_.*|XDG_VTNR|XDG_SEAT|TMUX.*|ZELLIJ.*|VTE_.*|KONSOLE_.*|KITTY_.*|"
    r"WEZTERM_.*|ALACRITTY_.*|GHOSTTY_.*|GNOME_TERMINAL_.*|ITERM_.*|LC_TERMINAL.*|WT_.*|INVOCATION_ID|JOURNAL_STREAM|"
    r"AGENT|OPENCODE|OPENCODE_PID|OPENCODE_RUN_ID|OPENCODE_CLIENT|OPENCODE_SERVER_PASSWORD|OPENCODE_SERVER_USERNAME|"
    r"OPENCODE_PRINT_LOGS|OPENCODE_LOG_LEVEL|OPENCODE_CONSOLE_TOKEN|"
    r"npm_config_user_agent|DURABLE_STREAM.*"
)
"""The variables that name a terminal, or that OpenCode and the plugin set. A socket, a display or a path is a right, so
an unknown variable counts."""

_PLACES: Final = re.compile(r".*(?:PATH|DIRS?|HOME|CONFIG|FILE|ROOT)", re.DOTALL)
"""Variables that hold places, perhaps several with ``:`` between them."""


class Facts(NamedTuple):
    """What the system tells of a process. A text is empty if the system does not tell it."""

    status: str
    limits: str
    spaces: Mapping[str, str]
    """What the links in ``/proc/PID/ns`` say, by name."""
    root: str
    label: str
    limited: tuple[str, ...]
    """The limits of its cgroup, as ``name=limit``."""
    boot: str
    one_status: str
    one_stat: str
    """The status and the stat of process 1, as this process sees it."""
    is_beside_one: bool
    """Whether it has the mounts, the network and the users of process 1."""
    process: str
    """Tells this process from all others."""


def kernel_lines(facts: Facts) -> list[str]:
    """What the system allows a process. A cgroup's name is no right: a desktop gives each terminal one of its own."""
    status, one = _fields(facts.status), _fields(facts.one_status)
    if not status:
        return [f"process={facts.process}"]  # nobody can tell what it may do, so it is alone
    spaces, is_first = dict(facts.spaces), facts.spaces.get("pid") == FIRST_PIDS
    if is_first and facts.is_beside_one:
        spaces |= {"mnt": "1", "net": "1"}  # another kernel gives process 1 other numbers
    lines = [f"{name}={value}" for name, value in status.items()]
    lines += [f"ns.{name}={spaces.get(name, '')}" for name in SPACES]
    lines += [f"root={facts.root}", f"label={facts.label}"]
    # A process may raise its soft limits, and OpenCode does.
    lines += [f"limit.{line[:26].strip()}={line[47:68].strip()}" for line in facts.limits.strip().splitlines()[1:]]
    lines += facts.limited
    # Nobody can read what a filter of system calls allows. Those of process 1 are everybody's.
    if status.get("Seccomp_filters", "0") != one.get("Seccomp_filters", "0"):
        lines.append(f"process={facts.process}")
    if not is_first:
        lines.append(f"one={facts.boot}:{_started(facts.one_stat)}")  # the numbers above are used again later
    return lines


def stays(facts: Facts) -> bool:
    """Whether no other sandbox can ever get the kernel key of this process: it is in none, or in one that ends with
    process 1, which the key names. Landlock is in no file, but needs NoNewPrivs."""
    status, one = _fields(facts.status), _fields(facts.one_status)
    if not status or not one or status.get("NoNewPrivs") != "0":
        return False
    alike = all(status.get(name, "0") == one.get(name, "0") for name in _LIKE_ONE)
    return alike and facts.is_beside_one and bool(_started(facts.one_stat))


def environment_lines(environment: Mapping[str, str], cwd: str) -> list[str]:
    variables = {name: value for name, value in environment.items() if not NOISE.fullmatch(name)}
    lines = [f"{name}={value}" for name, value in variables.items()]
    if any(_is_relative(name, value) for name, value in variables.items()):
        lines.append(f"={cwd}")  # a relative place is another one in each directory
    return lines


def digest(token: str, lines: Iterable[str]) -> str:
    """A key: of the same lines, in any order, it is the same."""
    made = hmac.new(token.encode(), digestmod="sha256")
    for line in sorted(line.encode("utf-8", "replace") for line in lines):
        made.update(line + b"\0")
    return made.hexdigest()[:32]


def _is_relative(name: str, value: str) -> bool:
    if re.match(r"\.{1,2}(?:/|$)", value):
        return True
    return bool(value and _PLACES.fullmatch(name)) and any(not part.startswith("/") for part in value.split(":"))


def _fields(status: str) -> dict[str, str]:
    found = (_STATUS.fullmatch(line.strip()) for line in status.splitlines())
    return {each[1]: " ".join(each[2].split()) for each in found if each}


def _started(stat: str) -> str:
    """When a process started, in ticks since the boot."""
    fields = stat.rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""
