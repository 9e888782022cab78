"""Which plugins of a project are missing where its background work runs."""

from __future__ import annotations

import pytest

from sidecar.background.hosts.plugins import PluginMissing, check_plugins

OURS = "/home/ada/.config/opencode/plugin/ours.js"


@pytest.mark.parametrize(
    ("project", "work"),
    [
        ("/home/ada/shop", "/data/worktrees/int_1"),
        ("/home/ada/shop", "/data/copies/int_1/files/home/ada/shop"),
        ("/home/ada/shop/web", "/data/worktrees/int_1/web"),
        ("/home/ada/shop", "/home/ada/shop"),
    ],
)
def test_a_plugin_has_one_name_in_a_project_and_in_a_copy_of_it(project: str, work: str) -> None:
    asked = [OURS, "guard@1.2", f"{project}/.opencode/plugin/guard.js"]
    check_plugins(asked, [*asked[:2], f"file://{work}/.opencode/plugin/guard.js", f"{work}/more.js"], project, work)
    with pytest.raises(PluginMissing, match=r"guard\.js") as missing:
        check_plugins(asked, [*asked[:2], f"{work}/.opencode/plugin/other.js"], project, work)
    assert missing.value.permanent and "ours.js" not in str(missing.value)
    with pytest.raises(PluginMissing, match=r"guard@1\.2"):
        check_plugins(asked, [OURS, asked[2]], project, work)


def test_a_plugin_above_a_project_is_found_above_its_copy_or_where_it_was() -> None:
    project, work = "/home/ada/shop", "/data/copies/int_1/files/home/ada/shop"
    asked = ["file:///home/ada/.opencode/plugin/guard%20one.js"]
    for found in ("/data/copies/int_1/files/home/ada/.opencode", "/home/ada/.opencode"):
        check_plugins(asked, [f"{found}/plugin/guard one.js"], project, work)
    with pytest.raises(PluginMissing):
        check_plugins(asked, [f"{work}/.opencode/plugin/guard one.js"], project, work)
