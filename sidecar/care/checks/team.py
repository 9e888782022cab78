"""The check that the home's copy in the team's Postgres is level with the log."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from sidecar.care.checks.check import Check, Scene
from sidecar.install.extras import extra_command
from sidecar.read.wording import counted, local_time


def check_team(scene: Scene) -> list[Check]:
    """How far the running sidecar's copy is; nothing without a database. Connects to nothing."""
    now = (scene.answer or {}).get("team")
    if now is None:
        if scene.config is None or not scene.config.team.database:
            return []
        if find_spec("psycopg") is None:
            return [Check("team", "note", "the extra `team` is not installed", f"run `{extra_command('team')}`")]
        return [Check("team", "ok", "this home is copied while the sidecar runs; it does not run with this database")]
    hint = "recording goes on, and the copy follows later; see the page on teams" if now["problem"] else ""
    return [Check("team", "note" if hint else "ok", team_words(now), hint)]


def team_words(now: Mapping[str, Any]) -> str:
    """How far the copy is, in words."""
    if now["position"] is None:
        text = "how far it is copied is not known yet"
    else:
        text = f"{counted(now['lag'], 'record')} not copied yet" if now["lag"] else "level with the log"
    again = f"; next try at {local_time(now['next_ms'])}" if now["next_ms"] else ""
    return f"{now['machine']} in {now['address']}: {text}{': ' if now['problem'] else ''}{now['problem']}{again}"
