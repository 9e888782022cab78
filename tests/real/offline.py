"""OpenCode in a network of loopback alone; this program runs inside the namespace.

Reads ``{binary, root, home, starts, plan}`` from stdin and prints one JSON object; ``plan`` is a list of
steps: ``{"case": name}`` starts OpenCode ``starts`` times, ``{"do": [argument, …], "in": directory}`` runs
``durable-stream``, ``{"sessions": count}`` waits until so many are recorded, ``{"make": path}`` makes a
directory, ``{"write": path, "text": …}`` a file, ``{"remove": path}`` removes a directory. ``{"registry": status}``
lets npm reach a fake registry on loopback that answers with this status, ``{"registry": null}`` no registry.
Paths are below ``root``.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.real.durable import EXECUTABLE
from tests.real.model_server import HANG_LIMIT_S, ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.registry import FakeRegistry

LOOK_S = 0.3
START_LIMIT_S = 300.0
"""An OpenCode that waits for npm takes 75 s; only a hung one reaches this."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_TRAP = '#!/bin/sh\necho "$0 $*" >> "{}"\nexit 1\n'


def namespace_command() -> list[str] | None:
    """The command that runs a program without a network, as root or in a user namespace; ``None`` if not allowed."""
    program = shutil.which("unshare")
    for command in ([program, "-n"], [program, "-rn"]) if program else ():
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:  # type: ignore[list-item]
            return command  # type: ignore[return-value]
    return None


class PlainOpenCode(RealOpenCode):
    """An OpenCode as users have it: npm may try the network, and no test prepared its directories."""

    registry: str | None = None

    def environment(self) -> dict[str, str]:
        # What OpenCode writes into its log file comes with a delay, and an OpenCode that ends does not wait for it.
        environment = super().environment() | {"OPENCODE_PRINT_LOGS": "1"}
        del environment["npm_config_offline"]
        if self.registry is not None:
            environment["npm_config_registry"] = self.registry
        return environment

    def _prepare(self) -> None:
        super()._prepare()
        for name in ("node_modules", "package-lock.json"):
            path = self.config_directory / name
            path.rmdir() if path.is_dir() else path.unlink()


def main(wanted: dict[str, Any]) -> dict[str, Any]:
    """Run the plan; return each case's start times in seconds and the registry requests of each start.

    Also return what npm and OpenCode logged, and the files at the end.
    """
    _loopback_up()
    assert {name for _, name in socket.if_nameindex()} == {"lo"}, "this namespace has a network"
    root = Path(wanted["root"])
    asked = root / "npm-calls"
    traps = root / "traps"
    traps.mkdir()
    for name in ("npm", "npx", "bun", "pnpm", "yarn", "node"):
        (traps / name).write_text(_TRAP.format(asked))
        (traps / name).chmod(0o755)
    environment = {
        "PATH": f"{traps}:{os.environ['PATH']}",
        "OPENCODE_CONFIG_DIR": str(root / "extra"),
        "DURABLE_STREAM_HOME": wanted["home"],
    }
    found: dict[str, Any] = {"seconds": {}, "registry": {}, "npm_failures": {}, "said": [], "trees": []}
    with (
        ModelServer() as model,
        FakeRegistry() as registry,
        PlainOpenCode(
            Path(wanted["binary"]), model.port, plugin_scope="global", environment=environment, serve=False, root=root
        ) as client,
    ):
        for step in wanted["plan"]:
            if "make" in step:
                (root / step["make"]).mkdir(parents=True)
            elif "write" in step:
                (root / step["write"]).write_text(step["text"])
            elif "remove" in step:
                shutil.rmtree(root / step["remove"])
            elif "registry" in step:
                registry.status = step["registry"] or 0
                client.registry = registry.url if step["registry"] else None
            elif "do" in step:
                found["said"].append(_durable(step["do"], root / step.get("in", "project"), client.environment()))
            elif "sessions" in step:
                found["sessions"] = _sessions(step["sessions"], root, client.environment())
            elif "tree" in step:
                found["trees"].append(_tree(root, step["tree"]))
            else:
                for _ in range(wanted["starts"]):
                    seconds, failures = _start(client)
                    found["seconds"].setdefault(step["case"], []).append(seconds)
                    found["npm_failures"].setdefault(step["case"], []).extend(failures)
                    found["registry"].setdefault(step["case"], []).append(registry.asked.copy())
                    registry.asked.clear()
        _durable(["stop"], root, client.environment())
        found["model_errors"] = [repr(error) for error in model.errors]
    found["npm_calls"] = asked.read_text().splitlines() if asked.exists() else []
    return found


def _start(client: RealOpenCode) -> tuple[float, list[str]]:
    """How many seconds a start took, and the lines of OpenCode's log that report a failed npm install."""
    began = time.monotonic()
    done = client.run("hello", "--title", "a title", timeout=START_LIMIT_S)
    assert "hello" in done.stdout, done.stdout
    seconds = time.monotonic() - began
    return seconds, [line for line in done.stderr.splitlines() if "dependency install failed" in line]


def _durable(arguments: list[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [str(EXECUTABLE), *arguments],
        cwd=directory,
        env=environment | {"PWD": str(directory)},
        capture_output=True,
        text=True,
        timeout=HANG_LIMIT_S,
        check=False,
    )
    return done.stdout + done.stderr


def _sessions(count: int, root: Path, environment: dict[str, str]) -> list[str]:
    """Wait for ``count`` session streams and return them: an ended OpenCode left its last hooks to the sidecar."""
    deadline = time.monotonic() + HANG_LIMIT_S
    while True:
        lines = _durable(["streams", "--json"], root, environment).splitlines()
        found = [name for line in lines if (name := json.loads(line)["stream_id"]).startswith("ses_")]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(LOOK_S)


def _tree(root: Path, names: list[str]) -> dict[str, list[Any]]:
    """Mode and text of everything below some directories, except OpenCode's own files."""
    paths = [path for name in names for path in sorted((root / name).rglob("*"))]
    return {
        str(path.relative_to(root)): [stat.S_IMODE(path.stat().st_mode), path.read_text() if path.is_file() else None]
        for path in paths
        if path.name != ".gitignore"
    }


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
