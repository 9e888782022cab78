"""Checks that OpenCode and the plugin are installed, complete, loaded and of one version, and that OpenCode's start
does not wait for npm.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sidecar.background.hosts.missing_features import MEANINGS, lacks_of
from sidecar.care.checks.check import Check, Fix, Plugin, Scene, again
from sidecar.care.checks.running_sidecar import refused_plugin
from sidecar.install.npm import (
    BOTH_READ,
    PLUGIN_PACKAGE,
    RC,
    ConfigDirectories,
    read_rc,
    settings_with_package,
    starves,
    waits,
)
from sidecar.install.plugin import RELOAD, REMOVE_PACKAGE, RESTART
from sidecar.record.exclusion import Exclusion
from sidecar.version import VERSION

OLDEST_OPENCODE = (1, 18)
"""The oldest supported release."""

TESTED = ("1.18.33", "2.0.15")
"""The version of each major release that the tests run, oldest first; see ``docs/opencode2.md``. Any other supported
version gives a note, not a problem."""

UNTESTED = (
    "docs/opencode2.md lists what was tested; everything that a newer release sends is recorded, but some of "
    "it may not be understood"
)

ANSWER_SECONDS = 20.0
"""How long a program may take to print its version; OpenCode takes seconds on a busy machine."""

PROJECTS = 500
"""Maximum number of projects from the log that are checked."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)\S*")

_NO = frozenset({"", "0", "false", "no", "off", "n"})


def check_opencode(scene: Scene) -> list[Check]:
    """The versions of OpenCode on the PATH and linked, and what each lacks for background work."""
    said = {path: _VERSION.search(output_of([path, "--version"]) or "") for path in programs(scene.environ.get("PATH"))}
    checks = [_check_program(path, numbers) for path, numbers in said.items()]
    if not checks:
        hint = "install OpenCode, or add its directory to the PATH; the plugin also works with the copy inside an IDE"
        checks = [Check("opencode", "note", "not on the PATH", hint)]
    answer = scene.answer or {}
    versions = [numbers[0] for numbers in said.values() if numbers]
    links = [(str(link.get("opencode_version") or ""), link) for link in answer.get("links") or []]
    ones = dict.fromkeys(version for version, link in links if version not in versions and not link.get("service"))
    checks += [_check_version("opencode", numbers, " (connected)") for numbers in map(_VERSION.match, ones) if numbers]
    versions += [version for version, _ in links if _VERSION.match(version)]
    versions += [str(service["version"]) for service in answer.get("services") or [] if service.get("version")]
    return checks + [_check_lacks(version) for version in dict.fromkeys(versions)]


def programs(path: str | None) -> list[str]:
    """Every OpenCode on the PATH. OpenCode 1 and 2 have the same name, so one may be behind the other."""
    found = [shutil.which("opencode", path=place) for place in (path or os.defpath).split(os.pathsep) if place]
    return list({os.path.realpath(each): each for each in reversed(found) if each is not None}.values())[::-1]


def _check_lacks(version: str) -> Check:
    lacked = sorted(lacks_of(version))
    if not lacked:
        return Check("background", "ok", f"OpenCode {version} has everything that background work needs")
    text = f"OpenCode {version}: {'; '.join(MEANINGS[each] for each in lacked)}"
    return Check(
        "background",
        "note",
        text,
        "`durable-stream top` and the channels of [notify] show what is running and what has ended",
    )


def _check_program(path: str, numbers: re.Match[str] | None) -> Check:
    if numbers is None:
        return Check("opencode", "note", f"{path} does not print its version", f"run `{path} --version` to see why")
    return _check_version("opencode", numbers, f" at {path}")


def _check_version(name: str, numbers: re.Match[str], where: str) -> Check:
    text, release = f"{numbers[0]}{where}", _release(numbers)
    if numbers[0] in TESTED:
        return Check(name, "ok", text)
    if release < OLDEST_OPENCODE:
        oldest = ".".join(map(str, OLDEST_OPENCODE))
        hint = f"upgrade OpenCode; {oldest} is the oldest release that the plugin supports"
        return Check(name, "problem", f"{text} is too old", hint)
    majors = [version for version in TESTED if version.split(".")[0] == numbers[1]]
    proven = (majors or TESTED)[-1]
    if release > tuple(map(int, proven.split("."))):
        return Check(name, "note", f"{text} is newer than {proven}, the last proven version", UNTESTED)
    return Check(name, "note", f"{text}: not tested; the proven version is {proven}", UNTESTED)


def _release(numbers: re.Match[str]) -> tuple[int, ...]:
    return int(numbers[1]), int(numbers[2]), int(numbers[3])


