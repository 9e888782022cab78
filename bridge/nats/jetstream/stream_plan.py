"""The required streams, as data, and what to do about the streams on the server. Pure.

``wanted`` lists the required streams. ``plan`` compares them with the server's
answer (its JSON, times in nanoseconds) and decides for each: create, update,
keep, or refuse, with reasons. Only settings named here are compared; an update keeps all other settings as the
administrator made them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from bridge.nats.subjects import EVENTS as EVENTS  # its name belongs with the other names
from bridge.nats.subjects import PROTOCOL_VERSION, escape, stream_pattern
from streams.bus.subjects import DEAD_LETTERS, REST, covers, overlap

COMMANDS: Final = "MESHFORGE_COMMANDS"
DEAD: Final = "MESHFORGE_DLQ"
L0_COMMANDS: Final = f"cg_cmd_{escape(PROTOCOL_VERSION)}"
L0_EVENTS: Final = f"cg_evt_{escape(PROTOCOL_VERSION)}"

OLDEST: Final = (2, 12)
"""The oldest version of a server that takes atomic batches."""

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
DUPLICATE_WINDOW_S: Final = 120
UNLIMITED: Final = -1

Retention = Literal["limits", "workqueue"]
Action = Literal["create", "update", "keep", "refuse"]
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """The required settings of one stream. A ``max_age_s`` of 0 and a ``max_bytes`` of -1 mean no limit."""

    name: str
    subjects: tuple[str, ...]
    retention: Retention
    description: str
    max_age_s: int = 0
    max_bytes: int = UNLIMITED
    duplicate_window_s: int = DUPLICATE_WINDOW_S
    atomic: bool = False

    def config(self) -> dict[str, Any]:
        """The configuration for creating the stream, in the server's JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "subjects": list(self.subjects),
            "retention": self.retention,
            "storage": "file",
            "discard": "old",
            "max_age": self.max_age_s * _NS,
            "max_bytes": self.max_bytes,
            "max_msgs": UNLIMITED,
            "max_msgs_per_subject": UNLIMITED,
            "max_msg_size": UNLIMITED,
            "duplicate_window": self.duplicate_window_s * _NS,
            "no_ack": False,
            "allow_direct": True,
            **({"allow_atomic": True} if self.atomic else {}),
        }


def wanted(*, max_bytes: int = UNLIMITED) -> tuple[StreamDefinition, ...]:
    """Every required stream. ``max_bytes`` limits only the copy of the log, which can be rebuilt.

    No stream stores ``str`` messages, so they are dropped if nobody is listening.
    """
    return (
        StreamDefinition(
            EVENTS, (f"evt.{REST}",), "limits", "Every record of every log, in order", max_bytes=max_bytes, atomic=True
        ),
        StreamDefinition(
            COMMANDS, (f"cmd.{REST}",), "workqueue", "Commands for agents; one worker handles each command"
        ),
        StreamDefinition(
            L0_COMMANDS,
            (stream_pattern("cmd"),),
            "workqueue",
            "Commands of the L0 protocol",
            max_age_s=DAY_S,
        ),
        StreamDefinition(
            L0_EVENTS,
            (stream_pattern("evt"),),
            "limits",
            "Events of the L0 protocol",
            max_age_s=7 * DAY_S,
            atomic=True,
        ),
        StreamDefinition(DEAD, (f"{DEAD_LETTERS}.{REST}",), "limits", "Messages that could not be handled"),
    )


