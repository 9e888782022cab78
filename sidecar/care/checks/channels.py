"""Checks that the channels to a person can be used and that they accepted their newest messages."""

from __future__ import annotations

from sidecar.care.checks.check import Check, Scene


def check_urls(scene: Scene) -> list[Check]:
    """A finding for each URL of ``[notify]`` that cannot be used, named without its secrets. Sends nothing."""
    if scene.config is None or not scene.config.notify.urls:
        return []
    from sidecar.background.people.channels import Channels

    named: dict[str, list[str]] = {}
    for name, why in Channels(scene.config.notify).faults().items():
        named.setdefault(why, []).append(name)
    hint = (
        "fix [notify], then run `durable-stream stop`; after that, `durable-stream notify test` sends a message on "
        "each channel"
    )
    return [Check("notify", "note", f"{', '.join(names)}: {why}", hint) for why, names in named.items()]


def check_turns(scene: Scene) -> list[Check]:
    """Whether ordinary turns ring, and through which channels; nothing if they do not and should not."""
    if scene.config is None or scene.config.notify.turns == "off":
        return []
    from sidecar.background.people.channels import Channels

    names = Channels(scene.config.notify).names
    if names:
        return [Check("notify", "ok", f"long turns ring ({scene.config.notify.turns}) through {', '.join(names)}")]
    hint = "set `urls`, `command` or `desktop` in [notify], then run `durable-stream stop`"
    return [Check("notify", "note", "long turns cannot ring, because no channel is configured", hint)]


def check_channels(scene: Scene) -> list[Check]:
    """The channels that did not accept the newest message sent on them, named without secrets: those that are
    configured, and for ``status`` all of the last day."""
    failing = scene.survey.failing
    if not failing or (scene.config is None and not scene.quick):
        return []
    names = list(failing)
    if scene.config is not None and not scene.quick:
        from sidecar.background.people.channels import Channels

        names = [name for name in Channels(scene.config.notify).names if name in failing]
    hint = (
        "run `durable-stream notify test` to see whether the channel works now; `durable-stream notices` lists the "
        "messages"
    )
    return [
        Check("notify", "note", f"{name} did not accept the newest message: {failing[name]}", hint) for name in names
    ]
