"""The scripted model alone: how a prompt becomes steps. No OpenCode is needed."""

from __future__ import annotations

from tests.real.model_server import Step, parse_script


def test_a_plain_text_is_one_empty_step() -> None:
    assert parse_script("hello") == [Step()]


def test_calls_of_one_step_are_parallel_and_then_begins_the_next() -> None:
    first, second = parse_script('CALL:a {"x": 1} CALL:b THEN: SAY:all done')
    assert first.calls == [("a", {"x": 1}), ("b", {})]
    assert (second.calls, second.say) == ([], "all done")


def test_a_script_inside_a_call_is_left_to_the_child() -> None:
    [step] = parse_script('CALL:task {"prompt": "CALL:bash {} THEN: HOLD:x SAY:kid"} SAY:mine')
    assert step.calls == [("task", {"prompt": "CALL:bash {} THEN: HOLD:x SAY:kid"})]
    assert (step.say, step.hold) == ("mine", None)


def test_the_quotes_of_opencode_run_are_taken_off() -> None:
    [step] = parse_script('"CALL:x {\\"a\\": \\"b\\"}"')
    assert step.calls == [("x", {"a": "b"})]


def test_failures_can_be_counted_and_delayed() -> None:
    [step] = parse_script("HTTPERR:429*2,1 SAY:ok")
    assert (step.status, step.status_times, step.retry_after_s, step.say) == (429, 2, 1, "ok")


def test_reasoning_ends_at_the_next_marker_and_words_in_say_are_text() -> None:
    [step] = parse_script("REASON:hm hm SAY:HOLD:x is text")
    assert (step.reason, step.say, step.hold) == ("hm hm", "HOLD:x is text", None)
