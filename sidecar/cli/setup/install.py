"""``install`` and ``uninstall``: the plugin file in OpenCode's config directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sidecar.cli.shared.command import RUNS, Run
from sidecar.failure import Failure

if RUNS:
    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.command import note
    from sidecar.install import plugin as installer
    from sidecar.install.npm import settings_with_package
    from sidecar.install.plugin import REMOVE_PACKAGE, Outcome, Target, executable_command, is_ours


GlobalFlag = Annotated[bool, typer.Option("--global", help="For all your projects (the default).")]
ProjectOption = Annotated[Path | None, typer.Option("--project", metavar="DIR", help="Only for the project in DIR.")]


def executable() -> list[str]:
    """The command that starts this program again."""
    return executable_command(sys.argv[0])


def install(
    run: Run,
    everywhere: GlobalFlag = False,
    project: ProjectOption = None,
) -> None:
    """Make OpenCode record its sessions.

    Writes the plugin file, which OpenCode loads when it next starts. Also keeps OpenCode from waiting for npm when it
    starts.
    """
    target = _target(everywhere, project)
    home = run.home.path
    outcome = installer.install(target, shim=installer.shim_path(), command=executable(), home=home)
    facts: dict[str, Any] = {}
    if project is not None and (loose := _committable(target)):
        facts["git_would_commit"] = loose
    afterwards = f"Now {installer.RESTART}. From then on, its sessions are recorded."
    _tell(run.out, outcome, target, afterwards, "install", facts)
    if not run.out.json:
        _warn_of_two(target)
        _warn_of_git(target, facts.get("git_would_commit", []))


def uninstall(run: Run, everywhere: GlobalFlag = False, project: ProjectOption = None) -> None:
    """Remove the plugin; everything recorded stays in the home.

    Also removes everything else that install created.
    """
    target = _target(everywhere, project)
    outcome = installer.uninstall(target)
    others = _other_copies(target)
    stays = f"What was recorded stays in {run.any_home.path}."
    afterwards = f"Now {installer.RESTART}. Then nothing more is recorded. {stays}"
    if others:
        still = " and ".join(f"at {place} (remove it with {removal})" for place, removal in others.items())
        afterwards = f"The plugin is still {still}, so OpenCode continues recording. {stays}"
    _tell(run.out, outcome, target, afterwards, "uninstall", {})


def _target(everywhere: bool, project: Path | None) -> Target:
    if project is None:
        return Target.everywhere()
    if everywhere:
        raise typer.BadParameter("give `--global` or `--project`, not both")
    if not project.expanduser().is_dir():
        raise Failure("not-found", f"{project}: this directory does not exist; name the project's root")
    return Target.project(project)


def _tell(
    out: Output, outcome: Outcome, target: Target, afterwards: str, action: str, facts: Mapping[str, Any]
) -> None:
    if out.json:
        out.object(
            {"action": action, "scope": target.scope, "plugin": str(target.plugin), "changed": outcome.changed}
            | {"done": outcome.lines, **facts}
        )
        return
    for line in outcome.lines:
        out.text(line)
    if outcome.changed:
        out.text(afterwards, "bold")


def _committable(target: Target) -> list[str]:
    """The files that ``install`` wrote into the project and that git would commit, relative to the project; empty
    without git."""
    from tempfile import TemporaryDirectory

    from sidecar.background.copies.repository import make_store, repository_of, top_of
    from sidecar.background.copies.store import CopyError

    place = target.config.parent
    names = [target.plugin.relative_to(target.config.parent), Path(target.config.name) / "package-lock.json"]
    if (top := top_of(str(place.resolve()))) is None:
        return []
    below = {str((place.resolve() / name).relative_to(top)): str(name) for name in names if (place / name).exists()}
    try:
        with TemporaryDirectory() as folder:
            store = make_store(Path(folder, "store"), top, repository_of(top), Path(folder, "none"))
            known = store.tracked() | store.ignored(top, below)
    except CopyError:
        return []
    return [name for path, name in below.items() if path not in known]


def _warn_of_git(target: Target, loose: list[str]) -> None:
    if loose:
        note(
            f"Warning: git would commit {' and '.join(loose)}, which are only for this machine; add them to .gitignore "
            f"or {target.config.parent / '.git' / 'info' / 'exclude'}"
        )


def _warn_of_two(target: Target) -> None:
    for place, removal in _other_copies(target).items():
        note(
            f"Warning: the plugin is also at {place}, so OpenCode loads both copies: each event is still "
            f"recorded once, but at twice the cost; remove one copy, for example with {removal}"
        )


def _other_copies(target: Target) -> dict[Path, str]:
    """The other places from which OpenCode loads the plugin, each with the command that removes it there: the plugin
    file for all projects or of this directory's project, and each configuration file that names the npm package.
    """
    other = Target.project(Path.cwd()) if target.scope == "global" else Target.everywhere()
    copies = {}
    if other.plugin != target.plugin and is_ours(other.plugin):
        where = "--global" if other.scope == "global" else "--project ."
        copies[other.plugin] = f"`durable-stream uninstall {where}`"
    return copies | dict.fromkeys(settings_with_package(Path.cwd()), f"`{REMOVE_PACKAGE}`")
