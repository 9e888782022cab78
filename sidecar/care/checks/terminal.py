"""The checks of the TUI plugins, which show background work in the terminals of OpenCode 1 and 2."""

from __future__ import annotations

from pathlib import Path

from sidecar.care.checks.check import Check, Fix, Scene
from sidecar.install.plugin import FIRST_LINE, Installed
from sidecar.install.tui import CONFIG_NAME, TUI_NAME, state_of, tui_text
from sidecar.install.tui2 import FILE, SETTINGS_NAME, has_entry, state2_of, tui2_text


def check_terminals(scene: Scene) -> list[Check]:
    """Whether the terminals load the list and the card of background work, which only the global plugin has."""
    found = []
    for target, names in scene.plugins:
        if target.scope == "global" and names.command:
            for name, look in (("terminal", _look), ("terminal 2", _look2)):
                try:
                    found.append(look(target.config, names))
                except OSError as error:
                    text = f"{error.filename} cannot be read ({error.strerror}); OpenCode may show no background work"
                    found.append(Check(name, "note", text, "give yourself read permission for that file"))
    return found


def _look(config: Path, names: Installed) -> Check:
    file, settings = config / TUI_NAME, config / CONFIG_NAME
    state = state_of(config, tui_text(FIRST_LINE, Path(names.shim), names.command, Path(names.home)))
    fallback = "so OpenCode 1 shows background work as text, without a list or a card"
    if state == "ready":
        return Check("terminal", "ok", str(file))
    if state == "theirs":
        text = f"{settings} is your own file and does not name {TUI_NAME}, {fallback}"
        hint = f'to get both, add "{file.as_uri()}" to "plugin" in that file, then run `durable-stream install`'
        return Check("terminal", "note", text, hint)
    text = f"{file} is {state}, {fallback}" if state == "missing" else f"{file} is {state}"
    hint = "run `durable-stream install`, then restart OpenCode"
    return Check("terminal", "note", text, hint, Fix("install", config))


def _look2(config: Path, names: Installed) -> Check:
    file, settings = config / FILE, config / SETTINGS_NAME
    wanted = tui2_text(FIRST_LINE, Path(names.shim), names.command, Path(names.home))
    state, is_listed = state2_of(config, FIRST_LINE, wanted), has_entry(config)
    if state == "theirs":
        text = f"{file} was not written by durable-stream, so OpenCode 2 shows no list, card or toasts"
        return Check("terminal 2", "note", text, "move the file away, then run `durable-stream install`")
    if state != "ready":
        hint = "run `durable-stream install`, then open OpenCode's terminal again"
        return Check("terminal 2", "note", f"{file} is {state}", hint, Fix("install", config))
    listed = f"; {settings} also names {TUI_NAME} of OpenCode 1, which OpenCode 2 passes over" if is_listed else ""
    return Check("terminal 2", "ok", f"{file}{listed}")
