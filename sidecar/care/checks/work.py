"""The check of background work: what failed lately, and what waits for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from sidecar.care.checks.check import Check, Scene

if TYPE_CHECKING:
    from sidecar.background.intents.state import State

RECENT_MS: Final = 86_400_000
"""How long something that failed is shown."""

MOST_SHOWN: Final = 3


def check_work(scene: Scene) -> list[Check]:
    return [Check("work", "note", text, hint) for text, hint in scene.survey.work]


def notes_of(state: State, now_ms: int) -> Iterator[tuple[str, str]]:
    """What failed in the last day, and what waits for a terminal: a text and a hint each."""
    from sidecar.background.people import sentences

    ended = [each for each in state.intents.values() if each.state in ("failed", "refused")]
    failed = [each for each in ended if (each.ended or 0) >= now_ms - RECENT_MS]
    yield from ((sentences.failure(each), "") for each in failed[-MOST_SHOWN:])
    if more := len(failed[:-MOST_SHOWN]):
        yield f"{more} more of the background work failed", "`durable-stream intents` lists it"
    for each in [intent for intent in state.unfinished() if intent.waits][:MOST_SHOWN]:
        wanted = " and ".join(waited["text"] for waited in sentences.waits(each, "", ()))
        hint = f"`durable-stream intents {each.id} --resume` continues it with what your terminal may do"
        yield f"{each.id} waits for {wanted}", hint
