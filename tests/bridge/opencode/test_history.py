"""Old sessions of OpenCode 1, from its API, become what a recording at the time would have been.

``tests/real/test_exclusion.py`` compares the two with a real OpenCode.
"""

from __future__ import annotations

import json
from typing import Any

from bridge.opencode.capture.history import HISTORY_INSTANCE, session_items
from bridge.opencode.capture.translate import Origin, Token
from tests.bridge.opencode.playing import Player

ORIGIN = Origin("b" * 32, HISTORY_INSTANCE)


def user(id_: str, text: str, at: int, **part: Any) -> dict[str, Any]:
    return {
        "info": {"id": id_, "role": "user", "sessionID": "ses_1", "time": {"created": at}, "agent": "build"},
        "parts": [{"id": f"prt_{id_}", "messageID": id_, "sessionID": "ses_1", "type": "text", "text": text, **part}],
    }


def answer(id_: str, to: str, at: int, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    info = {"id": id_, "role": "assistant", "parentID": to, "sessionID": "ses_1", "agent": "build", **more}
    info |= {"modelID": "m", "providerID": "p", "time": {"created": at, "completed": at + 9}}
    told = [{"id": f"prt_{id_}_{n}", "messageID": id_, "sessionID": "ses_1", **part} for n, part in enumerate(parts)]
    return {"info": info, "parts": told}


def said(text: str, at: int) -> dict[str, Any]:
    return {"type": "text", "text": text, "time": {"start": at, "end": at + 1}}


def finish(reason: str = "stop") -> dict[str, Any]:
    return {"type": "step-finish", "reason": reason, "tokens": {"input": 1, "output": 2}, "cost": 0}


def play(messages: list[dict[str, Any]], player: Player | None = None) -> Player:
    info = {"id": "ses_1", "directory": "/d", "title": "old", "version": "1.18.0", "time": {"created": 1000}}
    player = player or Player()
    items = session_items(info, messages)
    player.feed([(Token(ORIGIN, number), item) for number, item in enumerate(items, 1)])
    player.wait()
    return player


CHAT = [
    user("msg_1", "hello", 1001),
    answer("msg_2", "msg_1", 1002, said("hi", 1003), finish()),
    user("msg_3", "fail", 1020),
    answer("msg_4", "msg_3", 1021, error={"name": "APIError", "data": {"message": "no", "statusCode": 400}}),
    user("msg_5", "stop", 1040),
    answer("msg_6", "msg_5", 1041, said("he", 1042), error={"name": "MessageAbortedError", "data": {"message": "x"}}),
]


def test_a_session_gets_its_inputs_turns_outputs_and_errors_back() -> None:
    player = play(CHAT)
    assert player.types() == [
        "lifecycle.session.created",
        *("human.input", "turn.started", "execution.output", "execution.step", "turn.ended"),
        *("human.input", "turn.started", "agent.error", "turn.ended"),
        *("human.input", "turn.started", "execution.output", "turn.ended"),
    ]
    assert [event.payload["outcome"] for event in player.of("turn.ended")] == ["completed", "failed", "aborted"]
    assert [event.ts for event in player.of("human.input")] == [1001, 1020, 1040]


def test_all_of_it_is_marked_and_a_repeat_adds_nothing() -> None:
    player = play(CHAT)
    events = list(player.log.events.values())
    assert all(event.metadata["history"] is True for event in events)
    again = Player(player.log)
    play(CHAT, again)
    assert list(again.log.events.values()) == events


def test_what_a_fork_inherited_is_not_recorded_again_and_its_origin_is_named() -> None:
    def chat(session: str, made: int, *asked: int) -> list[dict[str, Any]]:
        found = []
        for at in asked:
            first, second = (f"msg_{(max(at, made) + after) % 2**36:09x}{at:x}" for after in (-1, 1))
            found += [user(first, f"at {at}", at), answer(second, first, at + 2, said("hi", at + 3), finish())]
        told: list[dict[str, Any]] = json.loads(json.dumps(found).replace("ses_1", session))
        return told

    player, began = Player(), 1_795_310_000_000
    for session, made, *asked in (("ses_1", 0, began, began + 900), ("ses_2", began + 5000, began, began + 9000)):
        info = {"id": session, "directory": "/d", "version": "1.18.0", "time": {"created": made or began - 9}}
        items = session_items(info, chat(session, made, *asked))
        player.feed([(Token(ORIGIN, int(session[4:]) * 1000 + number), item) for number, item in enumerate(items, 1)])
    of_fork = [event for event in player.events() if event.stream_id == "ses_2"]
    assert [event.type for event in of_fork] == [
        *("lifecycle.session.created", "lineage.forked"),
        *("human.input", "turn.started", "execution.output", "execution.step", "turn.ended"),
    ]
    assert of_fork[1].payload["fork"] == {"session": "ses_1"}
    assert len(player.of("execution.step")) == 3


def test_the_child_of_a_task_is_below_it() -> None:
    task = {
        "type": "tool",
        "tool": "task",
        "callID": "call_1",
        "state": {
            "status": "completed",
            "input": {"description": "work"},
            "output": "done",
            "title": "work",
            "metadata": {"sessionId": "ses_2"},
            "time": {"start": 1003, "end": 1009},
        },
    }
    player = play([user("msg_1", "go", 1001), answer("msg_2", "msg_1", 1002, task, finish())])
    info = {"id": "ses_2", "parentID": "ses_1", "directory": "/d", "time": {"created": 1004}}
    player.feed([(Token(ORIGIN, 100 + n), item) for n, item in enumerate(session_items(info, []))])
    player.wait()
    child = player.of("lifecycle.session.created")[1]
    assert (child.stream_id, child.causation_id) == ("ses_1", player.of("agent.spawned")[0].id)


def test_what_opencode_says_for_itself_is_no_input() -> None:
    compaction = {**user("msg_3", "", 1020), "parts": [{"id": "prt_c", "messageID": "msg_3", "type": "compaction"}]}
    player = play([*CHAT[:2], compaction, answer("msg_4", "msg_3", 1021, said("summary", 1022), agent="compaction")])
    assert len(player.of("human.input")) == 1
    assert [event.payload["trigger"] for event in player.of("turn.started")] == ["prompt", "compaction"]


def test_odd_messages_are_kept_or_left_out_and_nothing_fails() -> None:
    play([{}, {"info": 5, "parts": 7}, {"info": {"role": "assistant"}, "parts": [None, 3]}, *CHAT[:1]])


def test_a_session_that_another_agent_goes_on_with_is_handed_off_once() -> None:
    messages = [
        user("msg_1", "plan it", 1001),
        answer("msg_2", "msg_1", 1002, said("a plan", 1003), finish(), agent="plan"),
        user("msg_3", "do it", 1020),
        answer("msg_4", "msg_3", 1021, said("done", 1022), finish(), agent="build"),
        user("msg_5", "more", 1040),
        answer("msg_6", "msg_5", 1041, said("done", 1042), finish(), agent="build"),
    ]
    player = play(messages)
    (handoff,) = player.of("agent.handoff")
    assert handoff.payload == {"session": "ses_1", "message": "msg_3", "from": "plan", "to": "build"}
    given = [event for event in player.of("human.input") if event.payload["message"] == "msg_3"]
    assert handoff.causation_id == given[0].id
    player.crash()
    assert len(play(messages, player).of("agent.handoff")) == 1
