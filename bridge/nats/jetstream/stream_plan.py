"""The required streams, as data, and how a stream on the server differs from them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from bridge.nats.subjects import EVENTS as EVENTS  # its name belongs with the other names
from bridge.nats.subjects import PROTOCOL_VERSION, escape, stream_pattern
from streams.bus.subjects import DEAD_LETTERS, REST, covers

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
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """The required settings of one stream. A ``max_age_s`` of 0 and a ``max_bytes`` of -1 mean no limit."""

    name: str
    subjects: tuple[str, ...]
    retention: Literal["limits", "workqueue"]
    description: str
    max_age_s: int = 0
    max_bytes: int = UNLIMITED
    atomic: bool = False

    def config(self) -> dict[str, Any]:
        """The settings that the stream must have, in the server's JSON. Others are the administrator's."""
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
            "duplicate_window": DUPLICATE_WINDOW_S * _NS,
            "no_ack": False,
            "allow_direct": True,
            "allow_atomic": self.atomic,
            # Messages that are not records, or not on their own subject, or cannot be removed.
            "mirror": None,
            "sources": None,
            "subject_transform": None,
            "allow_msg_counter": False,
            "sealed": False,
            "deny_purge": False,
            "deny_delete": False,
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
            L0_COMMANDS, (stream_pattern("cmd"),), "workqueue", "Commands of the L0 protocol", max_age_s=DAY_S
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


def different(definition: StreamDefinition, found: Mapping[str, Any]) -> list[str]:
    """The names of the settings that a stream must have otherwise; ``found`` is its configuration on the server."""
    return [name for name, value in definition.config().items() if _plain(found.get(name)) != _plain(value)]


def _plain(value: Any) -> Any:
    """The server leaves out some settings that are 0 or false, and takes 0 and -1 for the same limit: none."""
    if isinstance(value, list):
        value = sorted(map(str, value))
    return None if value == UNLIMITED else value or None


def server_version(text: str) -> tuple[int, int]:
    """(major, minor) of a server version such as ``2.10.29`` or ``v2.15.0-beta.1``; (0, 0) if it is unreadable."""
    numbers = re.match(r"v?(\d{1,6})\.(\d{1,6})", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def keeps(definitions: Iterable[StreamDefinition], subject: str) -> StreamDefinition | None:
    """The stream that stores ``subject``; ``None`` if none does."""
    return next((each for each in definitions if any(covers(mine, subject) for mine in each.subjects)), None)
