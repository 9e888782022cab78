"""The checks of the TUI plugins, which show background work in the terminals of OpenCode 1 and 2."""

from __future__ import annotations

from pathlib import Path

from sidecar.care.checks.check import Check, Fix, Scene
from sidecar.install.plugin import FIRST_LINE
from sidecar.install.tui import CONFIG_NAME, TUI_NAME, state_of, tui_text
from sidecar.install.tui2 import FILE, SETTINGS_NAME, has_entry, state2_of, tui2_text


def check_terminal(scene: Scene) -> list[Check]:
    """Whether OpenCode 1's terminal loads the list and the card, which only a global plugin has."""
    found = []
    for target, names in scene.plugins:
        if target.scope != "global" or not names.command:
            continue
        file, settings = target.config / TUI_NAME, target.config / CONFIG_NAME
        try:
            state = state_of(target.config, tui_text(FIRST_LINE, Path(names.shim), names.command, Path(names.home)))
        except OSError as error:
            text = f"{error.filename} cannot be read ({error.strerror}); OpenCode may show no list of background work"
            found.append(Check("terminal", "note", text, "give yourself read permission for that file"))
            continue
        fallback = "so OpenCode 1 shows background work as text, without a list or a card"
        if state == "ready":
            found.append(Check("terminal", "ok", str(file)))
        elif state == "theirs":
            hint = f'to get both, add "{file.as_uri()}" to "plugin" in that file, then run `durable-stream install`'
            found.append(
                Check("terminal", "note", f"{settings} is your own file and does not name {TUI_NAME}, {fallback}", hint)
            )
        else:
            text = f"{file} is {state}, {fallback}" if state == "missing" else f"{file} is {state}"
            hint = "run `durable-stream install`, then restart OpenCode"
            found.append(Check("terminal", "note", text, hint, Fix("install", target.config)))
    return found


def check_terminal2(scene: Scene) -> list[Check]:
    """Whether OpenCode 2's terminal loads the list and the card, which only a global plugin has."""
    found = []
    for target, names in scene.plugins:
        if target.scope != "global" or not names.command:
            continue
        file, settings = target.config / FILE, target.config / SETTINGS_NAME
        wanted = tui2_text(FIRST_LINE, Path(names.shim), names.command, Path(names.home))
        try:
            state, is_listed = state2_of(target.config, FIRST_LINE, wanted), has_entry(target.config)
        except OSError as error:
            text = f"{error.filename} cannot be read ({error.strerror}); OpenCode 2 may show no background work"
            found.append(Check("terminal 2", "note", text, "give yourself read permission for that file"))
            continue
        if state == "theirs":
            text = f"{file} was not written by durable-stream, so OpenCode 2 shows no list, card or toasts"
            found.append(Check("terminal 2", "note", text, "move the file away, then run `durable-stream install`"))
        elif state != "ready":
            hint = "run `durable-stream install`, then open OpenCode's terminal again"
            found.append(Check("terminal 2", "note", f"{file} is {state}", hint, Fix("install", target.config)))
        else:
            listed = (
                f"; {settings} also names {TUI_NAME} of OpenCode 1, which OpenCode 2 passes over" if is_listed else ""
            )
            found.append(Check("terminal 2", "ok", f"{file}{listed}"))
    return found
