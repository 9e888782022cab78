"""The L0 payloads: required, optional and forbidden fields, and that unknown fields are kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats.l0 import payloads as p
from bridge.nats.l0.payloads import L0Payload, PayloadError, ToolResult, UiAction, effective_after_execution
from streams.bus.subjects import SubjectError
from tests.streams.sizes import size
from tools.l0_messages import FAMILIES, decode

many = settings(max_examples=size("EXAMPLES", 100), deadline=None, derandomize=True, database=None)

ROWS: dict[type[L0Payload], tuple[str, str]] = {
    p.Wakeup: ('{"agent_id":"ses_a"}', '{"inbox_id":"i","reason":"r","metadata":{"a":1}}'),
    p.ToolResult: (
        '{"tool_call_id":"c","agent_turn_id":"t","turn_epoch":3,"agent_id":"ses_a","after_execution":"suspend",'
        '"status":"success","tool_result_card_id":"card"}',
        "{}",
    ),
    p.Stop: ('{"agent_id":"ses_a","agent_turn_id":"t","turn_epoch":0}', '{"reason":"r"}'),
    p.ToolCommand: (
        '{"tool_call_id":"c","agent_turn_id":"t","turn_epoch":3,"agent_id":"ses_a"}',
        '{"tool_name":"bash","after_execution":"terminate","tool_call_card_id":"card","context_box_id":"box",'
        '"dispatch_requested_at":1700000000000}',
    ),
    p.Step: (
        '{"agent_turn_id":"t","step_id":"s","phase":"completed"}',
        '{"metadata":{"timing":{"duration_ms":5}}}',
    ),
    p.Task: (
        '{"agent_turn_id":"t","status":"failed"}',
        '{"deliverable_card_id":"card","output_box_id":"box","tool_result_card_id":"card2","error":"text",'
        '"error_code":"recursion_depth_exceeded","stats":{"steps":2}}',
    ),
    p.Chunk: (
        '{"agent_turn_id":"t","step_id":"s","chunk_type":"text","content":"he"}',
        '{"index":0,"metadata":{"llm_timing":{}}}',
    ),
    p.State: (
        '{"agent_id":"ses_a","agent_turn_id":"t","status":"running","turn_epoch":1,"updated_at":1700000000000}',
        '{"output_box_id":"box","metadata":{}}',
    ),
    p.UiAction: (
        '{"action_id":"a","agent_id":"ui_worker","tool_name":"approve","args":{"yes":true}}',
        '{"metadata":{},"message_id":"01890a5d-ac96-774b-bcce-b302099a8057","parent_step_id":"s"}',
    ),
    p.UiActionAck: (
        '{"action_id":"a","agent_id":"ui_worker","status":"accepted"}',
        '{"message_id":"m","tool_result_card_id":"card","error_code":"e","error":"text"}',
    ),
}
"""The required and the other fields, as seed 002 lists them, 5.1 to 5.11."""

REQUIRED: dict[type[L0Payload], dict[str, Any]] = {model: json.loads(row[0]) for model, row in ROWS.items()}
GOOD = {model: REQUIRED[model] | json.loads(row[1]) for model, row in ROWS.items()}
MODELS = list(GOOD)


def body(fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_every_family_has_its_model() -> None:
    assert {family.section for family in FAMILIES} == {f"5.{n}" for n in range(1, 12)}
    assert {family.model for family in FAMILIES} == set(MODELS)
    assert len({family.short for family in FAMILIES}) == len(FAMILIES) == 11


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.what())
def test_a_payload_has_its_fields_and_tells_by_name_what_is_wrong(model: type[L0Payload]) -> None:
    whole, required = GOOD[model], REQUIRED[model]
    made = model.decode(body(whole))
    assert made.encode() == json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
    assert model.decode(made.encode()) == made
    assert model.decode(body(required)).fields() == required, "absent fields stay absent"
    wrong = [(name, {key: value for key, value in whole.items() if key != name}) for name in required]
    wrong += [(name, {**whole, name: None}) for name in required]
    wrong += [(name, {**whole, name: value}) for name in whole for value in (["s3cret"], True, 1.5)]
    wrong += [
        (name, {**whole, name: id_}) for name in whole if name.endswith("_id") for id_ in ("", "x" * (p.MAX_ID + 1))
    ]
    wrong += [(n, {**whole, n: {"a": "x" * p.MAX_OBJECT}}) for n, value in whole.items() if isinstance(value, dict)]
    for name, fields in wrong:
        with pytest.raises(PayloadError, match=name) as raised:
            model.parse(fields)
        assert raised.value.what == model.what() and "s3cret" not in str(raised.value)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@many
@given(st.sampled_from(MODELS), st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_unknown_fields_are_kept(model: type[L0Payload], more: dict[str, Any]) -> None:
    more = {k: v for k, v in more.items() if k not in model.model_fields and k not in model.FORBIDDEN}
    whole = {**more, **GOOD[model]}
    made = model.decode(body(whole))
    assert made.fields() == whole
    assert json.loads(made.encode()) == whole
    assert model.decode(made.encode()).encode() == made.encode()


def test_what_is_no_payload_is_told() -> None:
    deep = b'{"agent_id":"a","x":' + b"[" * 2000 + b"]" * 2000 + b"}"
    raws = (b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff", b'{"agent_id":NaN}', b'{"agent_id":"\\ud800"}', b"{}x")
    for raw in (*raws, deep):
        with pytest.raises(PayloadError, match="wakeup"):
            p.Wakeup.decode(raw)


def test_a_body_is_bounded_both_ways() -> None:
    fields = {"agent_id": "a", "unknown": "x" * p.MAX_BODY}
    with pytest.raises(PayloadError, match="bytes"):
        p.Wakeup.decode(body(fields))
    with pytest.raises(PayloadError, match="bytes"):
        p.Wakeup.parse(fields).encode()


def test_the_largest_chunk_fits() -> None:
    made = p.Chunk(agent_turn_id="t", step_id="s", chunk_type="text", content="\x01" * p.MAX_CONTENT)
    assert len(made.encode()) <= p.MAX_BODY
    with pytest.raises(PayloadError, match="content"):
        p.Chunk.parse({**made.fields(), "content": "x" * (p.MAX_CONTENT + 1)})
    assert p.Chunk.parse({**made.fields(), "content": ""}).content == ""


# 5.2 and 5.4: never inline


def test_a_result_is_never_inline() -> None:
    for value in (None, "text", {"a": 1}, []):
        with pytest.raises(PayloadError, match="tool_result_card_id"):
            ToolResult.parse({**GOOD[ToolResult], "result": value})
        with pytest.raises(PayloadError, match="tool_call_card_id"):
            p.ToolCommand.parse({**GOOD[p.ToolCommand], "args": value})


def test_only_a_partial_result_keeps_the_slot() -> None:
    for status in ("success", "failed", "canceled", "timeout", "partial"):
        made = ToolResult.parse({**GOOD[ToolResult], "status": status})
        assert made.closes_slot == (status != "partial") and made.key == ("t", "c")


@pytest.mark.parametrize(
    ("model", "field", "values"),
    [
        (ToolResult, "status", ("cancelled", "")),
        (ToolResult, "after_execution", ("continue",)),
        (p.Stop, "turn_epoch", (-1, 1.0, "1", True, 2**53, None)),
    ],
)
def test_another_value_is_refused(model: type[L0Payload], field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(PayloadError, match=field):
            model.parse({**GOOD[model], field: value})


def test_a_result_ends_a_turn_only_from_a_tool_on_the_list() -> None:
    report = ToolResult.parse(GOOD[ToolResult])
    content = {"result": {"__cg_control": {"after_execution": "terminate"}}}
    trusted = frozenset({"finish"})
    assert effective_after_execution(report, content, "finish", trusted) == "terminate"
    assert effective_after_execution(report, content, "bash", trusted) == "suspend"
    assert effective_after_execution(report, content, None, trusted) == "suspend"
    assert effective_after_execution(report, content, "finish", frozenset()) == "suspend"
    for odd in (None, [], "x", {}, {"result": "x"}, {"result": {"__cg_control": 1}}):
        assert effective_after_execution(report, odd, "finish", trusted) == "suspend"
    other = {"result": {"__cg_control": {"after_execution": "explode"}}}
    assert effective_after_execution(report, other, "finish", trusted) == "suspend"


def test_a_message_id_may_be_a_uuid7() -> None:
    for message, is_one in (
        ("01890a5d-ac96-774b-bcce-b302099a8057", True),
        ("01890A5D-AC96-774B-BCCE-B302099A8057", True),
        ("01890a5d-ac96-474b-bcce-b302099a8057", False),
        ("01890a5d-ac96-774b-0cce-b302099a8057", False),
        ("x", False),
    ):
        made = UiAction.parse({**GOOD[UiAction], "message_id": message})
        assert made.message_is_uuid7 == is_one and made.key == "a"


# The table


BY_SUBJECT: dict[type[L0Payload] | None, str] = {
    p.Wakeup: "cmd.agent.oracle.wakeup",
    p.ToolCommand: "cmd.tool.web.search cmd.sys.pmo.internal.delegate",
    p.Step: "evt.agent.ses_a.step",
    p.Task: "evt.agent.ses_a.task",
    p.State: "evt.agent.ses_a.state",
    p.Chunk: "str.agent.ses_a.chunk",
    p.UiAction: "cmd.sys.ui.action",
    p.UiActionAck: "evt.sys.ui.action_ack",
    None: "cmd.agent.oracle.sleep evt.agent.ses_a.wakeup str.agent.ses_a.step cmd.sys.pmo.internal "
    "cmd.sys.other.action cmd.sys.pmo.internal.a.b evt.user.u.step",
}


def test_a_subject_has_its_payload() -> None:
    for model, subjects in BY_SUBJECT.items():
        for short in subjects.split():
            with pytest.raises(
                SubjectError if model is None else PayloadError, match=model.what() if model else "no payload"
            ):
                decode(f"cg.v1.p.public.{short}", b"{}")


def test_a_message_is_decoded_by_its_subject() -> None:
    subject = "cg.v1.p.public.evt.agent.ses%2Ea.step"
    parsed, payload = decode(subject, body(GOOD[p.Step]))
    assert parsed.target == "ses.a" and payload == p.Step.parse(GOOD[p.Step])
    with pytest.raises(PayloadError, match="step"):
        decode(subject, b"{}")
    with pytest.raises(SubjectError, match="no payload"):
        decode("cg.v1.p.public.evt.agent.a.other", b"{}")
    with pytest.raises(SubjectError):
        decode("evt.p.l.s.t", b"{}")
