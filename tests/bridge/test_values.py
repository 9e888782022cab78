"""No value of a field turns a prompt, a step or an answer into a raw row, a lost row or a row of another owner.

A field of a recording gets another value wherever it stands, as a provider, a configuration or a clock would do it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from tests.bridge.opencode import playing, playing2

EXAMPLES = int(os.environ.get("VALUES", "75"))

NAMES_THINGS = frozenset(
    {"id", "sessionID", "messageID", "parentID", "requestID", "permissionID", "partID", "sessionId", "aggregateID"}
    | {"messageId", "inputID", "assistantMessageID", "formID", "shellID", "parentSessionID", "session", "forkedFrom"}
    | {"inboxID", "seq"}
)
"""OpenCode makes these ids itself, and knows its own records by them. A file without them is another file."""

SELECTS = frozenset(
    {"type", "role", "status", "kind", "state", "reply", "decision", "outcome", "delivery", "trigger", "finish"}
)
"""OpenCode's own words for what happened. Another word is another event, which ``test_unknown_shapes.py`` tests."""

TELLS_APART = {("repeated_ids_parallel", ("args", "command"))}
"""In this recording two calls share an id and a part. Only their inputs say that there are two: equal ones are one
call, as each copy of the plugin forwards a call's end."""

STRINGS = ("", "0", "call_0", "می‌خواهم", "क्‍ष 👨‍💻", "\x1b[2J\u202e", "../../x", "x" * 5000, "constructor")
NUMBERS = (0, -1, 1, 0.5, -1e12, 4102444800000, 640870 * 3_600_000, 1e300, 2**53 - 1)


SAME = {("input", "args"): ("args",), ("input", "event", "properties", "part", "state", "input"): ("args",)}
"""A call's input is the same in the hook and in the part; so is its id."""


def place_of(path: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the same thing have the same place."""
    if path[-1] == "callID":
        return path[-1:]
    return next((short + path[len(long) :] for long, short in SAME.items() if path[: len(long)] == long), path)


def fields_of(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of each string and number: the names only, so a list's elements share a path."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from fields_of(one, (*path, name))
    elif isinstance(value, list):
        for one in value:
            yield from fields_of(one, path)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield path, value


def changed(value: Any, new: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Any:
    """A copy with other values at some paths."""
    if isinstance(value, dict):
        return {name: changed(one, new, (*path, name)) for name, one in value.items()}
    if isinstance(value, list):
        return [changed(one, new, path) for one in value]
    key = place_of(path) if path else path
    if key in new and isinstance(value, str | int | float) and not isinstance(value, bool):
        return new[key]
    return value


def parts(item: HookItem) -> dict[str, Any]:
    return {"input": item.input, "output": item.output}


@cache
def fields(major: int, name: str) -> list[tuple[tuple[str, ...], bool]]:
    """The paths of a recording that may have any value, and whether it is a string."""
    items = playing.recording(name) if major == 1 else playing2.Recording(name).items
    found: dict[tuple[str, ...], bool] = {}
    selecting = set[tuple[str, ...]]()
    for _, item in items:
        for path, value in fields_of(parts(item)):
            # By one text of its own, OpenCode 1 says that a person ran a command.
            is_selecting = path[-1] in SELECTS or (path[-1] == "text" and str(value).startswith("The following tool"))
            if path[-1] in NAMES_THINGS or is_selecting:
                found.pop(path, None)
                selecting.add(path)
            elif path not in selecting:
                found[place_of(path)] = isinstance(value, str)
    return sorted(one for one in found.items() if (name, one[0]) not in TELLS_APART)


def facts(events: Iterable[StreamEvent]) -> Counter[tuple[Any, ...]]:
    """What was recorded, of whom: type, stream, and the message and the turn that it belongs to."""
    kept = ("human.input", "agent.input", "execution.", "turn.", "lifecycle.", "opencode.")
    return Counter(
        (event.type, event.stream_id, event.payload.get("message") or event.payload.get("assistant_message"))
        for event in events
        if event.type.startswith(kept)
    )


def played(
    major: int, name: str, new: dict[tuple[str, ...], Any], jump: tuple[int, int] = (0, 0)
) -> Counter[tuple[Any, ...]]:
    """The facts of a recording with other values, in which the clock steps by ``jump[1]`` ms at an item."""
    items = playing.recording(name) if major == 1 else playing2.Recording(name).items
    changed_items = []
    for number, (token, item) in enumerate(items):
        ms = jump[1] if number >= jump[0] else 0
        given = later(changed(parts(item), new), ms)
        changed_items.append((token, HookItem(item.hook, item.t + ms, **given)))
    if major == 1:
        player = playing.Player()
        player.feed(changed_items)
        player.wait()
        return facts(player.log.events.values())
    second = playing2.Player2()
    second.feed(changed_items)
    second.settle()
    return facts(second.log.events.values())


@cache
def as_recorded(major: int, name: str) -> Counter[tuple[Any, ...]]:
    return played(major, name, {})


NAMES = {1: playing.names(), 2: playing2.names()}
JUMPS = (-3_600_000, 3_600_000, 2_300_000_000_000)
"""By how many ms the clock steps: an hour back, an hour on, decades on."""


def later(value: Any, ms: int) -> Any:
    """A copy in which each time is later."""
    if isinstance(value, dict):
        return {name: later(one, ms) for name, one in value.items()}
    if isinstance(value, list):
        return [later(one, ms) for one in value]
    return value + ms if isinstance(value, int | float) and value > 1e12 else value


@pytest.mark.parametrize("major", [1, 2])
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_no_value_of_a_field_makes_a_raw_row_loses_a_row_or_gives_it_to_another(
    major: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(NAMES[major]))
    chosen = data.draw(st.lists(st.sampled_from(fields(major, name)), min_size=1, max_size=3, unique=True))
    new = {path: data.draw(st.sampled_from(STRINGS if is_text else NUMBERS)) for path, is_text in chosen}
    # An id tells when it was made, and ids stay as they are. After a step back, the answer to a `!` command,
    # which comes before any input, would pass for a copy in a fork.
    jumps = [ms for ms in JUMPS if ms > 0 or not name.startswith("shell")]
    jump = data.draw(st.tuples(st.integers(0, 200), st.sampled_from([0, *jumps])))
    assert played(major, name, new, jump) == as_recorded(major, name), (new, jump)


@pytest.mark.parametrize("name", [name for name in NAMES[1] if name.startswith("shell")])
@pytest.mark.parametrize("created", NUMBERS)
def test_a_time_that_cannot_be_true_makes_no_command_pass_for_a_copy(name: str, created: float) -> None:
    path = ("input", "event", "properties", "info", "time", "created")
    assert played(1, name, {path: created}) == as_recorded(1, name)


@pytest.mark.parametrize("name", NAMES[1])
def test_the_end_of_a_turn_counts_every_step_also_if_two_calls_have_one_id(name: str) -> None:
    ended = set[str]()
    for event in playing.play(name).log.events.values():
        if event.type == "turn.ended":
            ended.add(event.payload["message"])
        assert event.type != "execution.step" or event.payload.get("turn") not in ended
