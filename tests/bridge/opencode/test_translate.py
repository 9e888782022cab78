"""The translator over recordings of real runs: what each hook becomes, whatever crashes in between."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from bridge.opencode.capture.emitter import Asked
from bridge.opencode.capture.shapes import beginning
from bridge.opencode.capture.state import SessionState
from bridge.opencode.capture.translate import Origin, Token
from bridge.opencode.link.frames import HookItem
from streams.event import StreamEvent
from streams.lineage import STEP_STARTED, span_id, trace_id
from tests.bridge.opencode.playing import Item, Log, Player, names, play, recording

# Every one of these is cut at each of its hooks; the others at every seventh.
CUT_EVERYWHERE = {
    "abort_tool",
    "chat",
    "compaction_auto_overflow",
    "http_400",
    "permission_child",
    "repeated_ids_parallel",
    "shell",
    "shell_abort",
    "shell_fork",
    "task_child",
    "task_parallel",
    "two_queued",
}


def shape(events: list[StreamEvent]) -> list[tuple[Any, ...]]:
    """Everything that must not depend on crashes: all but ids, times and the title, whose updates are not final."""
    keys = {event.id: event.idempotency_key for event in events}
    return sorted(
        (
            event.idempotency_key,
            event.stream_id,
            event.actor,
            event.correlation_id,
            event.traceparent,
            keys.get(event.causation_id or ""),
            json.dumps({k: v for k, v in event.payload.items() if k != "title"}, sort_keys=True),
        )
        for event in events
    )


def cut_off(item: Item) -> Item:
    """The item, but the answer that the fork copied has no end."""
    token, hook = item
    if hook.t != 1795310484402:
        return item
    given = json.dumps(hook.input).replace(', "completed": 1795310484338', "")
    return token, HookItem(hook.hook, hook.t, json.loads(given))


class TestWhatBecomesOfARun:
    def test_a_chat(self) -> None:
        player = play("chat")
        assert player.types() == [
            "lifecycle.session.created",
            "human.input",
            "turn.started",
            "execution.output",
            "execution.step",
            "turn.ended",
        ]
        _, given, started, output, step, ended = player.log.events.values()
        assert given.actor == "user" and given.causation_id is None
        assert started.causation_id == given.id
        assert {output.causation_id, step.causation_id, ended.causation_id} == {started.id}
        assert {e.correlation_id for e in (given, started, output, step, ended)} == {given.payload["message"]}
        assert step.payload["kind"] == "inference" and step.payload["tokens"]["output"] == 5
        assert ended.payload["outcome"] == "completed" and ended.payload["tokens"]["output"] == 5

    def test_parallel_tools_are_one_step_each(self) -> None:
        steps = [e.payload for e in play("parallel_tools").of("execution.step") if e.payload["kind"] == "tool"]
        assert len(steps) == 2 and len({s["part"] for s in steps}) == 2
        assert all(s["status"] == "completed" and s["duration_ms"] >= 0 for s in steps)

    def test_a_call_that_runs_is_told_once_before_its_step(self) -> None:
        told = Counter[str]()
        for name in names():
            events = play(name).events()
            steps = {
                e.payload["part"]: n
                for n, e in enumerate(events)
                if e.payload.get("kind") == "tool" and "part" in e.payload
            }
            starts = [(n, e) for n, e in enumerate(events) if e.type == STEP_STARTED]
            assert len({e.payload["part"] for _, e in starts}) == len(starts)
            for place, start in starts:
                step = events[steps[start.payload["part"]]].payload if start.payload["part"] in steps else None
                told["open" if step is None else "ended"] += 1
                assert step is None or (steps[step["part"]] > place and step["tool"] == start.payload["tool"])
                assert start.causation_id is not None and start.payload["turn"] == start.correlation_id
        assert told["ended"] > 40 and 0 < told["open"] < 10  # the open ones were killed with their OpenCode

    def test_a_call_that_starts_tells_the_redacted_beginning_of_its_input(self) -> None:
        player, secret = Player(), "s" * 20
        player.translator.clean = lambda value: json.loads(json.dumps(value).replace(secret, "[hidden]"))
        command = "x" * 195 + secret
        items = recording("run_tool")
        for _, item in items:
            part = (item.input or {}).get("event", {}).get("properties", {}).get("part", {})
            if part.get("state", {}).get("input"):
                part["state"]["input"] = {"command": command, "timeout": 5}
        player.feed(items)
        (start,) = player.of(STEP_STARTED)
        assert start.payload["input"] == {"command": "x" * 195 + "[hidd"}

    def test_a_tool_that_throws_is_one_step_with_its_error(self) -> None:
        steps = [e.payload for e in play("tool_throws_custom").of("execution.step") if e.payload["kind"] == "tool"]
        assert [s["status"] for s in steps] == ["error"] and steps[0]["error"]

    def test_repeated_call_ids_are_still_one_step_a_part(self) -> None:
        for name in ("repeated_ids_across_turns", "repeated_ids_in_turn", "repeated_ids_after_error"):
            steps = [e.payload for e in play(name).of("execution.step") if e.payload["kind"] == "tool"]
            assert len(steps) == 2 == len({s["part"] for s in steps})
            assert len({s["call"] for s in steps}) == 1

    def test_two_calls_that_opencode_makes_one_part_of_are_both_kept(self) -> None:
        steps = [e.payload for e in play("repeated_ids_parallel").of("execution.step") if e.payload["kind"] == "tool"]
        assert [s["input"]["command"] for s in steps] == ["echo one", "echo two"]
        assert "part" in steps[0] and "part" not in steps[1]

    def test_a_task_child_hangs_on_its_call(self) -> None:
        player = play("task_child")
        spawn = player.of("agent.spawned")[0]
        created = player.of("lifecycle.session.created")[1]
        given = player.of("agent.input")[0]
        child = spawn.payload["child"]
        assert created.payload["session"] == child and created.payload["lineage"] == "child"
        assert created.causation_id == spawn.id == given.causation_id
        root = spawn.stream_id
        assert {e.stream_id for e in player.log.events.values()} == {root}
        assert given.traceparent == f"00-{trace_id(root)}-{span_id(child)}-01"
        assert spawn.traceparent == f"00-{trace_id(root)}-{span_id(root)}-01"
        ended = next(e for e in player.of("turn.ended") if e.payload["session"] == child)
        result = next(e for e in player.of("execution.step") if e.payload.get("tool") == "task")
        assert result.causation_id == ended.id and result.payload["child"] == child
        assert not [e for e in player.of("human.input") if e.payload["session"] == child]

    def test_background_work_hangs_on_what_asked_for_it(self) -> None:
        items = recording("task_child")
        spawning = next(n for n, (_, item) in enumerate(items) if _is_created(item) and _info(item).get("parentID"))
        player = Player()
        player.feed(items[:spawning])
        (root,) = player.translator.state.sessions
        asked = Asked("01E", player.events()[0].traceparent or "", root, "msg_1")
        player.translator.asked = lambda session, mark: asked if mark in ("int_a", "key_a") else None
        info = {"id": "ses_work", "parentID": root, "title": "work", "metadata": {"intent": "int_a"}}
        event = {"id": "evt_work", "type": "session.created", "properties": {"sessionID": "ses_work", "info": info}}
        mark = {"durable_stream": {"key": "key_a"}}
        message = {"id": "msg_work", "sessionID": "ses_work", "role": "user"}
        part = {"id": "prt_work", "type": "text", "text": "do it", "metadata": mark}
        given = {"message": message, "parts": [part]}
        hooks = [HookItem("event", 5, {"event": event}), HookItem("chat.message", 6, {"sessionID": "ses_work"}, given)]
        player.feed([(Token(Origin("e" * 32, "1" * 16), seq), hook) for seq, hook in enumerate(hooks, 1)])
        spawned, created, prompted = player.events()[-3:]
        assert (spawned.type, spawned.causation_id, spawned.correlation_id) == ("agent.spawned", "01E", "msg_1")
        assert spawned.payload["session"] == root and spawned.payload["child"] == "ses_work"
        assert (created.type, created.causation_id) == ("lifecycle.session.created", spawned.id)
        assert (prompted.type, prompted.causation_id) == ("agent.input", "01E")
        assert {e.traceparent[3:35] for e in player.events() if e.traceparent} == {trace_id(root)}

    def test_the_whole_story_of_a_task_leads_back_to_the_human(self) -> None:
        player = play("task_nested")
        events = {e.id: e for e in player.log.events.values()}
        step = [e for e in player.of("execution.step") if e.payload.get("tool") == "task"][-1]
        walk = []
        current: StreamEvent | None = step
        while current is not None:
            walk.append(current.type)
            current = events.get(current.causation_id or "")
        assert walk[0] == "execution.step" and walk[-1] == "human.input"
        assert "agent.spawned" in walk and "agent.input" in walk

    @pytest.mark.parametrize(
        ("name", "outcomes"),
        [
            ("abort_tool", ["aborted", "completed"]),
            ("abort_stream", ["aborted", "completed"]),
            ("abort_retry", ["aborted", "completed"]),
            ("abort_task", ["aborted", "aborted", "completed"]),
            ("http_400", ["failed", "completed"]),
            ("question_rejected", ["stopped"]),
            ("permission_reject", ["stopped"]),
            ("compaction_auto_overflow", ["completed", "continued", "completed", "completed"]),
            ("compaction_manual", ["completed", "completed", "completed", "completed"]),
            ("two_queued", ["completed", "completed"]),
            ("two_queued_during_tool", ["stopped", "completed"]),
        ],
    )
    def test_outcomes_of_turns(self, name: str, outcomes: list[str]) -> None:
        player = play(name)
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == outcomes
        assert len(player.of("turn.started")) == len(outcomes)

    def test_an_abort_is_no_error(self) -> None:
        for name in ("abort_tool", "abort_stream", "abort_hold"):
            assert play(name).of("agent.error") == []

    def test_the_last_parts_of_an_aborted_turn_stand_before_its_end(self) -> None:
        types = [(e.type, e.payload.get("tool")) for e in play("abort_tool").log.events.values()]
        assert types.index(("execution.step", "bash")) < types.index(("turn.ended", None))

    def test_one_error_an_answer_without_what_the_provider_sent(self) -> None:
        errors = play("http_400").of("agent.error")
        assert len(errors) == 1
        assert errors[0].payload["name"] == "APIError" and errors[0].payload["status"] == 400
        assert "responseBody" not in json.dumps(errors[0].payload)

    def test_asks_become_checkpoints_with_their_answers(self) -> None:
        for name, kind, state in (
            ("permission_once", "permission", "replied"),
            ("question_replied", "question", "replied"),
            ("question_rejected", "question", "rejected"),
        ):
            asked, answered = play(name).of("workflow.checkpoint")
            assert (asked.payload["kind"], asked.payload["state"]) == (kind, "asked")
            assert (answered.payload["state"], answered.causation_id) == (state, asked.id)
            assert answered.actor == "user"

    def test_a_compaction_is_told_and_its_turn_is_named(self) -> None:
        player = play("compaction_manual")
        assert len(player.of("lifecycle.session.compacted")) == 1
        assert [e.payload["trigger"] for e in player.of("turn.started")].count("compaction") == 1

    def test_a_continuation_is_caused_by_its_compaction_and_is_not_output(self) -> None:
        player = play("compaction_auto_usage")
        compacted = player.of("lifecycle.session.compacted")[0]
        going_on = next(e for e in player.of("turn.started") if e.payload["trigger"] == "continuation")
        assert going_on.causation_id == compacted.id
        assert not [e for e in player.of("execution.output") if e.payload["text"].startswith("Continue if")]

    def test_what_was_undone_names_its_prompt_and_a_command_its_arguments(self) -> None:
        player = play("revert")
        prompts = {e.payload["message"]: e for e in player.of("human.input")}
        [at_once] = player.of("opencode.session.reverted")
        undone, answer = player.of("opencode.message.removed")
        assert at_once.payload["message"] == undone.payload["properties"]["messageID"]
        assert (at_once.payload["prompt"], at_once.causation_id) == (undone.payload["prompt"], undone.causation_id)
        message = undone.payload["properties"]["messageID"]
        assert (undone.payload["prompt"], undone.causation_id) == ("SAY:b", prompts[message].id)
        assert undone.correlation_id == message
        assert "prompt" not in answer.payload and answer.payload["properties"]["messageID"] not in prompts
        told = play("command").of("opencode.command.executed")[0].payload["properties"]
        assert (told["name"], told["arguments"]) == ("init", "SAY:x")

    def test_the_first_words_of_a_prompt_are_few_and_on_one_line(self) -> None:
        part = {"type": "text", "text": "fix\n\tit " + "x" * 500}
        made_up = {"type": "text", "text": "made up", "synthetic": True}
        assert beginning({"parts": [made_up, 5, part]}, 12) == "fix it xxxxx"
        assert beginning({"shell": "make  test"}, 80) == "!make test"
        for parts in (None, 5, "text", [None], [{"type": "text", "text": 7}]):
            assert beginning({"parts": parts}, 80) == ""

    def test_an_ask_and_its_answer_are_joined_with_their_step(self) -> None:
        kinds = "once always child external_directory reject aborted"
        for name in (*(f"permission_{kind}" for kind in kinds.split()), "run_permission", "question_replied"):
            player = play(name)
            checkpoints = player.of("workflow.checkpoint")
            steps = [e.payload for e in player.of("execution.step") if e.payload["kind"] == "tool"]
            (ask,) = [e for e in checkpoints if e.payload["state"] == "asked"]
            place = [ask.payload[field] for field in ("session", "turn", "call")]
            assert [[s["session"], s["turn"], s["call"]] for s in steps].count(place) == 1
            answers = [e for e in checkpoints if e.causation_id == ask.id]
            assert [e.payload["request"] for e in answers] == [ask.payload["request"]] * len(answers)

    def test_a_deletion_ends_child_and_parent(self) -> None:
        ended = play("deletion").of("lifecycle.session.ended")
        assert [e.payload["reason"] for e in ended] == ["deleted", "deleted"]

    def test_a_fork_does_not_tell_its_copied_history_again(self) -> None:
        player = play("fork")
        assert Counter(player.types())["turn.started"] == 2 == Counter(player.types())["human.input"]
        origin, fork = (e.payload["session"] for e in player.of("lifecycle.session.created"))
        [told] = player.of("lineage.forked")
        assert told.payload == {"session": fork, "fork": {"session": origin}}

    def test_a_fork_does_not_tell_an_answer_again_that_was_cut_off_before_it(self) -> None:
        player = Player()
        player.feed(cut_off(item) for item in recording("fork"))
        player.wait()
        assert [e.payload["trigger"] for e in player.of("turn.started")] == ["prompt", "prompt"]
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["completed", "completed"]

    def test_a_fork_of_a_fork_keeps_the_origin_that_a_person_named(self) -> None:
        """The messages that it copied were first those of its origin's own origin."""
        player = Player()
        for item in recording("fork"):
            player.feed([item])
            if len(player.of("lifecycle.session.created")) == 2 and "ses_mid" not in player.translator.state.sessions:
                origin, fork = (e.payload["session"] for e in player.of("lifecycle.session.created"))
                known = player.translator.state.sessions
                known["ses_mid"] = SessionState("ses_mid", "ses_mid", "ses_mid", None, True, "e", fork=origin)
                known[fork].fork = "ses_mid"
        assert player.of("lineage.forked") == []

    def test_a_resumed_session_is_said_once_a_boot(self) -> None:
        player = play("kill9_resumed_after")
        resumed = player.of("lifecycle.session.resumed")
        assert len(resumed) == 1 and resumed[0].payload["lineage"] == "root"
        assert player.types()[0] == "lifecycle.session.resumed"

    def test_a_resumed_session_keeps_the_title_that_it_had_last(self) -> None:
        player = Player()
        player.feed(recording("title_by_model"))
        last = player.of("turn.ended")[-1].payload["title"]
        assert last != player.of("lifecycle.session.created")[0].payload["title"]
        player.crash()
        session = player.of("turn.ended")[-1].payload["session"]
        told = [
            {"info": {"id": "msg_z1", "role": "assistant", "parentID": "msg_z0", "time": {}}, "sessionID": session},
            {"sessionID": session},
        ]
        hooks = [
            HookItem("event", 2**41, {"event": {"id": f"evt_z{n}", "type": type_, "properties": properties}})
            for n, (type_, properties) in enumerate(zip(("message.updated", "session.idle"), told, strict=True))
        ]
        player.feed([(Token(Origin("e" * 32, "1" * 16), seq), hook) for seq, hook in enumerate(hooks, 1)])
        assert [e.payload["title"] for e in player.of("lifecycle.session.resumed")] == [last]
        assert player.of("turn.ended")[-1].payload["title"] == last

    def test_a_crash_of_opencode_interrupts_its_turn(self) -> None:
        player = Player()
        player.feed(recording("kill9_in_tool_then_resumed"))
        player.feed(recording("kill9_resumed_after"))
        player.wait()
        assert [e.payload["outcome"] for e in player.of("turn.ended")] == ["interrupted", "completed"]

    def test_every_event_of_a_session_names_its_project(self) -> None:
        named = Counter[bool]()
        for name in names():
            projects: dict[str, str | None] = {}
            for event in play(name).events():
                session = event.payload.get("session", "")
                if "project" in event.payload:
                    projects[session] = event.payload["project"]
                assert event.metadata.get("project") == projects.get(session), (name, event.type)
                named[session in projects] += 1
        assert named[True] > 100 > named[False]

    def test_nothing_is_left_unread(self) -> None:
        for name in names():
            player = play(name)
            assert player.of("opencode.unreadable") == [], name
            assert player.translator.next_deadline() is None, name
            assert {token for token, _ in recording(name)} == player.finished, name


