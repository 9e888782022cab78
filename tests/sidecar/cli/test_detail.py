"""One event whole: nothing of it is lost, nothing said twice, whatever the payload holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.read.telling.detail import Detail, detail
from sidecar.read.telling.markup import inside
from streams.identity import seeded_identity
from tests.sidecar.cli.helpers import RECORDINGS, events_of
from tests.streams.builders import event

RETOLD = ("preview", "display", "filediff", "diff", "oldString", "newString", "parentSessionId")
"""Fields whose content the output or the diff shows, too."""


def texts(value: Any, name: str = "") -> Iterator[str]:
    """The texts in a payload, but for those of ``RETOLD``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in RETOLD:
                yield from texts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, name)
    elif isinstance(value, str) and value.strip():
        yield value.strip()


def told(found: Detail) -> list[str]:
    """Each text that is shown."""
    facts = [value for _, value in (*found.facts, *found.ids)]
    return [part.text.strip() for part in found.parts] + facts + list(texts(found.rest))


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
def test_every_recorded_event_is_told_whole_and_once(name: str) -> None:
    for recorded in events_of(name, Translator(seeded_identity(1))):
        shown = told(detail(recorded))
        whole = "\n".join(shown)
        for text in texts(recorded.payload):
            if len(text) >= 12 and not text.startswith(("msg_", "prt_")):
                assert (inside(text) or text) in whole, (recorded.type, text)
        long = [text for text in shown if len(text) >= 20]
        assert len(long) == len(set(long)), (recorded.type, long)


def test_a_forgotten_payload_is_told_as_such() -> None:
    found = detail(event(type_="human.input", payload={"$sha256": "ab"}))
    assert [part.kind for part in found.parts] == ["aside"]
