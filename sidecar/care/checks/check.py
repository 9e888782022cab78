"""The types of a check: the ``Scene`` it reads and the ``Check`` findings it returns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sidecar.home import Home
from sidecar.install.npm import ConfigDirectories, settings_with_package
from sidecar.install.plugin import Installed, Target, read_plugin

if TYPE_CHECKING:
    from sidecar.config import Config
    from sidecar.read.story.catalog import Sums

Level = Literal["ok", "note", "problem"]

Action = Literal["install", "prepare", "close", "unlock", "renew token", "take spools"]


class Fix(NamedTuple):
    """The action that ``doctor --fix`` takes for a finding, and the path it changes."""

    action: Action
    path: Path


class Check(NamedTuple):
    """One finding, and what to do about it, if anything.

    ``problem``: something is not recorded, or soon will not be. ``note``: recording works, but the user should know
    about this.
    """

    name: str
    level: Level
    text: str
    hint: str = ""
    fix: Fix | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON values; ``fix`` is only the action, or null."""
        return self._asdict() | {"fix": self.fix.action if self.fix is not None else None}


class Survey(NamedTuple):
    """What the checks need from the log. ``fault`` says why the log cannot be read.

    Times are in ms since 1970; ``directories`` are those of the recorded sessions, the newest first.
    """

    head: int = -1
    newest: int = 0
    last_ts: int | None = None
    directories: tuple[str, ...] = ()
    fault: str | None = None
    hint: str = ""
    """What to do about the fault, in addition to the text of ``fault``."""
    torn: str | None = None
    """A fault that the next start of the sidecar repairs."""
    journal: Mapping[str, Any] | None = None
    """What the journal holds, as ``LogReader.waiting`` says it."""
    pruned: int = 0
    """The number of records up to ``head`` that were removed."""
    failing: Mapping[str, str] = {}
    """The channels to a person that did not accept the newest message, each with the error."""
    losses: tuple[str, ...] = ()
    """What was lost, a sentence each."""
    copies: tuple[str, ...] = ()
    """The copies that ended background work left behind."""
    agents: Sequence[Mapping[str, Any]] = ()
    """What the log says of agents, as in the status of a sidecar."""
    saved: int = 0
    """How many ended intents have changes that are saved in a repository."""
    work: tuple[tuple[str, str], ...] = ()
    """What failed in the last day, and work that waits for a terminal: a text and a hint each."""
    cut_off: str | None = None
    """A removal that was interrupted."""
    sums: Sums | None = None
    """What the records are together; ``None`` if the log cannot be read."""
    streams: int = 0
    gaps: int = 0
    has_work: bool = False
    """Whether there ever was background work."""


class Plugin(NamedTuple):
    """One of our plugin files that OpenCode loads in the current directory, and the paths that this file names."""

    target: Target
    names: Installed


class Scene(NamedTuple):
    """The input of every check, gathered once.

    ``command`` starts this program. ``config`` is ``None`` if the configuration cannot be read; ``config_fault`` then
    says why, and ``config_advice`` says what to do. A quick scene does not load a configuration that has only default
    values. ``answer`` is the running sidecar's status; ``silence`` says why it did not answer.
    """

    home: Home
    command: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str]
    config_directories: ConfigDirectories
    plugins: tuple[Plugin, ...]
    config: Config | None = None
    config_fault: str = ""
    config_advice: str = ""
    answer: Mapping[str, Any] | None = None
    silence: str = ""
    survey: Survey = Survey()
    now_ms: int = 0
    """When the survey ended."""
    packages: tuple[Path, ...] = ()
    """The OpenCode configuration files that name our npm package."""
    quick: bool = False
    """Whether the checks are those of ``status``."""

    @property
    def is_installed(self) -> bool:
        """Whether OpenCode loads the plugin in the current directory, from a plugin file or as an npm package."""
        return bool(self.plugins or self.packages)

    @property
    def package_home(self) -> Path:
        """The home into which the npm package records, because no file names another one."""
        return Home(environ=self.environ).path

    @property
    def is_everywhere(self) -> bool:
        return any(plugin.target.config == self.config_directories.user for plugin in self.plugins)


def scene_of(
    home: Home,
    command: tuple[str, ...] = (),
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    quick: bool = False,
    served: bool = False,
) -> Scene:
    """The part of the scene that is cheap to gather.

    With ``quick``, the configuration is loaded only if a check of ``status`` could need it; ``served`` says that
    the running sidecar loaded the same configuration.
    """
    cwd = cwd or Path.cwd()
    config_directories = ConfigDirectories.of(cwd, environ)
    found = []
    for directory in config_directories.all:
        target = Target("global" if directory == config_directories.user else "project", directory)
        names = read_plugin(target.plugin)
        if names is not None:
            found.append(Plugin(target, names))
    needless = quick and (has_defaults(home, environ) or (served and not names_exclusions(home)))
    packages = tuple(settings_with_package(cwd, environ))
    scene = Scene(home, command, cwd, environ, config_directories, tuple(found), packages=packages, quick=quick)
    return scene if needless else _with_config(scene)


def has_defaults(home: Home, environ: Mapping[str, str] = os.environ) -> bool:
    """True if no setting can differ from its default. Loading a configuration takes 0.1 s."""
    return not os.path.lexists(home.config_path) and not any(
        name.upper().startswith("DURABLE_STREAM_") and "__" in name for name in environ
    )


def names_exclusions(home: Home) -> bool:
    """True if config.toml may exclude directories. Only then does ``status`` read a configuration that is in use."""
    try:
        return b"exclude" in home.config_path.read_bytes()
    except OSError:
        return True


def _with_config(scene: Scene) -> Scene:
    from sidecar.config import ConfigError, load_config

    try:
        return scene._replace(config=load_config(scene.home.config_path))
    except ConfigError as error:
        return scene._replace(config_fault=str(error), config_advice=error.advice)


def again(target: Target) -> str:
    """The hint that names the command to rewrite a target's plugin file."""
    where = f" --project {target.config.parent}" if target.scope == "project" else ""
    return f"run `durable-stream install{where}` again"
