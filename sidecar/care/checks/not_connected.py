"""The checks of each running service of OpenCode 2: its plugin is connected, and it is in no other sandbox."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from sidecar.background.hosts.facts import read_facts
from sidecar.background.hosts.identity import kernel_lines
from sidecar.care.checks.check import Check, Scene
from sidecar.record.opencode2.registration import Registration, UnsafeService, read_registration, registration_paths

CONNECT_SECONDS: Final = 0.5
"""How long a service on this machine may take to accept a connection."""


def check_unlinked(scene: Scene) -> list[Check]:
    """Whether the plugin in every running service of this user, which outlives its terminals, is connected."""
    ours = [plugin.target.plugin for plugin in scene.plugins if plugin.names.home == str(scene.home.path)]
    if scene.package_home == scene.home.path:
        ours += scene.packages
    is_silent = scene.answer is None and scene.home.running() is not None
    if not ours or is_silent:
        return []  # another check reports the missing plugin or the silent sidecar
    linked = {link.get("pid") for link in (scene.answer or {}).get("links") or []}
    installed_ms = min(path.stat().st_mtime_ns // 1_000_000 for path in ours)
    running = [service for service in running_services(scene.environ) if service.pid not in linked]
    return [_unlinked(service, installed_ms) for service in running]


def _unlinked(service: Registration, installed_ms: int) -> Check:
    started = ", which started before the plugin was installed," if service.written_ms < installed_ms else ""
    text = f"no plugin in its service (pid {service.pid}){started} is connected"
    hint = (
        "it loads the plugin when OpenCode 2 is next used in a project; if that does not help, run "
        "`opencode service restart` without `DURABLE_STREAM=off`"
    )
    return Check("opencode 2", "note", text, hint)


def check_sandboxes(scene: Scene) -> list[Check]:
    """Whether every running service may do what this terminal may, because work has the service's rights."""
    own = _rights(os.getpid())
    checks = []
    for service in running_services(scene.environ):
        its = _rights(service.pid)
        differing = sorted(name for name in own.keys() | its.keys() if own.get(name) != its.get(name))
        if own and its and differing:
            text = f"its service (pid {service.pid}) is in another sandbox than this terminal: {', '.join(differing)}"
            hint = "its sessions and background work may do what the service may; to change that, "
            hint += "run `opencode service restart` where it should run"
            checks.append(Check("opencode 2", "note", text, hint))
    return checks


def _rights(pid: int) -> dict[str, str]:
    """What the system allows a process, without its limits; empty if the system does not tell it."""
    facts = read_facts(pid)
    if not facts.status:
        return {}
    named = (line.partition("=") for line in kernel_lines(facts._replace(limits="", limited=())))
    return {name: value for name, _, value in named if name not in ("process", "one")}


def running_services(environ: Mapping[str, str]) -> list[Registration]:
    """This user's services that can be reached."""
    found = []
    for path in registration_paths(environ):
        with suppress(UnsafeService):  # `check_services` reports an unsafe service once its plugin is linked
            service = read_registration(path)
            if service is not None and _is_listening(service):
                found.append(service)
    return found


def _is_listening(service: Registration) -> bool:
    """False if the service was killed and another process now has its pid."""
    try:
        with socket.create_connection((service.host, service.port), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False
