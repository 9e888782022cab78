"""Frames survive a round trip. Anything else is rejected with the module's own error, without a side effect."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.link import frames
from bridge.opencode.link.frames import (
    Ack,
    Bye,
    Call,
    Challenge,
    Context,
    ErrorBody,
    Hello,
    HookItem,
    Hooks,
    Identify,
    Lossy,
    Request,
    Result,
    Tool,
    Welcome,
    batches,
    decode,
    encode,
    json_schema,
)
from bridge.opencode.link.lenient import FrameError, UnknownFrame

N64 = "0123456789abcdef" * 4

EXAMPLES = [
    Hello(role="shim", protocol=1, nonce=N64),
    Challenge(protocol=1, nonce=N64, proof=N64, sidecar_version="0.1"),
    Identify(proof=N64, pid=3, client_version="0.1"),
    Identify(
        proof=N64,
        pid=3,
        shim_version="0.1",
        boot_id="ab" * 16,
        instance="cd" * 8,
        project="p",
        directory="/d",
        worktree="/",
        opencode_version="1.18",
        last_seq=0,
    ),
    Welcome(sidecar_boot="b", sidecar_version="0.1", acked_seq=0, window=512, context={"a": [1]}),
    Hooks(7, [HookItem("event", 1, {"a": 1}, None), HookItem("chat.message", 2, None, [1])]),
    Ack(seq=9),
    Call(id="c1", method="session.get", args={"path": {"id": "ses"}}),
    Result(id="c1", value={"x": None}),
    Result(id="c1", value=None),
    Result(id="c1", error=ErrorBody(code="opencode", message="no", status=404)),
    Request(id="r1", method="status", args={}),
    Tool(id=4, name="agent_spawn", args={}, context={}),
    Context(context={}),
    Lossy([HookItem("event", 1, {"delta": "x"})]),
    Bye(reason="draining"),
]


def hooks(text: str) -> Hooks:
    frame = decode(f'{{"type":"hooks","first_seq":1,"items":[{{"hook":"event","t":1,"input":{text}}}]}}')
    assert isinstance(frame, Hooks)
    return frame


@pytest.mark.parametrize("frame", EXAMPLES, ids=lambda frame: frame.type)
def test_a_frame_survives_the_wire(frame: frames.Frame) -> None:
    assert decode(encode(frame)) == frame
    assert decode(encode(frame).encode()) == frame


def test_there_is_an_example_of_every_frame() -> None:
    tags = {
        definition.get("properties", {}).get("type", {}).get("const") for definition in json_schema()["$defs"].values()
    }
    assert {frame.type for frame in EXAMPLES} == tags - {None}


def test_a_null_value_travels_and_an_unset_field_does_not() -> None:
    assert json.loads(encode(Result(id="a", value=None))) == {"type": "result", "id": "a", "value": None}
    assert "boot_id" not in encode(Identify(proof=N64, pid=1, client_version="x"))


def test_unknown_fields_are_ignored() -> None:
    assert decode('{"type":"ack","seq":3,"later":{"x":1}}') == Ack(seq=3)
    frame = decode('{"type":"hooks","first_seq":1,"x":1,"items":[{"hook":"e","t":1,"x":2}]}')
    assert frame == Hooks(1, [HookItem("e", 1)])


WRONG = (
    *("", "{", "[]", "7", "null", '"hooks"', "{}", '{"type":null}', '{"type":["hooks"]}', '{"type":"hooks"}'),
    *(
        f'{{"type":"hooks","first_seq":{rest}}}'
        for rest in ('0,"items":[]', 'true,"items":[]', '9007199254740992,"items":[]')
    ),
    *(
        f'{{"type":"hooks","first_seq":1,"items":{items}}}'
        for items in ("{}", "[1]", '[{"t":1}]', '[{"hook":"","t":1}]')
    ),
    *(
        f'{{"type":"hooks","first_seq":1,"items":[{{"hook":"e"{rest}}}]}}'
        for rest in ("", ',"t":"1"', ',"t":true', ',"t":-1')
    ),
    *(f'{{"type":"ack","seq":{seq}}}' for seq in ('"1"', "1.5", "-1", "9" * 5000 + ',"x":')),
    '{"type":"hello","role":"root","protocol":1,"nonce":"' + N64 + '"}',
    '{"type":"hello","role":"shim","protocol":1,"nonce":"short"}',
    '{"type":"result","id":"1","value":1,"error":{"code":"a","message":"b"}}',
    '{"type":"bye","reason":"whatever"}',
    '{"type":"call","id":"1","method":"m","args":[]}',
)


def test_a_wrong_shape_is_a_frame_error() -> None:
    for text in WRONG:
        with pytest.raises(FrameError):
            decode(text)


def test_bad_utf8_is_a_frame_error() -> None:
    with pytest.raises(FrameError, match="UTF-8"):
        decode(b'{"type":"\xff"}')
    with pytest.raises(FrameError, match="UTF-8"):
        decode(b'"\xed\xa0\x80"')  # a surrogate, encoded


def test_an_unknown_type_can_be_told_from_a_broken_frame() -> None:
    with pytest.raises(UnknownFrame):
        decode('{"type":"later"}')


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"sk-secret-1"}',
        '{"type":"ack","seq":"sk-secret-1"}',
        '{"type":"call","id":"1","method":{"sk-secret-1":1},"args":{}}',
        '{"type":"hooks","first_seq":1,"items":["sk-secret-1"]}',
        '{"type":"hooks","first_seq":1,"items":[{"hook":{"sk-secret-1":1},"t":1}]}',
        "sk-secret-1",
    ],
)
def test_an_error_never_repeats_payload(text: str) -> None:
    with pytest.raises(FrameError) as caught:
        decode(text)
    assert "sk-secret" not in f"{caught.value} {caught.value!r} {caught.value.__cause__}"
    assert len(caught.value.reason) < 120


def test_what_javascript_may_write_loses_no_frame() -> None:
    deep = "[" * 3000 + "]" * 3000
    frame = hooks(f'{{"s":"a\\ud800b","inf":1e999,"nan":NaN,"big":{"9" * 5000},"wide":{2**70},"deep":{deep},"x":1}}')
    value = frame.items[0].input
    assert value["s"] == "a\ufffdb"
    assert value["inf"] is value["nan"] is value["big"] is None
    assert value["wide"] == float(2**70)
    assert value["x"] == 1
    assert frame.repaired == 5  # the wide integer is read as orjson reads it: no repair
    assert '{"$deep":true}' in encode(frame)
    assert decode(encode(frame)) == Hooks(1, frame.items)


ESCAPES = [
    r"\ud800",
    r"\udc00\ud800",
    r"\ud83d\ude00",
    r"\ud800\ud83d\ude00\udc00",
    r"\\ud800",
    r"\\\ud800\n\ud800",
    r"\\ud83d\ude00",
    r"\ud83d\\ude00",
    r"\uD800\uDFFFx\uDBFF",
]


@pytest.mark.parametrize("escapes", [*ESCAPES, "".join(ESCAPES)])
def test_a_large_message_is_repaired_as_a_small_one(escapes: str) -> None:
    small = hooks(f'["{escapes}"]')
    large = hooks(f'["{escapes}","{"x" * 2**20}"]')
    assert large.items[0].input[0] == small.items[0].input[0]
    assert bool(large.repaired) == bool(small.repaired)
    deep = hooks(f'["{escapes}",{"[" * 1500}{"]" * 1500},"{"x" * 2**20}"]')
    assert deep.items[0].input[0] == small.items[0].input[0]
    assert deep.repaired == large.repaired + 1


def test_a_cut_does_not_touch_brackets_in_strings() -> None:
    text = '"]]}}[[{{\\"\\\\"'
    frame = hooks("[" * 1500 + text + "]" * 1500 + "")
    assert frame.repaired == 1
    around = hooks(f"[{text},{'[' * 1500}{text}{']' * 1500},{text}]")
    assert around.items[0].input[0] == around.items[0].input[2] == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '"' + '\\"' * 500_000,
        '{"a":"' + '\\"' * 500_000,
        "[" * 200_000 + "]" * 200_000,
        "[1e999" * 2000,
    ],
    ids=["open", "open objects", "endless string", "endless value", "deep list", "bad numbers"],
)
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    with pytest.raises(FrameError):
        decode(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.lists(st.builds(HookItem, st.just("event"), st.integers(0, 2**53 - 1), json_values, json_values), max_size=5))
def test_any_items_can_be_sent_and_read(items: list[HookItem]) -> None:
    text = encode(Hooks(1, items))
    orjson.loads(text)
    got = decode(text)
    assert isinstance(got, Hooks)
    assert [item.t for item in got.items] == [item.t for item in items]


def test_batches_keep_order_and_limits() -> None:
    items = [HookItem("event", n, "x" * (3000 if n == 5 else 10)) for n in range(20)]
    out = list(batches(3, items, max_items=4, max_bytes=1000))
    read = [decode(text) for _, text in out]
    assert all(isinstance(frame, Hooks) for frame in read)
    assert [item for frame in read for item in frame.items] == items  # type: ignore[union-attr]
    seq = 3
    for (last, _), frame in zip(out, read, strict=True):
        assert isinstance(frame, Hooks)
        assert frame.first_seq == seq
        assert len(frame.items) <= 4
        assert last == seq + len(frame.items) - 1
        seq = last + 1
    assert [items[5]] in [frame.items for frame in read if isinstance(frame, Hooks)]
    assert list(batches(1, [])) == []
