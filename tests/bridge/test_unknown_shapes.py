"""A hook of unknown shape is kept whole: none is acknowledged and then dropped as "not final".

Every field of every kind of item in the recordings is changed, one at a time.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from bridge.opencode.capture import shapes
from bridge.opencode.capture.hook_shapes import PROPERTIES
from bridge.opencode.capture.table import BY_SOURCE, rule_for
from bridge.opencode.capture.translate import Origin, Token
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from tests.bridge.opencode.playing import Player, names, play, recording

Path = tuple[str | int, ...]

MARK = "MUTANT"
REMOVED = object()
VALUES: tuple[Any, ...] = (MARK, 987654321, [MARK], {MARK: 1}, None, REMOVED)
SHARES = 4
"""The recordings are shared out, so that the list of tests needs none of them."""

CONTENT = {
    "human.input": "input",
    "agent.input": "input",
    "agent.error": "error",
    "execution.output": "output",
    "execution.step": "step",
    "workflow.checkpoint": "checkpoint",
}
"""What the other items of a run make, whatever becomes of the changed one."""


def of(value: Any, *path: str) -> Any:
    """The value at ``path``, or ``None``."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def kind_of(item: HookItem) -> tuple[Any, ...]:
    """Items of one kind have the same fields."""
    event = of(item.input, "event", "properties")
    part = of(event, "part")
    return (shapes.read(item)[0], of(part, "type"), of(part, "state", "status"), of(event, "info", "role"))


def paths(value: Any, path: Path) -> Iterator[Path]:
    """The paths of the value and of each field below it; a list is represented by its first element."""
    yield path
    if len(path) < 8:
        if isinstance(value, dict):
            for name, one in value.items():
                yield from paths(one, (*path, name))
        elif isinstance(value, list) and value:
            yield from paths(value[0], (*path, 0))


def changed(item: HookItem, path: Path, value: Any) -> HookItem:
    holder: Any = {"input": deepcopy(item.input), "output": deepcopy(item.output)}
    fields, *rest = [holder], *path
    for name in rest[:-1]:
        fields.append(fields[-1][name])
    if value is not REMOVED:
        fields[-1][rest[-1]] = value
    elif isinstance(fields[-1], list) or len(rest) > 1:
        del fields[-1][rest[-1]]
    else:
        holder[rest[-1]] = None
    return HookItem(item.hook, item.t, holder["input"], holder["output"])


@cache
def chosen() -> dict[str, list[tuple[int, Path]]]:
    """For each recording, the indices of the chosen items and the fields to change: each field of each kind of item
    once."""
    found: dict[str, list[tuple[int, Path]]] = defaultdict(list)
    seen: set[tuple[Any, ...]] = set()
    for name in names():
        for place, (_, item) in enumerate(recording(name)):
            if rule_for(shapes.read(item)[0]) is None:
                continue
            for path in (*paths(item.input, ("input",)), *paths(item.output, ("output",))):
                about = (kind_of(item), path)
                if about not in seen:
                    seen.add(about)
                    found[name].append((place, path))
    return found


@cache
def user_messages() -> set[str]:
    """The prompts of all recordings: their parts are in the input, or nowhere in OpenCode's reports."""
    updated = [of(item.input, "event", "properties", "info") for name in names() for _, item in recording(name)]
    return {info["id"] for info in updated if of(info, "role") == "user"}


def is_not_final(item: HookItem) -> bool:
    """True if the item makes no event, or another item of the run reports the same; independent of the rules."""
    source, event = shapes.read(item)[0], of(item.input, "event", "properties")

    def text(*path: str) -> bool:
        return isinstance(of(event, *path), str)

    if rule_for(source) is None or source in ("session.diff", "todo.updated", "file.edited"):
        return True
    if source == "session.status":
        return text("sessionID") and of(event, "status", "type") in ("idle", "busy", "retry")
    if source in ("session.idle", "session.updated"):
        return text("sessionID") or text("info", "id")
    if source == "session.error":
        return bool(of(event, "error", "name") == "MessageAbortedError")
    if source == "message.updated":
        whose = of(event, "info", "role")
        error = of(event, "info", "error")
        told = error is None or (
            isinstance(of(error, "name"), str) and isinstance(of(error, "data"), (dict, type(None)))
        )
        answers = whose == "assistant" and text("info", "parentID") and told
        return text("info", "id") and (whose == "user" or answers)
    if source == "tool.execute.after":
        return all(isinstance(of(item.input, name), str) for name in ("sessionID", "callID"))
    if source == "message.part.updated":
        kind, time = of(event, "part", "type"), of(event, "part", "time")
        if kind == "tool":
            return text("part", "id") and of(event, "part", "state", "status") in ("pending", "running")
        if kind in ("text", "reasoning"):
            users = of(event, "part", "synthetic") is True or of(event, "part", "messageID") in user_messages()
            return users or (text("part", "id") and (time is None or of(time, "end") is None))
        return kind in ("step-start", "compaction", "patch")
    return False


def made_by(events: list[StreamEvent], seq: int) -> list[StreamEvent]:
    return [event for event in events if event.metadata.get("seq") == seq]


def is_kept_whole(item: HookItem, events: list[StreamEvent]) -> bool:
    kept = [event.payload for event in events if event.type.startswith("opencode.")]
    properties = {"properties": of(item.input, "event", "properties")}
    both = {name: value for name, value in (("input", item.input), ("output", item.output)) if value is not None}
    return any({k: v for k, v in payload.items() if k != "session"} in (properties, both) for payload in kept)


