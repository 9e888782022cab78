"""Writing the plugin file that makes OpenCode load the shim, and taking it away again.

``install`` never overwrites a file that it did not write, and ``uninstall``
removes only what ``install`` made: a marker beside the plugin file says what
that was.

OpenCode runs an npm install in each of its config directories and, once there
is a plugin, waits for it: without a network that is over a minute at every
start. An empty ``node_modules`` and a lock file that names what OpenCode looks
for make it a no-op, and leave an online start as it was. They are made only
where nothing of npm is there yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FIRST_LINE: Final = "// Written by `durable-stream install`; remove with `durable-stream uninstall`."
PLUGIN_NAME: Final = "durable-stream.js"
MARKER_NAME: Final = ".durable-stream-installed.json"

LOCK_NAME: Final = "package-lock.json"
LOCK_STUB: Final = '{"lockfileVersion":3,"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}\n'


class InstallError(Exception):
    """The plugin cannot be installed or removed there: what is in the way, and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """One of OpenCode's config directories: the user's (``global``) or a project's ``.opencode``."""

    scope: str
    config: Path

    @classmethod
    def everywhere(cls, environ: Mapping[str, str] = os.environ) -> Target:
        """The user's own config directory, which counts in every project."""
        base = environ.get("XDG_CONFIG_HOME")
        root = Path(base) if base and Path(base).is_absolute() else Path("~/.config").expanduser()
        return cls("global", root / "opencode")

    @classmethod
    def project(cls, directory: Path) -> Target:
        """A project's; ``directory`` is the project's root."""
        return cls("project", directory.expanduser().resolve() / ".opencode")

    @property
    def plugin(self) -> Path:
        """Where the plugin file is."""
        return self.config / "plugin" / PLUGIN_NAME

    @property
    def marker(self) -> Path:
        """What ``install`` made here, as JSON."""
        return self.config / MARKER_NAME


@dataclass(slots=True)
class Outcome:
    """What was done, a line each; ``changed`` is false when everything was as it should be."""

    lines: list[str] = field(default_factory=list)
    changed: bool = False

    def did(self, line: str) -> None:
        """Note a change."""
        self.lines.append(line)
        self.changed = True


@dataclass(frozen=True, slots=True)
class Installed:
    """What an installed plugin file names: the shim's module, the command of the sidecar and its home."""

    shim: str
    command: tuple[str, ...]
    home: str


def executable_command(argv0: str, python: str = sys.executable) -> list[str]:
    """The command that starts this program from anywhere: the script itself, or this Python with the package."""
    found = shutil.which(argv0) or argv0
    path = Path(found).resolve()
    if path.name.startswith("durable-stream") and path.is_file() and os.access(path, os.X_OK):
        return [str(path)]
    return [python, "-m", "sidecar.cli"]


def shim_path() -> Path:
    """The shim's module: in the package where that was installed, beside it in a checkout.

    Raises:
        InstallError: neither is there.
    """
    package = Path(__file__).resolve().parent
    for directory in (package / "shim", package.parent / "plugin-shim" / "src"):
        if (directory / "plugin.js").is_file():
            return directory / "plugin.js"
    raise InstallError(f"{package / 'shim'} holds no plugin.js: the installation is not whole; install it again")


def plugin_text(shim: Path, command: Sequence[str], home: Path) -> str:
    """The plugin file. It has one export, as OpenCode wants it."""
    options = f"{{ command: {json.dumps(list(command))}, home: {json.dumps(str(home))} }}"
    return f"{FIRST_LINE}\nimport {{ create }} from {json.dumps(str(shim))};\nexport default create({options});\n"


