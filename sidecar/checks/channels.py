"""The check that the channels to a person took their newest messages."""

from __future__ import annotations

from sidecar.checks.check import Check, Scene


def check_channels(scene: Scene) -> list[Check]:
    """The configured channels that did not take the newest message sent on them, by names without secrets."""
    if scene.config is None or not scene.survey.failing:
        return []
    from sidecar.orchestrator.channels import Channels

    hint = "run `durable-stream notify test` to see whether it works now; `durable-stream notices` lists the messages"
    return [
        Check("notify", "note", f"{name} did not accept the newest message: {scene.survey.failing[name]}", hint)
        for name in Channels(scene.config.notify).names
        if name in scene.survey.failing
    ]