def payloads(events: list[StreamEvent]) -> list[Any]:
    return [(event.type, event.payload) for event in events]


def lost(before: list[StreamEvent], after: list[StreamEvent], item: HookItem, seq: int, value: Any) -> str | None:
    """What the change lost, or ``None``."""
    own, was = made_by(after, seq), made_by(before, seq)
    if not is_kept_whole(item, own) and not is_not_final(item):
        if not was and not own:
            return "made no event and is not known as noise"
        if Counter(CONTENT.get(e.type, e.type) for e in was) - Counter(CONTENT.get(e.type, e.type) for e in own):
            return f"made {[e.type for e in own]} and not {[e.type for e in was]}"
        visible = value in (None, REMOVED) or MARK in json.dumps(payloads(own)) or payloads(own) == payloads(was)
        if not visible and json.dumps(value) not in json.dumps(payloads(own)):
            return "made its event without the changed value"
    others = [Counter(CONTENT[e.type] for e in made if e.type in CONTENT) for made in (before, after)]
    own_content = Counter(CONTENT[e.type] for e in was if e.type in CONTENT)
    if gone := others[0] - own_content - others[1]:
        return f"cost events of other items: {gone}"
    return None


@pytest.mark.parametrize("share", range(SHARES))
def test_each_changed_field_makes_its_events_or_keeps_the_item_whole(share: int) -> None:
    names = sorted(chosen())[share::SHARES]
    assert names and [fault for name in names for fault in faults(name)] == []


def faults(name: str) -> list[tuple[Any, ...]]:
    """What the changes of this recording's fields lost."""
    items, before = recording(name), list(play(name).log.events.values())
    wrong = []
    for place, path in chosen()[name]:
        token, item = items[place]
        for value in VALUES:
            mutant = changed(item, path, value)
            if (mutant.input, mutant.output) == (item.input, item.output):
                continue
            player = Player()
            player.feed([*items[:place], (token, mutant), *items[place + 1 :]])
            player.wait()
            player.wait()  # what waited for its session waits for its pair then
            assert player.finished == {one for one, _ in items}, (path, value)
            cost = lost(before, list(player.log.events.values()), mutant, token.seq, value)
            if cost is not None:
                wrong.append((name, shapes.read(item)[0], path, "removed" if value is REMOVED else value, cost))
    return wrong


SESSION = "ses_1"


def bus(type_: str, properties: Any) -> HookItem:
    return HookItem("event", 5, {"event": {"id": "evt_1", "type": type_, "properties": properties}}, None)


def part(**fields: Any) -> HookItem:
    common = {"id": "prt_1", "messageID": "msg_1", "sessionID": SESSION}
    return bus("message.part.updated", {"sessionID": SESSION, "part": common | fields})


UNKNOWN: dict[str, HookItem] = {
    "a part of an unknown type": part(type="hologram", text="kept"),
    "a tool whose state is a string": part(type="tool", tool="bash", callID="call_1", state="completed: kept"),
    "a part without a session": bus("message.part.updated", {"part": {"type": "tool", "id": "prt_1", "state": "kept"}}),
    "a session error that is a string": bus("session.error", {"sessionID": SESSION, "error": "kept"}),
    "a message without parts": HookItem(
        "chat.message", 5, {"sessionID": SESSION}, {"message": {"id": "msg_1", "role": "user", "text": "kept"}}
    ),
    "a tool call without a session": HookItem(
        "tool.execute.after", 5, {"tool": "bash", "callID": "call_1", "args": {}}, {"output": "kept"}
    ),
    "a hook of another name with an output": HookItem("tool.dreamed", 5, {"a": 1}, {"output": "kept"}),
}


def fed(item: HookItem, **how: Any) -> Player:
    player = Player()
    player.knows(**how)
    player.feed([(Token(Origin("b" * 32, "c" * 16), 1), item)])
    player.wait()
    player.wait()
    assert len(player.finished) == 1
    return player


@pytest.mark.parametrize("item", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_shape_is_kept_whole_in_its_session_and_counted(item: HookItem) -> None:
    player = fed(item)
    kept = [event for event in player.log.events.values() if event.type == f"opencode.{shapes.read(item)[0]}"]
    assert len(kept) == 1 and is_kept_whole(item, kept)
    assert "not_final" not in " ".join(player.translator.counts)
    if item.hook != "tool.dreamed":
        assert player.translator.counts[f"kept_whole:{shapes.read(item)[0]}"] == 1
    cleaned = fed(item, cleaned=lambda payload: ({"session": payload.get("session"), "clean": True}, b""))
    assert all(event.payload.get("clean") for event in cleaned.log.events.values())
    named = SESSION in json.dumps([of(item.input, "sessionID"), of(item.input, "event", "properties")])
    assert kept[0].stream_id == (SESSION if named else "system")


def test_every_rule_has_a_shape() -> None:
    assert PROPERTIES.keys() == {source for source, rule in BY_SOURCE.items() if rule.kind != "drop"}


def test_a_session_without_its_first_message_update_keeps_its_outputs() -> None:
    """They look like history that a fork copied, because they are older than the first turn."""
    items = recording("chat")
    broken = [
        (token, bus("message.refreshed", item.input["event"]["properties"]))
        if shapes.read(item)[0] == "message.updated"
        else (token, item)
        for token, item in items
    ]
    player = Player()
    player.feed(broken)
    player.wait()
    assert len(player.of("execution.output")) == len(play("chat").of("execution.output")) == 1