class TestOnceOnly:
    @pytest.mark.parametrize("name", ["task_parallel", "abort_tool", "two_queued", "permission_child"])
    @pytest.mark.parametrize("behind", [1, 5, 40])
    def test_a_second_plugin_copy_changes_nothing(self, name: str, behind: int) -> None:
        items = recording(name)
        second = [(Token(Origin(t.origin.boot_id, "1" * 16), t.seq), item) for t, item in items]
        player = Player()
        for place in range(len(items) + behind):
            player.feed(items[place : place + 1])
            player.feed(second[max(place - behind, 0) : place - behind + 1] if place >= behind else [])
        player.wait()
        assert shape(list(player.log.events.values())) == shape(list(play(name).log.events.values()))
        assert player.finished == {t for t, _ in items} | {t for t, _ in second}


class TestCrashes:
    @pytest.mark.parametrize("name", names())
    def test_a_sidecar_that_dies_anywhere_records_the_same(self, name: str) -> None:
        """Also if acks were lost, so that some that were durable are sent again."""
        items = recording(name)
        whole = shape(list(play(name).log.events.values()))
        for cut in range(0, len(items) + 1, 1 if name in CUT_EVERYWHERE else 7):
            player = Player()
            player.feed(items[:cut])
            player.crash()
            back = (0, 1, 3, 0, 8, 30)[cut % 6]
            unfinished = next((n for n, item in enumerate(items) if item[0] not in player.finished), len(items))
            again = items[max(unfinished - back, 0) :] if back else items
            player.feed([item for item in again if back or item[0] not in player.finished])
            player.wait()
            assert shape(list(player.log.events.values())) == whole, f"killed after hook {cut}, {back} sent again"