def check_services(scene: Scene) -> list[Check]:
    """Whether the sidecar reads the OpenCode 2 services whose plugin is linked."""
    checks = []
    for service in (scene.answer or {}).get("services") or []:
        version, state, place = (str(service.get(name) or "") for name in ("version", "state", "registration"))
        if state == "refused":
            hint = (
                "the file must be accessible only to you (mode 600) and name a loopback address; sidecar.log says "
                "what is wrong"
            )
            checks.append(Check("opencode 2", "problem", f"its service is not read, because {place} is unsafe", hint))
        elif state == "starting":
            checks.append(Check("opencode 2", "note", "its plugin is connected, and its service is being asked"))
        elif state != "read":
            text = f"its plugin is connected, but no service answers at the address in {place}"
            checks.append(
                Check("opencode 2", "note", text, "sessions are read as soon as the service answers; nothing is lost")
            )
        elif numbers := _VERSION.match(version):
            checks.append(_check_version("opencode 2", numbers, ", a service that is read"))
        else:
            checks.append(Check("opencode 2", "note", "a service of an unknown version is read", UNTESTED))
    return checks


def check_switches(scene: Scene) -> list[Check]:
    """Variables of this shell that keep OpenCode from loading the plugin."""
    environ, checks = scene.environ, []
    if environ.get("DURABLE_STREAM", "").strip().lower() == "off":
        text = "DURABLE_STREAM=off is set here: an OpenCode started from this shell is not recorded"
        checks.append(Check("switches", "note", text, "run `unset DURABLE_STREAM`"))
    if _is_set(environ.get("OPENCODE_PURE")):
        text = "OPENCODE_PURE is set here: an OpenCode started from this shell loads no plugin"
        checks.append(Check("switches", "problem", text, "run `unset OPENCODE_PURE`"))
    if _is_set(environ.get("OPENCODE_DISABLE_PROJECT_CONFIG")) and scene.plugins and not scene.is_everywhere:
        text = "OPENCODE_DISABLE_PROJECT_CONFIG is set here: OpenCode does not load the plugin of this project"
        hint = "run `unset OPENCODE_DISABLE_PROJECT_CONFIG`, or `durable-stream install` for all projects"
        checks.append(Check("switches", "problem", text, hint))
    return checks or [Check("switches", "ok", "no variable of this shell keeps OpenCode from loading the plugin")]


def _is_set(value: str | None) -> bool:
    return value is not None and value.strip().lower() not in _NO


def check_plugin(scene: Scene) -> list[Check]:
    """The plugin files that OpenCode loads here, and whether what they name exists and can be run."""
    if not scene.is_installed:
        hint = f"run `durable-stream install`, then {RESTART}"
        fix = Fix("install", scene.config_directories.user)
        return [Check("plugin", "problem", "not installed, so OpenCode's sessions are not recorded", hint, fix)]
    checks = [_check_plugin(scene, plugin) for plugin in scene.plugins]
    both = settings_with_package(scene.cwd, scene.environ, [BOTH_READ])
    for path in scene.packages:
        text = f"{path} names the npm package {PLUGIN_PACKAGE}{'' if path in both else ', for OpenCode 2 alone'}"
        if scene.package_home == scene.home.path:
            checks.append(Check("plugin", "ok", text))
        else:
            hint = "set DURABLE_STREAM_HOME for OpenCode, or run `durable-stream doctor` without `--home`"
            checks.append(Check("plugin", "note", f"{text}, which records into {scene.package_home}", hint))
    if scene.plugins and scene.command and not any(plugin.names.command == scene.command for plugin in scene.plugins):
        hint = "run `durable-stream install` from the copy that you want to use"
        text = f"the plugin starts another copy of this program: {' '.join(scene.plugins[0].names.command[:1])}"
        checks.append(Check("plugin", "note", text, hint))
    return checks


def _check_plugin(scene: Scene, plugin: Plugin) -> Check:
    target, names = plugin.target, plugin.names
    missing = missing_files(plugin)
    if missing:
        return missing[0]
    if not scene.quick and output_of([*names.command, "--version"]) is None:
        text = f"{' '.join(names.command)} cannot be run"
        return Check("plugin", "problem", text, again(target), Fix("install", target.config))
    if names.home != str(scene.home.path):
        hint = f"to check that home, run `durable-stream --home {names.home} doctor`"
        return Check("plugin", "note", f"{target.plugin} records into another home, {names.home}", hint)
    return Check("plugin", "ok", f"{target.plugin} ({target.scope})")


def missing_files(plugin: Plugin) -> list[Check]:
    """A finding for each file that a plugin names and that is missing. Runs nothing."""
    target, names = plugin.target, plugin.names
    fix = Fix("install", target.config)
    if not names.command:
        return [Check("plugin", "problem", f"{target.plugin} was changed and cannot be read", again(target), fix)]
    return [
        Check("plugin", "problem", f"{target.plugin} names {path} ({what}), which does not exist", again(target), fix)
        for what, path in (("shim", names.shim), ("executable", names.command[0]))
        if not Path(path).is_file()
    ]


