"""The checks in order, and the functions that run them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from sidecar.care.checks import (
    agents,
    channels,
    linked,
    nats,
    not_connected,
    opencode,
    recording,
    team,
    terminal,
    tracing,
    work,
)
from sidecar.care.checks import home as at_home
from sidecar.care.checks.check import Check, Scene, scene_of
from sidecar.care.checks.running_sidecar import heard
from sidecar.home import Home
from streams.identity import Identity

CheckFunction = Callable[[Scene], list[Check]]

BEFORE_THE_LOG: Final[tuple[CheckFunction, ...]] = (
    opencode.check_opencode,
    opencode.check_switches,
    opencode.check_plugin,
    terminal.check_terminals,
    opencode.check_copies,
    opencode.check_refused,
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
    not_connected.check_unlinked,
    not_connected.check_sandboxes,
    nats.check_nats,
    tracing.check_tracing,
    team.check_team,
    channels.check_urls,
    channels.check_turns,
    linked.check_door,
    linked.check_headless,
    linked.check_compared,
)

WITH_THE_LOG: Final[tuple[CheckFunction, ...]] = (
    recording.check_log,
    agents.check_agents,
    recording.check_journal,
    recording.check_tables,
    recording.check_copies,
    recording.check_torn,
    recording.check_gaps,
    at_home.check_clock,
    at_home.check_spool,
    linked.check_links,
    work.check_work,
    opencode.check_startup,
    channels.check_channels,
)
"""Checks that need the log, and the checks that follow them. Reading a long log takes a while."""


DOCTOR_ALONE: Final[frozenset[CheckFunction]] = frozenset(
    {
        opencode.check_opencode,
        terminal.check_terminals,
        opencode.check_copies,
        opencode.check_versions,
        opencode.check_services,
        not_connected.check_unlinked,
        not_connected.check_sandboxes,
        channels.check_urls,
        channels.check_turns,
        recording.check_copies,
        at_home.check_clock,
        linked.check_links,
        opencode.check_startup,
    }
)
"""The checks that ``status`` leaves out: they run programs, ask servers, read much, or are about no fault of now."""


async def diagnose(home: Home, command: Sequence[str], identity: Identity) -> AsyncIterator[Check]:
    """Run every check and yield each finding at once. ``command`` starts this program."""
    scene = await asyncio.to_thread(scene_of, home, tuple(command))
    answer, silence = await heard(home, identity.nonce)
    scene = scene._replace(answer=answer, silence=silence)
    # Run all checks at once, because some start programs, and OpenCode takes half a second to print a version.
    running = [asyncio.create_task(asyncio.to_thread(check, scene)) for check in BEFORE_THE_LOG]
    surveying = asyncio.create_task(recording.survey(home, identity.now_ms()))
    for task in running:
        for found in await task:
            yield found
    scene = scene._replace(survey=await surveying, now_ms=identity.now_ms())
    for check in WITH_THE_LOG:
        for found in await asyncio.to_thread(check, scene):
            yield found


async def glance(home: Home, identity: Identity) -> tuple[Scene, list[Check]]:
    """Run the quick checks, which need no program and read little of the log; also return what they were made of."""
    answer, silence = await heard(home, identity.nonce)
    served = answer is not None and answer.get("config_changed") is False
    scene = await asyncio.to_thread(scene_of, home, quick=True, served=served)
    now = identity.now_ms()
    scene = scene._replace(answer=answer, silence=silence, now_ms=now)
    scene = scene._replace(survey=await recording.survey(home, now, quick=True))
    checks = [check for check in (*BEFORE_THE_LOG, *WITH_THE_LOG) if check not in DOCTOR_ALONE]
    return scene, [found for check in checks for found in check(scene)]