class TestLineage:
    def _child_only(self, name: str = "task_child") -> tuple[list[Item], str]:
        """A recording without its root's creation, so that the parent never appears."""
        items = recording(name)
        root = items[0][1].input["event"]["properties"]["sessionID"]
        child_items = [i for i in items if json.dumps([i[1].input, i[1].output]).find(root) < 0]
        created = [i for i in items if _is_created(i[1]) and _info(i[1]).get("parentID") == root]
        return sorted(created + child_items, key=lambda i: i[0].seq), root

    def test_a_parent_that_never_appears_does_not_hold_the_log(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items)
        assert player.asked == [root]
        assert player.types() == [], "unknown is not root: it waits"
        player.wait(2.0)
        created = player.of("lifecycle.session.created")[0]
        assert created.payload["lineage"] == "unknown" and created.payload["parent"] == root
        assert created.stream_id == created.payload["session"]
        assert player.of("human.input") == []
        assert {t for t, _ in items} == player.finished

    def test_a_parent_that_opencode_knows_is_taken_from_there(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items, known={root: {"id": root, "title": "old"}})
        player.wait()
        assert player.types()[0] == "lifecycle.session.resumed"
        assert {e.stream_id for e in player.log.events.values()} == {root}

    def test_an_orphan_is_linked_when_its_parent_appears(self) -> None:
        items, root = self._child_only()
        player = Player()
        player.feed(items)
        player.wait()
        player.feed([recording("task_child")[0]])
        player.wait()
        linked = player.of("lineage.linked")[0]
        orphan = player.of("lifecycle.session.created")[0]
        assert linked.stream_id == orphan.stream_id, "records never move"
        assert linked.payload["parent"] == root == linked.payload["root"]
        assert linked.causation_id == orphan.id

    def test_other_sessions_go_on_while_one_waits(self) -> None:
        items, _ = self._child_only()
        player = Player()
        player.feed(items[:2])
        player.feed(recording("chat"))
        assert "turn.ended" in player.types()
        assert not {t for t, _ in items[:2]} & player.finished

    def test_hooks_of_one_session_keep_their_order_while_held(self) -> None:
        items, _ = self._child_only()
        player = Player()
        player.feed(items)
        player.wait()
        positions = [e.metadata["seq"] for e in player.log.events.values()]
        assert positions == sorted(positions)


