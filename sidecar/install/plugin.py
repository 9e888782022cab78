"""Write and remove the plugin file that makes OpenCode load the shim.

``install`` never overwrites a file that it did not write, and ``uninstall`` removes only what ``install`` made. The
ledger, one file in the user's OpenCode configuration, says what was made in which directory. The ledger is written
first, so that an interrupted install can be undone, too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from sidecar.failure import Failure
from sidecar.install import npm
from sidecar.install.npm import ConfigDirectories
from sidecar.install.tui import install_tui, tui_text, uninstall_tui
from sidecar.install.tui2 import install_tui2, tui2_text, uninstall_tui2
from sidecar.private_files import make_directories

FIRST_LINE: Final = "// Written by `durable-stream install`; remove with `durable-stream uninstall`."
PLUGIN_NAME: Final = "durable-stream.js"
LEDGER_NAME: Final = ".durable-stream-installed.json"

RESTART: Final = "restart OpenCode 1; OpenCode 2 notices the change by itself, or after `opencode service restart`"
"""What the user must do so that OpenCode loads or unloads the plugin. The OpenCode 2 service watches its plugin
directories, and keeps running after the terminal is closed."""

RELOAD: Final = "restart OpenCode (OpenCode 2: `opencode reload`)"
"""What the user must do so that OpenCode loads another version of the shim. OpenCode 2 watches the shim's files, too,
but keeps the old shim if it looked while some of them were missing."""

REMOVE_PACKAGE: Final = f"opencode plugin remove {npm.PLUGIN_PACKAGE}"
"""The command of OpenCode 2 that undoes its ``plugin add``."""

CONFIG, PLUGIN = ".", "plugin"
"""Two more kinds of what ``install`` makes, besides those in ``npm.py``: the config directory itself, and its plugin
directory.
"""

_KINDS: Final = frozenset({CONFIG, PLUGIN, npm.LOCK, npm.MODULES, npm.RC, npm.RC_LINES})


class Target(NamedTuple):
    """One of OpenCode's config directories: the user's (``global``) or a project's ``.opencode``."""

    scope: str
    config: Path

    @classmethod
    def everywhere(cls, environ: Mapping[str, str] = os.environ) -> Target:
        """The user's own config directory, which applies to every project."""
        return cls("global", ConfigDirectories.of(Path("/"), environ).user)

    @classmethod
    def project(cls, directory: Path) -> Target:
        """A project's ``.opencode``; ``directory`` is the project's root."""
        return cls("project", directory.expanduser().resolve() / ".opencode")

    @property
    def plugin(self) -> Path:
        return self.config / "plugin" / PLUGIN_NAME


