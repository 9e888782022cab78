"""The real OpenCode client, isolated and offline, as the tests drive it.

``RealOpenCode`` owns one directory with a home, the XDG directories and a project, and at most one
``opencode serve`` process at a time in it. Everything the client reports is read through its own
HTTP API or its event stream, so that a test waits for events and never for a time.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.real.api import OpenCodeApi, OpenCodeError
from tests.real.model_server import HANG_LIMIT_S, MODEL_ID
from tests.real.processes import end_marked, marked

POLL_S = 0.02
HEALTH_TIMEOUT_S = 0.5
"""Per request: one that comes just as the socket opens may never be answered."""

_PORT_ATTEMPTS = 3

MARK = "DURABLE_STREAM_TEST_RUN"
"""Environment variable whose value names every process that came out of one ``RealOpenCode``."""

_OFFLINE = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
    "npm_config_offline": "true",
}
LEAN_ENGINE = {
    "BUN_JSC_thresholdForJITAfterWarmUp": "3000",
    "BUN_JSC_thresholdForJITSoon": "1000",
    "BUN_JSC_thresholdForOptimizeAfterWarmUp": "5000",
    "BUN_JSC_thresholdForOptimizeAfterLongWarmUp": "5000",
    "BUN_JSC_thresholdForOptimizeSoon": "5000",
    "BUN_JSC_thresholdForFTLOptimizeAfterWarmUp": "1000000",
    "BUN_JSC_thresholdForFTLOptimizeSoon": "1000000",
    "BUN_JSC_useConcurrentGC": "0",
    "BUN_JSC_useGC": "0",
}
"""The JavaScript engine compiles later than by itself and frees no memory, because most processes of a test live for
seconds. OpenCode begins with 650 MB, and each prompt adds about 25 MB."""

_INHERITED_NO = ("opencode", "npm_", "xdg_", "durable_stream", "git_", "pytest_")

_STUB_LOCK = {"lockfileVersion": 3, "packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
"""With it and an empty node_modules OpenCode takes a config directory for installed and asks no registry."""


class RealOpenCode(OpenCodeApi):
    """One isolated OpenCode: a context manager that starts ``opencode serve`` and ends every process it started.

    Args:
        binary: the OpenCode executable.
        model_port: port of the scripted model on loopback.
        config: merged into ``opencode.json``, nested objects key by key
            (``{"permission": {"bash": "ask"}}``, ``{"subagent_depth": 2}``).
        plugins: file name to JavaScript text, e.g. ``{"durable-stream.js": "export default …"}``.
        plugin_scope: "project" (``.opencode/plugin``) or "global" (the user's config directory).
        files: path in the project to text, written before the first commit.
        environment: added to the processes' environment.
        git: make the project a git repository with one commit; else its project id is "global".
        root: run on this directory instead of a fresh one and leave it there; two instances on one
            root share their sessions, as two OpenCode windows of one user do.
        serve: start ``opencode serve`` on entering; else only ``run`` and ``start`` start anything.
        lean: with an empty list of the world's models, which it would read at its first prompt, a terminal without
            animations, no copy of the project at each step, and an engine that compiles less and frees no memory. That
            saves more than half of what a short life of OpenCode 1 costs. False for an OpenCode as users have it.
    """

    def __init__(
        self,
        binary: Path,
        model_port: int,
        *,
        config: Mapping[str, Any] | None = None,
        plugins: Mapping[str, str] | None = None,
        plugin_scope: str = "project",
        files: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        git: bool = True,
        root: Path | None = None,
        serve: bool = True,
        lean: bool = True,
    ) -> None:
        self.binary = binary
        self.model_port = model_port
        self.mark = uuid.uuid4().hex
        self.process: subprocess.Popen[bytes] | None = None
        self._own_root = root is None
        # Resolved, because OpenCode reports real paths (macOS has its temp directory behind a link).
        self.root = (root or Path(tempfile.mkdtemp(prefix="real-opencode-"))).resolve()
        self.home = self.root / "home"
        super().__init__(self.root / "project")
        self._extra_environment = dict(environment or {})
        self._config = dict(config or {})
        self._plugins = dict(plugins or {})
        self._plugin_scope = plugin_scope
        self._files = {"README": "A project of a test.\n"} | dict(files or {})
        self._git = git
        self._serve = serve
        self._lean = {**LEAN_ENGINE, "OPENCODE_MODELS_PATH": str(self.root / "models.json")} if lean else {}
        self._starts = 0

    # Life

    def __enter__(self) -> RealOpenCode:
        try:
            self._prepare()
            if self._serve:
                self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and all its descendants, and remove the directory. Idempotent."""
        try:
            self.terminate()
        finally:
            end_marked(MARK, self.mark)
            if self._own_root:
                shutil.rmtree(self.root, ignore_errors=True)

    def start(self) -> None:
        """Start ``opencode serve`` on a free port and return when it answers.

        The plugins are not loaded yet: OpenCode loads them at the first request for a directory.

        Raises:
            RuntimeError: it ended, or did not answer; the message has the end of its log.
        """
        if self.process is not None:
            raise RuntimeError("OpenCode is running already")
        for _ in range(_PORT_ATTEMPTS):
            self._spawn()
            if self._answers():
                return
            # A free port can be taken by another process before OpenCode binds it; it then exits with 1.
            self.terminate()
            if "ServeError" not in self.log_tail():
                break
        raise RuntimeError(f"opencode serve did not come up:\n{self.log_tail()}")

    def _spawn(self) -> None:
        self._starts += 1
        self.port = free_port()
        self._launch("serve", "--port", str(self.port), "--hostname", "127.0.0.1", "--print-logs")

    def _launch(self, *arguments: str) -> None:
        with self.stdout_path.open("wb") as out, self.stderr_path.open("wb") as err:
            self.process = subprocess.Popen(
                [str(self.binary), *arguments],
                cwd=self.project,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        """Wait until the server answers; False if it ended or the hang limit passed."""
        deadline = time.monotonic() + HANG_LIMIT_S
        while self.process is not None and self.process.poll() is None and time.monotonic() < deadline:
            if self._healthy():
                return True
            time.sleep(POLL_S)
        return False

    def terminate(self) -> None:
        """Send SIGTERM and wait for the end. OpenCode then exits without a ``dispose``. Idempotent."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """SIGKILL the server alone, like a crash; its children live on. Idempotent."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start a new server process on the same data and a new port."""
        self.terminate()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)

    def _healthy(self) -> bool:
        try:
            self.request("GET", "/global/health", timeout=HEALTH_TIMEOUT_S)
        except (OSError, http.client.HTTPException, OpenCodeError):
            return False
        return True

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            RuntimeError: no server runs.
        """
        if self.process is None:
            raise RuntimeError("OpenCode is not running")
        return self.process.pid

    @property
    def stdout_path(self) -> Path:
        """The file with the latest server process's stdout."""
        return self.root / f"serve-{self._starts}-{self.mark[:6]}.out"

    @property
    def stderr_path(self) -> Path:
        """The file with the latest server's stderr, which contains OpenCode's log."""
        return self.root / f"serve-{self._starts}-{self.mark[:6]}.err"

    def report(self) -> str:
        """The end of OpenCode's log, for a test that failed."""
        return self.log_tail()

    def log_tail(self, characters: int = 4000) -> str:
        """The end of the latest server's stdout and stderr, for failure messages."""
        both = [p.read_text(errors="replace") for p in (self.stdout_path, self.stderr_path) if p.exists()]
        return "\n".join(text[-characters:] for text in both)

    def leftovers(self) -> list[int]:
        """The ids of this instance's live processes, including the server.

        Includes detached ones: tools' commands, and a sidecar that a plugin started.
        """
        return marked(MARK, self.mark)

    # Directories

    @property
    def config_directory(self) -> Path:
        """The user's global OpenCode configuration."""
        return self.root / "config" / "opencode"

    def environment(self) -> dict[str, str]:
        """The whole environment of an OpenCode process: offline, with nothing of the user's own OpenCode."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().startswith(_INHERITED_NO) and not name.lower().endswith("_proxy")
        }
        places = {f"XDG_{name.upper()}_HOME": str(self.root / name) for name in _XDG}
        # PWD, because `opencode run` takes its directory from there and not from the process.
        own = {"HOME": str(self.home), "PWD": str(self.project), "NO_PROXY": "127.0.0.1,localhost"}
        own[MARK] = self.mark
        return kept | _OFFLINE | self._lean | places | own | self._extra_environment

    def _prepare(self) -> None:
        for directory in (self.home, self.project, self.config_directory):
            directory.mkdir(parents=True, exist_ok=True)
        scope = {"project": self.project / ".opencode", "global": self.config_directory}[self._plugin_scope]
        # In the user's configuration and not the project's, so that it holds in every directory (copies).
        config = _merged(self._base_config(), self._config)
        (self.config_directory / "opencode.json").write_text(json.dumps(config))
        (self.root / "models.json").write_text("{}")
        settings = self.root / "state" / "opencode" / "kv.json"
        if self._lean and not settings.exists():
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text('{"animations_enabled": false}')
        stub_install(self.config_directory)
        stub_install(scope)
        for name, text in self._plugins.items():
            (scope / "plugin").mkdir(exist_ok=True)
            (scope / "plugin" / name).write_text(text)
        for name, text in self._files.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)
        if self._git and not (self.project / ".git").exists():
            self._make_repository()

    def _base_config(self) -> dict[str, Any]:
        return {
            "model": f"mock/{MODEL_ID}",
            "small_model": f"mock/{MODEL_ID}",
            "share": "disabled",
            "autoupdate": False,
            "snapshot": not self._lean,
            "enabled_providers": ["mock"],
            "provider": {
                "mock": {
                    "npm": "@ai-sdk/openai-compatible",
                    "name": "Mock",
                    "options": {"baseURL": f"http://127.0.0.1:{self.model_port}/v1", "apiKey": "key"},
                    "models": {
                        MODEL_ID: {
                            "name": "Mock 1",
                            "tool_call": True,
                            "reasoning": True,
                            "limit": {"context": 32000, "output": 4000},
                        }
                    },
                }
            },
        }

    def _make_repository(self) -> None:
        who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false"]
        for arguments in (["init", "-q", "-b", "main"], ["add", *self._files], [*who, "commit", "-q", "-m", "start"]):
            subprocess.run(
                ["git", *arguments], cwd=self.project, env=self.environment(), check=True, capture_output=True
            )

    # Command line

    def run(
        self, text: str, *arguments: str, timeout: float = HANG_LIMIT_S, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """``opencode run [arguments] text`` in the project, to its end; output captured.

        Raises:
            RuntimeError: it exited with a code other than 0 and ``check`` is set.
        """
        command = [str(self.binary), "run", *arguments, text]
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done


_XDG = ("config", "data", "cache", "state")


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """``extra`` over ``base``, nested objects key by key."""
    result = dict(base)
    for key, value in extra.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return result


def stub_install(directory: Path) -> None:
    """Make OpenCode consider a config directory installed, so that it queries no registry."""
    (directory / "node_modules").mkdir(parents=True, exist_ok=True)
    (directory / "package-lock.json").write_text(json.dumps(_STUB_LOCK))


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