class TestBadInput:
    def _feed(self, *items: HookItem) -> Player:
        player = Player()
        origin = Origin("b" * 32, "c" * 16)
        player.feed([(Token(origin, seq), item) for seq, item in enumerate(items, 1)])
        player.wait()
        assert {token.seq for token in player.finished} == set(range(1, len(items) + 1))
        return player

    def test_an_unknown_bus_event_is_kept_whole(self) -> None:
        properties = {"sessionID": "ses_x", "anything": [1, {"deep": True}]}
        event = {"id": "evt_1", "type": "agent.dreamed", "properties": properties}
        player = self._feed(HookItem("event", 5, {"event": event}, None))
        kept = player.of("opencode.agent.dreamed")[0]
        assert kept.payload["properties"] == properties and kept.ts == 5

    def test_a_broken_rule_keeps_the_item(self, monkeypatch: pytest.MonkeyPatch) -> None:
        player = Player()

        def broken(*_: Any) -> bool:
            raise KeyError("shape")

        monkeypatch.setattr(player.translator, "unknown_event", broken)
        player.feed([(Token(Origin("b" * 32, "c" * 16), 1), HookItem("brand.new", 1, {"a": 1}, None))])
        assert player.of("opencode.unreadable")[0].payload["item"]["input"] == {"a": 1}
        assert len(player.finished) == 1

    def test_a_gap_is_recorded_with_its_counts(self) -> None:
        gap = {"lost": 7, "bytes": 900, "reason": "memory_full", "first_seq": 3, "last_seq": 9}
        player = self._feed(HookItem("capture.gap", 5, gap, None))
        assert player.of("capture.gap")[0].payload == gap


def test_redaction_comes_before_the_log() -> None:
    player = Player(Log())
    player.translator.clean = lambda value: {"clean": True}
    player.feed(recording("chat"))
    assert all(event.payload == {"clean": True} for event in player.of("execution.output"))


def _is_created(item: HookItem) -> bool:
    return item.hook == "event" and item.input["event"]["type"] == "session.created"


def _info(item: HookItem) -> dict[str, Any]:
    info: dict[str, Any] = item.input["event"]["properties"]["info"]
    return info


@pytest.mark.parametrize("name", names())
def test_what_is_sent_again_from_anywhere_after_a_crash_adds_nothing(name: str) -> None:
    """All was durable but the acks were lost, also those of hooks that are remembered without an event."""
    player, items = play(name), recording(name)
    before = list(player.log.events)
    player.feed(items)
    player.wait()
    assert list(player.log.events) == before, "nor without a crash"
    step = 1 if name in CUT_EVERYWHERE | {"fork"} else 1 + len(items) // 12
    for start in range(0, len(items), step):
        player.crash()
        player.feed(items[start:])
        player.wait()
        assert list(player.log.events) == before, start