@dataclass(slots=True)
class Outcome:
    """The steps that were done, one line each; ``changed`` is false if nothing had to change."""

    lines: list[str] = field(default_factory=list)
    changed: bool = False

    def did(self, line: str) -> None:
        self.lines.append(line)
        self.changed = True

    def did_all(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.did(line)


class Installed(NamedTuple):
    """The content of an installed plugin file: the shim's module, the sidecar's command and its home."""

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
    """The path of the shim's module: inside an installed package, or next to it in a checkout.

    Raises:
        Failure: neither of the two exists.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "shim", package.parent / "plugin-shim" / "src"):
        if (directory / "plugin.js").is_file():
            return directory / "plugin.js"
    raise Failure(
        "cannot-install",
        f"{package / 'shim'} contains no plugin.js, so the Python package is incomplete; reinstall the package",
    )


def plugin_text(shim: Path, command: Sequence[str], home: Path) -> str:
    """The text of the plugin file. The file has one export, an object that OpenCode 1 and 2 both load."""
    options = f"{{ command: {json.dumps(list(command))}, home: {json.dumps(str(home))} }}"
    lines = (
        FIRST_LINE,
        f"import {{ plugin }} from {json.dumps(str(shim))};",
        f"export default plugin({options}, import.meta.url);",
    )
    return "".join(f"{line}\n" for line in lines)


def read_plugin(path: Path) -> Installed | None:
    """Read a plugin file; ``None`` if the file is missing or ``install`` did not write it."""
    if not is_ours(path):
        return None
    try:
        _, imports, exports = path.read_text(encoding="utf-8").splitlines()[:3]
        shim = json.loads(imports.removeprefix("import { plugin } from ").removesuffix(";"))
        command, _, home = exports.removeprefix("export default plugin({ command: ").partition(", home: ")
        return Installed(shim, tuple(json.loads(command)), json.loads(home.removesuffix(" }, import.meta.url);")))
    except (ValueError, TypeError):
        return Installed("", (), "")  # its first line shows that the plugin file is ours, but it was changed later


def is_ours(path: Path) -> bool:
    """True if ``install`` wrote this file: a regular file that begins with the line that ``install`` writes."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().rstrip("\n") == FIRST_LINE


def is_installed(directory: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """True if an OpenCode 1 that starts in ``directory`` finds a plugin of our name, or our npm package."""
    configs = ConfigDirectories.of(directory, environ).all
    files = (config / folder / PLUGIN_NAME for config in configs for folder in ("plugin", "plugins"))
    return any(map(os.path.lexists, files)) or bool(npm.settings_with_package(directory, environ, [npm.BOTH_READ]))


def install(
    target: Target,
    *,
    shim: Path,
    command: Sequence[str],
    home: Path,
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Outcome:
    """Write the plugin file, and keep OpenCode from waiting for npm when it starts.

    The wait is prevented in every config directory that OpenCode reads when it starts in ``cwd``, or in the project if
    the target is a project. Idempotent: another run only updates what is outdated.

    Raises:
        Failure: a file that ``install`` did not write is in the way.
        OSError: a directory cannot be written.
    """
    outcome = Outcome()
    text = plugin_text(shim, command, home)
    there = os.path.lexists(target.plugin)
    if there and not is_ours(target.plugin):
        raise Failure(
            "cannot-install", f"{target.plugin} was not written by durable-stream: move it away, then install again"
        )
    config_directories = ConfigDirectories.of(
        target.config.parent if target.scope == "project" else (cwd or Path.cwd()), environ
    )
    ledger = Ledger.read(config_directories.user)
    ledger.note_directories(target.config, target.plugin.parent)
    ledger.plugins = list(dict.fromkeys([*ledger.plugins, str(target.plugin)]))
    ledger.write()
    make_directories(target.plugin.parent, npm.DIRECTORY_MODE)
    is_open = there and target.plugin.stat().st_mode & npm.OTHERS_MAY_WRITE
    if there and not is_open and target.plugin.read_text(encoding="utf-8") == text:
        outcome.lines.append(f"{target.plugin} is already there and up to date")
    else:
        npm.write(target.plugin, text.encode(), is_ours=True)
        outcome.did(f"{'renewed' if there else 'wrote'} {target.plugin}")
    if target.scope == "global" and (done := install_tui(target.config, tui_text(FIRST_LINE, shim, command, home))):
        outcome.did(done)
    if target.scope == "global":
        outcome.did_all(install_tui2(target.config, FIRST_LINE, tui2_text(FIRST_LINE, shim, command, home)))
    for directory in dict.fromkeys([*config_directories.all, target.config]):
        _prepare(ledger, directory, outcome)
    return outcome


def prepare(config_directories: ConfigDirectories, directories: Sequence[Path]) -> Outcome:
    """Keep OpenCode from waiting for npm because of further config directories, as ``install`` does.

    Raises:
        OSError: a directory cannot be written.
    """
    outcome = Outcome()
    ledger = Ledger.read(config_directories.user)
    for directory in directories:
        _prepare(ledger, directory, outcome)
    return outcome


def uninstall(target: Target, *, environ: Mapping[str, str] = os.environ) -> Outcome:
    """Remove the plugin file, and everything else that ``install`` made and no other plugin file of ours needs.

    Keeps files that somebody has changed since the installation.

    Raises:
        Failure: ``install`` did not write the plugin file.
        OSError: a file cannot be removed.
    """
    outcome = Outcome()
    if os.path.lexists(target.plugin):
        if not is_ours(target.plugin):
            raise Failure(
                "cannot-install",
                f"{target.plugin} was not written by durable-stream: remove it yourself if you no longer need it",
            )
        target.plugin.unlink()
        outcome.did(f"removed {target.plugin}")
    else:
        outcome.lines.append(f"{target.plugin} does not exist: nothing to remove")
    outcome.did_all([*uninstall_tui(target.config, FIRST_LINE), *uninstall_tui2(target.config, FIRST_LINE)])
    ledger = Ledger.read(ConfigDirectories.of(Path("/"), environ).user)
    ledger.plugins = [plugin for plugin in ledger.plugins if is_ours(Path(plugin))]
    home = Path(environ.get("HOME") or Path.home())
    emptied = []
    for directory, kinds in list(ledger.made.items()):
        if directory == target.config and PLUGIN in kinds:
            kinds.remove(PLUGIN)
            if _remove_empty(directory / PLUGIN):
                outcome.did(f"removed {directory / PLUGIN}")
        only_ours = CONFIG in kinds and directory == target.config and directory.is_dir()
        only_ours = only_ours and {path.name for path in directory.iterdir()} <= {k.partition(" ")[0] for k in kinds}
        if _is_needed(directory, ledger, home) and not only_ours:
            continue
        del ledger.made[directory]
        for kind in kinds:
            if kind != CONFIG and npm.undo(directory, kind):
                outcome.did(_undone(directory, kind))
        if CONFIG in kinds:
            emptied.append(directory)
    ledger.write()
    for directory in emptied:
        if _remove_empty(directory):
            outcome.did(f"removed {directory}")
    return outcome


def _prepare(ledger: Ledger, directory: Path, outcome: Outcome) -> None:
    made = [kind for kind in ledger.made.get(directory, ()) if kind not in (CONFIG, PLUGIN)]
    config_kinds = [kind for kind in ledger.made.get(directory, ()) if kind in (CONFIG, PLUGIN)]
    kinds = npm.wanted(directory, made)
    ledger.made[directory] = list(dict.fromkeys([*config_kinds, *made, *kinds]))
    ledger.write()
    for kind in made:
        if kind not in kinds and npm.undo(directory, kind):
            outcome.did(_undone(directory, kind))
    new = [kind for kind in kinds if npm.make(directory, kind)]
    if set(new) & set(npm.STUB):
        outcome.did(f"created an empty {npm.MODULES} and {npm.LOCK} in {directory} so that OpenCode starts without npm")
    elif new:
        outcome.did(f"set fetch-retries=0 in {directory / npm.RC} so that OpenCode does not wait for npm")
    ledger.made[directory] = [*config_kinds, *kinds]
    ledger.write()
    if npm.waits(directory):
        hint = "it is your own file and was left unchanged; to avoid the wait, set fetch-retries=0 there"
        outcome.lines.append(f"without a network, OpenCode waits for npm because of {directory / npm.RC}: {hint}")


def _is_needed(directory: Path, ledger: Ledger, home: Path) -> bool:
    """True if one of the remaining plugins would make OpenCode wait for npm in this directory."""
    configs = [Path(plugin).parent.parent for plugin in ledger.plugins]
    if not configs or ledger.user in configs:
        return bool(configs)  # OpenCode loads the user's plugin in every project
    if directory.name != ".opencode" or directory.parent == home:
        return True  # OpenCode reads the user's directories in every project
    # In a subdirectory, OpenCode also loads the project's plugin, and reads every config directory in between.
    place, roots = directory.parent, [config.parent for config in configs]
    return any(root.is_relative_to(place) or place.is_relative_to(root) for root in roots)


def _remove_empty(path: Path) -> bool:
    if path.is_symlink() or not path.is_dir() or any(path.iterdir()):
        return False
    path.rmdir()
    return True


def _undone(directory: Path, kind: str) -> str:
    if kind == npm.RC_LINES:
        return f"removed fetch-retries=0 from {directory / npm.RC}"
    return f"removed {directory / kind}"


@dataclass(slots=True)
class Ledger:
    """The ledger of ``install``: the plugin files, and what else it created in each directory.

    The ledger is in the user's config directory ``user`` and covers all targets. The ledger is removed when nothing
    that it lists is left.
    """

    user: Path
    plugins: list[str] = field(default_factory=list)
    made: dict[Path, list[str]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.user / LEDGER_NAME

    @classmethod
    def read(cls, user: Path) -> Ledger:
        """Read the ledger; return an empty ledger if the file is missing or cannot be read."""
        ledger = cls(user)
        try:
            found: Any = json.loads(ledger.path.read_bytes())
            plugins, made = list(found["plugins"]), dict(found["made"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return ledger
        # Accept only what `install` can have written, because other programs write to this directory too.
        ledger.plugins = [name for name in plugins if isinstance(name, str) and Path(name).name == PLUGIN_NAME]
        for name, kinds in made.items():
            if Path(name).is_absolute() and isinstance(kinds, list):
                ledger.made[Path(name)] = [kind for kind in kinds if kind in _KINDS]
        return ledger

    def note_directories(self, config: Path, plugin: Path) -> None:
        """Note which of a target's directories install is about to make."""
        for directory, paths in ((self.user, {CONFIG: self.user}), (config, {CONFIG: config, PLUGIN: plugin})):
            kinds = self.made.setdefault(directory, [])
            kinds += [kind for kind, path in paths.items() if not path.is_dir() and kind not in kinds]

    def write(self) -> None:
        """Write the ledger, or remove it if it is empty."""
        made = {str(path): kinds for path, kinds in self.made.items() if kinds}
        if not made and not self.plugins:
            self.path.unlink(missing_ok=True)
            return
        content = (json.dumps({"plugins": self.plugins, "made": made}, indent=1) + "\n").encode()
        make_directories(self.user, npm.DIRECTORY_MODE)
        if not self.path.is_file() or self.path.read_bytes() != content:
            npm.write(self.path, content, is_ours=True)