@dataclass(frozen=True, slots=True)
class Change:
    setting: str
    found: Any
    wanted: Any

    def __str__(self) -> str:
        return f"{self.setting}: {self.found!r} → {self.wanted!r}"


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What to do about one stream.

    ``config`` is the whole configuration to send for ``create`` and ``update``, empty otherwise. ``reasons`` explains a
    refusal; a refused stream is not changed.
    """

    name: str
    action: Action
    config: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        why = "; ".join(self.reasons or tuple(map(str, self.changes)))
        return f"stream {self.name}: {self.action}{f' ({why})' if why else ''}"


_DEFAULTS: Final[dict[str, Any]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "max_age": 0,
    "max_bytes": UNLIMITED,
    "max_msgs": UNLIMITED,
    "max_msgs_per_subject": UNLIMITED,
    "max_msg_size": UNLIMITED,
    "no_ack": False,
    "allow_direct": False,
    "allow_atomic": False,
    "description": "",
    "subjects": (),
}
"""The value of each setting that the server leaves out of its answer."""

_COUNTS: Final = frozenset({"max_bytes", "max_msgs", "max_msgs_per_subject", "max_msg_size"})
"""Settings where both 0 and -1 mean unlimited."""

_IN_THE_WAY: Final[dict[str, str]] = {
    "mirror": "it is a mirror of another stream, to which nothing can be published",
    "sources": "it takes messages from other streams, and those messages would not be records",
    "sealed": "it is sealed, so nothing can be added",
    "subject_transform": "it renames subjects, and the mirror finds records by subject",
    "allow_msg_counter": "it is a counter and takes no messages",
    "deny_purge": "it cannot be purged, so `mirror rebuild` could not work",
    "deny_delete": "its messages cannot be deleted, so forgotten payloads would stay",
}
"""Settings that make the stream unusable for the mirror and that cannot be undone."""


def plan_stream(
    definition: StreamDefinition,
    found: Mapping[str, Any] | None,
    others: Iterable[Mapping[str, Any]] = (),
) -> StreamPlan:
    """Decide what to do about one stream; ``found`` is its configuration on the server, or ``None`` if it does not
    exist.

    ``others`` are the configurations of the account's other streams, because no two streams may store the same subject.
    """
    name = definition.name
    reasons = [
        f"the stream {other.get('name')} also stores {theirs}; change or remove that stream"
        for other in others
        if other.get("name") != name
        for theirs in other.get("subjects") or ()
        if any(overlap(mine, theirs) for mine in definition.subjects)
    ]
    config = definition.config()
    if found is None:
        return StreamPlan(name, "refuse", reasons=tuple(reasons)) if reasons else StreamPlan(name, "create", config)
    reasons += [why for setting, why in _IN_THE_WAY.items() if found.get(setting)]
    changes = tuple(_changes(config, found))
    for change in changes:
        if change.setting == "storage":
            reasons.append(f"its storage is {change.found} but must be file, and this setting cannot be changed")
        if change.setting == "retention" and "workqueue" in (change.found, change.wanted):
            reasons.append(
                f"its retention is {change.found} but must be {change.wanted}, and this setting cannot be changed"
            )
    if reasons:
        remedy = f"move its messages elsewhere and remove the stream {name}, or use another NATS account"
        return StreamPlan(name, "refuse", changes=changes, reasons=(*reasons, remedy))
    if not changes:
        return StreamPlan(name, "keep")
    return StreamPlan(name, "update", {**found, **config}, changes)


def plan(definitions: Iterable[StreamDefinition], found: Iterable[Mapping[str, Any]]) -> list[StreamPlan]:
    """What to do about each stream, in order; ``found`` are the configurations of all streams of the account."""
    there = {str(config.get("name")): config for config in found}
    return [plan_stream(each, there.get(each.name), list(there.values())) for each in definitions]


def server_version(text: str) -> tuple[int, int]:
    """(major, minor) of a server version such as ``2.10.29`` or ``v2.15.0-beta.1``; (0, 0) if it is unreadable."""
    numbers = re.match(r"v?(\d{1,6})\.(\d{1,6})", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def keeps(definitions: Iterable[StreamDefinition], subject: str) -> StreamDefinition | None:
    """The stream that stores ``subject``; ``None`` if none does."""
    return next((each for each in definitions if any(covers(mine, subject) for mine in each.subjects)), None)


def _changes(config: Mapping[str, Any], found: Mapping[str, Any]) -> Iterable[Change]:
    for setting, value in config.items():
        there = found.get(setting)
        if there is None:
            there = _DEFAULTS.get(setting)
        same = sorted(there or ()) == sorted(value) if setting == "subjects" else there == value
        if setting in _COUNTS and value == UNLIMITED and there in (0, UNLIMITED):
            same = True
        if not same:
            yield Change(setting, there, value)
