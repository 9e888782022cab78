"""The check that spans reach the receiver of ``[otel]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sidecar.care.checks.check import Check, Scene
from sidecar.read.wording import counted


def check_tracing(scene: Scene) -> list[Check]:
    """Whether the running sidecar's spans are sent; nothing without an endpoint. Sends nothing."""
    now = (scene.answer or {}).get("otel")
    if now is None:
        if scene.config is None or not scene.config.otel.endpoint:
            return []
        return [Check("traces", "ok", "spans are sent while the sidecar runs; it does not run with this endpoint")]
    hint = "check the receiver, and `endpoint` and `headers` in [otel]" if now["problem"] or now["refused"] else ""
    return [Check("traces", "note" if hint else "ok", traces_words(now), hint)]


def traces_words(now: Mapping[str, Any]) -> str:
    """How far the export of spans is, in words."""
    behind = f"{counted(now['lag'], 'record')} waiting" if now["lag"] else "up to date with the log"
    refused = f"; {counted(now['refused'], 'span')} refused by the receiver" if now["refused"] else ""
    return f"{behind}{': ' if now['problem'] else ''}{now['problem']}{refused}"
