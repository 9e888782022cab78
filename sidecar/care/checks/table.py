"""The checks in order, and the functions that run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from sidecar.care.checks import agents, channels, nats, opencode, recording, terminal, tracing, unlinked
from sidecar.care.checks import home as at_home
from sidecar.care.checks.asking import NotAsked, SidecarSilent, ask_sidecar
from sidecar.care.checks.check import Check, Scene, scene_of
from sidecar.home import Home
from sidecar.install.plugin import RESTART
from streams.identity import Identity

CheckFunction = Callable[[Scene], list[Check]]

BEFORE_THE_LOG: Final[tuple[CheckFunction, ...]] = (
    opencode.check_opencode,
    opencode.check_switches,
    opencode.check_plugin,
    terminal.check_terminals,
    opencode.check_copies,
    opencode.check_versions,
    opencode.check_excluded,
    at_home.check_home,
    at_home.check_token,
    at_home.check_config,
    at_home.check_port,
    at_home.check_pages,
    at_home.check_space,
    recording.check_sidecar,
    recording.check_start,
    opencode.check_services,
    unlinked.check_unlinked,
    unlinked.check_sandboxes,
    nats.check_nats,
    tracing.check_tracing,
    channels.check_urls,
    channels.check_turns,
)

WITH_THE_LOG: Final[tuple[CheckFunction, ...]] = (
    recording.check_log,
    agents.check_agents,
    recording.check_journal,
    recording.check_copies,
    recording.check_torn,
    recording.check_gaps,
    at_home.check_clock,
    at_home.check_spool,
    recording.check_links,
    opencode.check_startup,
    channels.check_channels,
)
"""Checks that need the log, and the checks that follow them. Reading a long log takes a while."""


NOT_INSTALLED: Final = "not installed"


async def diagnose(home: Home, command: Sequence[str], identity: Identity) -> AsyncIterator[Check]:
    """Run every check and yield each finding at once. ``command`` starts this program."""
    scene = await asyncio.to_thread(scene_of, home, tuple(command))
    if home.running() is not None:
        try:
            scene = scene._replace(answer=await ask_sidecar(home, "status", identity.nonce))
        except NotAsked:
            scene = scene._replace(silence="")  # the check of the token says why
        except SidecarSilent as error:
            scene = scene._replace(silence=str(error))
    # Run all checks at once, because some start programs, and OpenCode takes half a second to print a version.
    running = [asyncio.create_task(asyncio.to_thread(check, scene)) for check in BEFORE_THE_LOG]
    surveying = asyncio.create_task(recording.survey(home))
    for task in running:
        for found in await task:
            yield found
    scene = scene._replace(survey=await surveying, now_ms=identity.now_ms())
    for check in WITH_THE_LOG:
        for found in await asyncio.to_thread(check, scene):
            yield found


def quick_checks(home: Home, *, served: bool = False) -> list[Check]:
    """Run the cheap checks that ``status`` needs, which look for what could keep a session from being recorded.

    These checks run no program and do not read the log. ``served``: the running sidecar uses this configuration.
    """
    scene = scene_of(home, quick=True, served=served)
    is_set = scene.config is not None or scene.config_fault
    checks = [*at_home.check_home(scene), *at_home.check_token(scene)]
    checks += at_home.check_config(scene) if is_set else []
    if not scene.is_installed:
        hint = f"run `durable-stream install`, then {RESTART}"
        checks.append(
            Check(NOT_INSTALLED, "problem", "no plugin is installed, so OpenCode's sessions are not recorded", hint)
        )
    checks += [check for plugin in scene.plugins for check in opencode.missing_files(plugin)]
    checks += [*opencode.check_switches(scene), *opencode.check_excluded(scene)]
    return [*checks, *at_home.check_port(scene), *at_home.check_space(scene), *recording.check_start(scene)]
