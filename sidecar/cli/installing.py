"""``install`` and ``uninstall``: the plugin file in OpenCode's config directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.command import Failure, JsonFlag, home_of

if TYPE_CHECKING:
    from sidecar.installer import Outcome, Target

GlobalFlag = Annotated[bool, typer.Option("--global", help="For every project of yours (the default).")]
ProjectOption = Annotated[Path | None, typer.Option("--project", metavar="DIR", help="Only for the project in DIR.")]


def executable() -> list[str]:
    """The command that starts this program again."""
    from sidecar.installer import executable_command

    return executable_command(sys.argv[0])


def install(
    context: typer.Context, everywhere: GlobalFlag = False, project: ProjectOption = None, json: JsonFlag = False
) -> None:
    """Make OpenCode record its sessions.

    Writes the plugin file; it counts from OpenCode's next start on.
    """
    from sidecar import installer

    target = _target(everywhere, project)
    outcome = _checked(
        lambda: installer.install(target, shim=installer.shim_path(), command=executable(), home=home_of(context).path)
    )
    _tell(outcome, target, json, "Restart OpenCode: from then on its sessions are recorded.", "install")
    if not json:
        _warn_of_two(target)


def uninstall(
    context: typer.Context, everywhere: GlobalFlag = False, project: ProjectOption = None, json: JsonFlag = False
) -> None:
    """Take the plugin away; what was recorded stays in the home."""
    from sidecar import installer

    target = _target(everywhere, project)
    outcome = _checked(lambda: installer.uninstall(target))
    kept = f"Restart OpenCode: it records no more. What was recorded stays in {home_of(context).path}."
    _tell(outcome, target, json, kept, "uninstall")


def _target(everywhere: bool, project: Path | None) -> Target:
    from sidecar.installer import Target

    if project is None:
        return Target.everywhere()
    if everywhere:
        raise typer.BadParameter("--global and --project exclude each other")
    if not project.expanduser().is_dir():
        raise Failure(f"{project}: there is no such directory; name the project's root")
    return Target.project(project)


def _checked(act: Callable[[], Outcome]) -> Outcome:
    from sidecar.installer import InstallError

    try:
        return act()
    except InstallError as error:
        raise Failure(str(error)) from None


def _tell(outcome: Outcome, target: Target, json: bool, afterwards: str, action: str) -> None:
    from sidecar.cli.output import Output

    out = Output(json)
    if json:
        out.object(
            {"action": action, "scope": target.scope, "plugin": str(target.plugin), "changed": outcome.changed}
            | {"done": outcome.lines}
        )
        return
    for line in outcome.lines:
        out.text(line)
    if outcome.changed:
        out.text(afterwards, "bold")


def _warn_of_two(target: Target) -> None:
    from sidecar.cli.command import complain
    from sidecar.installer import Target, is_ours

    other = Target.project(Path.cwd()) if target.scope == "global" else Target.everywhere()
    if other.plugin != target.plugin and is_ours(other.plugin):
        remove = "--global" if other.scope == "global" else "--project ."
        complain(
            f"the plugin is also at {other.plugin}: both copies would be loaded, which records the same events once "
            f"but costs twice; remove one, for example with `durable-stream uninstall {remove}`"
        )
