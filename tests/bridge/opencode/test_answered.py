"""Who answered an ask: one fact, which is recorded with the answer, for both OpenCodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge.opencode.capture.emitter import LEAST_PERSON_MS
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from tests.bridge.opencode.playing import Item, Player, recording
from tests.bridge.opencode.playing2 import Player2, Recording

Told = tuple[int, str, str, str]
"""After how many ms, what happened (``asked``, ``replied`` or ``rejected``), to which request, and the reply."""

Played = Callable[..., list[StreamEvent]]


def around(items: Sequence[Item], told: Sequence[Told]) -> list[Item]:
    """A recording until its first ask; then what ``told`` says, made from that ask and its answer."""
    at = next(n for n, (_, item) in enumerate(items) if '"permission.asked"' in json.dumps(item.input))
    answer = next(n for n, (_, item) in enumerate(items) if '"permission.replied"' in json.dumps(item.input))
    first = items[at][1]
    found = json.dumps(first.input)
    own = next(part for part in found.split('"') if part.startswith("per_"))
    made = list(items[:at])
    for number, (after, what, request, reply) in enumerate(told):
        text = json.dumps((first if what == "asked" else items[answer][1]).input).replace(own, request)
        for name in ("reject", "once"):
            text = text.replace(f'"reply": "{name}"', f'"reply": "{reply}"')
        given: dict[str, Any] = json.loads(text)
        event = given.get("event", given)
        event |= {"id": f"evt_{number}"} | ({"created": first.t + after} if "created" in event else {})
        token = items[at][0]
        made.append((token._replace(seq=token.seq + 1000 + number), HookItem(first.hook, first.t + after, given)))
    return made


def played(told: Sequence[Told], by: dict[str, str] | None = None) -> list[StreamEvent]:
    player = Player()
    player.knows(answered=lambda session, request, answer: (by or {}).get(request, ""))
    player.feed(around(recording("permission_reject"), told))
    return player.of("workflow.checkpoint")


def played2(told: Sequence[Told], by: dict[str, str] | None = None) -> list[StreamEvent]:
    player = Player2()
    player.knows(answered=lambda session, request, answer: (by or {}).get(request, ""))
    player.feed(around(Recording("permission").items, told))
    player.settle()
    return [each for each in player.log.events.values() if each.type == "workflow.checkpoint"]


BOTH = pytest.mark.parametrize("played", [played, played2])


def answers(events: Sequence[StreamEvent]) -> list[tuple[str, str, str | None]]:
    """Of each answer: its request, who gave it, and the request whose answer it follows from."""
    found = [each for each in events if each.payload["state"] != "asked"]
    return [(each.payload["request"], each.actor, each.payload.get("with")) for each in found]


def asked(*requests: str) -> list[Told]:
    return [(number, "asked", request, "") for number, request in enumerate(requests)]


@BOTH
def test_what_opencode_rejects_with_another_names_that_other(played: Played) -> None:
    replies = [(5000 + n, "replied", request, "reject") for n, request in enumerate(("per_b", "per_a", "per_c"))]
    told = [*asked("per_a", "per_b", "per_c"), *replies]
    assert answers(played(told)) == [
        ("per_b", "user", None), ("per_a", "opencode", "per_b"), ("per_c", "opencode", "per_b"),
    ]  # fmt: skip
    again = [*told, (6000, "asked", "per_d", ""), (9000, "replied", "per_d", "reject")]
    assert answers(played(again))[-1] == ("per_d", "user", None), "it was asked after the rejection"


@BOTH
def test_what_always_allows_at_once_names_the_ask_that_was_answered(played: Played) -> None:
    told = [
        *asked("per_a", "per_b", "per_c"),
        (5000, "replied", "per_a", "always"),
        (5003, "replied", "per_b", "always"),
        (9000, "replied", "per_c", "always"),
    ]
    assert answers(played(told)) == [
        ("per_a", "user", None), ("per_b", "opencode", "per_a"), ("per_c", "user", None),
    ]  # fmt: skip
    told[-1] = (9000, "replied", "per_c", "reject")
    assert answers(played(told))[-1] == ("per_c", "user", None)


@BOTH
@pytest.mark.parametrize("by", ["user", "process", "link", "agent"])
def test_an_answer_through_the_sidecar_is_of_whoever_gave_it(played: Played, by: str) -> None:
    told = [*asked("per_a", "per_b"), (10, "replied", "per_a", "reject"), (11, "replied", "per_b", "reject")]
    assert answers(played(told, {"per_a": by})) == [("per_a", by, None), ("per_b", "opencode", "per_a")]
    assert answers(played([*asked("per_a"), (10, "replied", "per_a", "once")], {"per_a": by})) == [("per_a", by, None)]


@BOTH
def test_only_a_person_needs_time_to_reject(played: Played) -> None:
    for after, reply, by in (
        (LEAST_PERSON_MS, "reject", "user"),
        (LEAST_PERSON_MS - 1, "reject", "opencode"),
        (LEAST_PERSON_MS - 1, "once", "user"),
    ):
        assert answers(played([*asked("per_a"), (after, "replied", "per_a", reply)])) == [("per_a", by, None)]
    assert answers(played([(0, "replied", "per_unknown", "reject")])) == [("per_unknown", "user", None)]
