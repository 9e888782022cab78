"""Which plugins of the one who asks are missing where background work runs. Pure.

A plugin may forbid a tool, so work in a copy of a project needs each plugin that is loaded for the project.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePath
from urllib.parse import unquote, urlsplit

from sidecar.background.hosts.host import HostError


class PluginMissing(HostError):
    """The one who asks has loaded plugins that are not loaded where the work would run. ``named`` says which."""

    def __init__(self, named: Collection[str]) -> None:
        listed = ", ".join(sorted(named))
        super().__init__(
            f"a plugin that may forbid something is not loaded for the work: {listed}; see that git does not ignore "
            "the plugin and what it imports, or start the work with `--isolation shared`",
            permanent=True,
        )


def check_plugins(asked: Collection[str], loaded: Collection[str], project: str, work: str) -> None:
    """Compare the plugins that are loaded for a project with those for the directory of some work. A plugin is named by
    its path or URL, or else by its package.

    Raises:
        PluginMissing: some of the project's are not loaded for the work.
    """
    roots = _roots(PurePath(work), PurePath(project))
    missing = {_name(each, roots) for each in asked} - {_name(each, roots) for each in loaded}
    if missing:
        raise PluginMissing(missing)


def _roots(work: PurePath, project: PurePath) -> tuple[PurePath, PurePath]:
    """The directories above both, from which on their paths are equal."""
    while work.name and work.name == project.name:
        work, project = work.parent, project.parent
    return work, project


def _name(plugin: str, roots: tuple[PurePath, PurePath]) -> str:
    """A name that does not depend on where the copy is."""
    path = PurePath(unquote(urlsplit(plugin).path) if plugin.startswith("file:") else plugin)
    return next((str(path.relative_to(root)) for root in roots if path.is_relative_to(root)), str(path))