def read_plugin(path: Path) -> Installed | None:
    """What a plugin file of ours names; ``None`` for one that is missing or not ours."""
    if not is_ours(path):
        return None
    try:
        _, imports, exports = path.read_text(encoding="utf-8").splitlines()[:3]
        shim = json.loads(imports.removeprefix("import { create } from ").removesuffix(";"))
        command, _, home = exports.removeprefix("export default create({ command: ").partition(", home: ")
        return Installed(shim, tuple(json.loads(command)), json.loads(home.removesuffix(" });")))
    except (ValueError, TypeError):
        return Installed("", (), "")  # ours by its first line, and changed since


def is_ours(path: Path) -> bool:
    """Whether ``install`` wrote this file: a regular one with our first line."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip("\n") == FIRST_LINE


def install(target: Target, *, shim: Path, command: Sequence[str], home: Path) -> Outcome:
    """Write the plugin file. Doing it again changes nothing, or brings the paths up to date.

    Raises:
        InstallError: a file that is not ours is in the way.
        OSError: the directory cannot be written.
    """
    outcome = Outcome()
    text = plugin_text(shim, command, home)
    there = os.path.lexists(target.plugin)
    if there and not is_ours(target.plugin):
        raise InstallError(f"{target.plugin} was not written by durable-stream: move it away, then install again")
    made = _read_marker(target)
    for directory in (target.config, target.plugin.parent):
        if not directory.is_dir():
            directory.mkdir(parents=True)
            made.append(_relative(target, directory))
    if there and target.plugin.read_text(encoding="utf-8") == text:
        outcome.lines.append(f"{target.plugin} is already there and up to date")
    else:
        _write(target.plugin, text)
        outcome.did(f"{'renewed' if there else 'wrote'} {target.plugin}")
    made.extend(_stub(target, outcome))
    _write_marker(target, made)
    return outcome


def uninstall(target: Target) -> Outcome:
    """Remove the plugin file and what else ``install`` made; what was changed since is left.

    Raises:
        InstallError: the plugin file there is not ours.
        OSError: it cannot be removed.
    """
    outcome = Outcome()
    if os.path.lexists(target.plugin):
        if not is_ours(target.plugin):
            raise InstallError(f"{target.plugin} was not written by durable-stream: remove it yourself if you want")
        target.plugin.unlink()
        outcome.did(f"removed {target.plugin}")
    else:
        outcome.lines.append(f"{target.plugin} is not there: nothing to remove")
    made = _read_marker(target)
    if target.marker.is_file():
        target.marker.unlink()
    for name in reversed(made):
        path = target.config / name
        if path == target.config / LOCK_NAME:
            if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == LOCK_STUB:
                path.unlink()
                outcome.did(f"removed {path}")
        elif path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # not empty: somebody uses it
                path.rmdir()
                outcome.did(f"removed {path}")
    return outcome


def has_npm_files(config: Path) -> bool:
    """Whether npm, OpenCode or the user keeps packages in a config directory."""
    return any(os.path.lexists(config / name) for name in ("package.json", "node_modules", LOCK_NAME))


def _stub(target: Target, outcome: Outcome) -> list[str]:
    if has_npm_files(target.config):
        return []
    _write(target.config / LOCK_NAME, LOCK_STUB)
    (target.config / "node_modules").mkdir()
    outcome.did(f"made an empty node_modules and {LOCK_NAME} in {target.config}, so that OpenCode starts without npm")
    return [LOCK_NAME, "node_modules"]


def _relative(target: Target, path: Path) -> str:
    return str(path.relative_to(target.config))


def _read_marker(target: Target) -> list[str]:
    try:
        found = json.loads(target.marker.read_text(encoding="utf-8"))["made"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    # Only names that install can have written: the file lies where others write too.
    return [name for name in found if name in (".", "plugin", LOCK_NAME, "node_modules")]


def _write_marker(target: Target, made: list[str]) -> None:
    text = json.dumps({"made": list(dict.fromkeys(made))}) + "\n"
    if not target.marker.is_file() or target.marker.read_text(encoding="utf-8") != text:
        _write(target.marker, text)


def _write(path: Path, text: str) -> None:
    """Create or replace a file; a reader sees the old or the new one, never half."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