def check_copies(scene: Scene) -> list[Check]:
    """Whether OpenCode loads more than one copy of the plugin here, and the versions of the copies."""
    copies = [f"{p.target.plugin} ({shim_version(p) or 'unknown version'})" for p in scene.plugins]
    copies += [f"the npm package that {path} names" for path in scene.packages]
    if len(copies) < 2:
        return []
    others = [plugin.target for plugin in scene.plugins if plugin.target.scope == "project"]
    remove = f"durable-stream uninstall --project {others[0].config.parent}" if others else REMOVE_PACKAGE
    hint = f"every event is still recorded once, but at twice the cost. To remove one copy, run `{remove}`"
    text = f"OpenCode loads more than one copy of the plugin: {' and '.join(copies)}"
    return [Check("copies", "note", text, hint)]


def check_refused(scene: Scene) -> list[Check]:
    """Whether the running sidecar had to refuse a plugin."""
    refused = refused_plugin(scene.answer or {})
    return [] if refused is None else [Check("versions", "problem", *refused)]


def check_versions(scene: Scene) -> list[Check]:
    """The versions of this program, of each plugin and its program, and of the running sidecar."""
    found: dict[str, str] = {"this program": VERSION}
    for plugin in scene.plugins:
        if not missing_files(plugin):
            found[f"the shim of {plugin.target.plugin}"] = shim_version(plugin) or "unknown"
            said = re.search(r"\d+\.\d+\.\d+\S*", output_of([*plugin.names.command, "--version"]) or "")
            found[plugin.names.command[0]] = said[0] if said else "unknown"
    for link in (scene.answer or {}).get("links") or []:
        if version := link.get("shim_version"):
            found[f"the plugin in OpenCode (pid {link.get('pid')})"] = str(version)
    info = scene.home.running()
    if info is not None:
        found["the running sidecar"] = info.version
    odd = {what: version for what, version in found.items() if version != VERSION}
    if not odd:
        return [Check("versions", "ok", f"{VERSION} everywhere")]
    text = f"this program is {VERSION}, " + ", ".join(f"{what} is {version}" for what, version in odd.items())
    if list(odd) == ["the running sidecar"]:
        return [
            Check("versions", "note", text, "run `durable-stream stop`; the next sidecar has this program's version")
        ]
    return [Check("versions", "note", text, f"run `durable-stream install` again, then {RELOAD}")]


def shim_version(plugin: Plugin) -> str | None:
    """The version of the shim that a plugin file names; ``None`` if it cannot be read."""
    try:
        text = Path(plugin.names.shim).with_name("version.js").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = re.search(r'SHIM_VERSION = "([^"]+)"', text)
    return found[1] if found else None


def check_excluded(scene: Scene) -> list[Check]:
    """Whether the configuration excludes the current directory."""
    if scene.config is None or not Exclusion(scene.config.capture.exclude).covers(str(scene.cwd)):
        return []
    text = f"{scene.cwd} is not recorded, because `exclude` in [capture] covers it"
    return [Check("excluded", "note", text, f"to change that, edit {scene.home.config_path}")]


def check_startup(scene: Scene) -> list[Check]:
    """Whether OpenCode's start waits for npm, here and in the projects that the log names."""
    if not scene.plugins:
        return []  # without a plugin, OpenCode does not wait for npm
    directories = dict.fromkeys(scene.config_directories.all)
    if scene.is_everywhere:
        linked = [str(link.get("directory") or "/") for link in (scene.answer or {}).get("links") or []]
        for project in dict.fromkeys([*linked, *scene.survey.directories[:PROJECTS]]):
            directories |= dict.fromkeys(ConfigDirectories.of(Path(project), scene.environ).others)
    checks = [check for directory in directories for check in _check_directory(scene, directory)]
    return checks or [Check("start-up", "ok", "OpenCode's start does not wait for npm")]


def _check_directory(scene: Scene, directory: Path) -> list[Check]:
    hint = "run `durable-stream doctor --fix`"
    if starves(directory):
        text = (
            f"{directory} may need npm packages, but the empty node_modules from `install` keeps OpenCode from "
            "installing them"
        )
        return [Check("start-up", "problem", text, hint, Fix("prepare", directory))]
    if not waits(directory, scene.environ):
        return []
    text = f"without a network, {directory} makes OpenCode wait over a minute for npm at each start"
    if "fetch-retries" in read_rc(directory / RC) or (directory / RC).is_symlink():
        # A ``fetch-retries`` line, or an .npmrc that is a symbolic link, is the user's own setting, which `install`
        # never changes.
        hint = f"to avoid the wait, set fetch-retries=0 in {directory / RC}"
        return [Check("start-up", "note", text, hint)]
    return [Check("start-up", "problem", text, hint, Fix("prepare", directory))]


def output_of(command: Sequence[str], seconds: float = ANSWER_SECONDS) -> str | None:
    """What a program prints; ``None`` if it cannot be run, fails, or takes longer than ``seconds``."""
    try:
        # Run the program in ``/``, because the plugin may start it anywhere: in a checkout, Python also finds modules
        # that are not installed.
        done = subprocess.run(  # noqa: S603 - the command is the one that was installed
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
