"""The link protocol without sockets: both ends drive each other, so both are checked at once."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.link.frames import FrameError, Hello, HookItem, ShimIdentity, decode, encode
from bridge.opencode.link.link import (
    Acked,
    AckWindow,
    CallError,
    CallReceived,
    ClientLink,
    Closed,
    ContextReceived,
    Event,
    HooksReceived,
    Identified,
    LocalProtocolError,
    LossyReceived,
    Refused,
    RequestReceived,
    ResultReceived,
    SeqWentBack,
    SidecarLink,
    State,
    ToolReceived,
    Welcomed,
    WindowOverrun,
    proof,
)
from bridge.opencode.link.protocol import SIDECAR

TOKEN = "7e" * 32
SHIM = ShimIdentity("0.1", "ab" * 16, "cd" * 8, 42, "prj", "/dir", "/tree", "1.18", 0)


def items(count: int) -> list[HookItem]:
    return [HookItem("event", n, {"n": n}) for n in range(count)]


class Pair:
    """Both ends of one connection. ``exchange`` carries messages until neither end has more to say."""

    def __init__(self, shim: ShimIdentity | None = SHIM, **changes: Any) -> None:
        wanted: dict[str, Any] = {"token": TOKEN, "port": 4000, **changes}
        self.sidecar = SidecarLink(token=TOKEN, port=4000, nonce="b" * 64, boot="boot", version="1", window=8)
        self.client = ClientLink(nonce="a" * 64, version="2", pid=42, shim=shim, **wanted)
        self.at_sidecar: list[Event] = []
        self.at_client: list[Event] = []
        self.seen: list[str] = []

    def exchange(self, *, acked_seq: int = 0, welcome: bool = True) -> None:
        moved = True
        while moved:
            moved = False
            for text in self.client.data_to_send():
                moved = True
                self.seen.append(json.loads(text)["type"])
                self.at_sidecar += self.sidecar.receive(text)
            if welcome and self.sidecar.state is State.AWAIT_WELCOME:
                self.sidecar.welcome(acked_seq=acked_seq, context={"k": 1})
            for text in self.sidecar.data_to_send():
                moved = True
                self.seen.append(json.loads(text)["type"])
                self.at_client += self.client.receive(text)

    def take(self) -> tuple[list[Event], list[Event]]:
        got = self.at_sidecar, self.at_client
        self.at_sidecar, self.at_client, self.seen = [], [], []
        return got


def opened(shim: ShimIdentity | None = SHIM, acked_seq: int = 0) -> Pair:
    pair = Pair(shim)
    pair.exchange(acked_seq=acked_seq)
    pair.take()
    return pair


# --- handshake ---


def test_a_shim_is_welcomed() -> None:
    pair = Pair()
    pair.exchange(acked_seq=5)
    assert pair.seen == ["hello", "challenge", "identify", "welcome"]
    assert pair.at_sidecar == [Identified("shim", SHIM, "0.1", 42)]
    (welcomed,) = pair.at_client
    assert isinstance(welcomed, Welcomed)
    assert (welcomed.welcome.acked_seq, welcomed.welcome.window, welcomed.welcome.context) == (5, 8, {"k": 1})
    assert pair.sidecar.state is pair.client.state is State.OPEN_SHIM


def test_the_command_line_is_welcomed_without_a_shims_fields() -> None:
    pair = Pair(shim=None)
    pair.exchange()
    assert pair.at_sidecar == [Identified("control", None, "2", 42)]
    assert pair.sidecar.state is pair.client.state is State.OPEN_CONTROL


def test_an_impostor_gets_hello_and_then_silence() -> None:
    pair = Pair(token="00" * 32)
    pair.exchange()
    assert pair.seen == ["hello", "challenge"]
    assert pair.at_client == [Closed("impostor", "wrong proof", by_peer=False)]
    pair.client.bye("disposed")
    assert pair.client.data_to_send() == []


def test_a_proof_is_for_one_port() -> None:
    pair = Pair(port=4001)
    pair.exchange()
    assert isinstance(pair.at_client[0], Closed)
    assert pair.at_client[0].reason == "impostor"


def test_a_peer_without_the_token_is_refused() -> None:
    link = SidecarLink(token=TOKEN, port=4000, nonce="b" * 64, boot="boot", version="1")
    link.receive(encode(Hello(role="control", protocol=1, nonce="a" * 64)))
    challenge = json.loads(link.data_to_send()[0])
    # Sending the sidecar's own proof back must not help.
    answer = {"type": "identify", "proof": challenge["proof"], "pid": 1, "client_version": "0"}
    assert link.receive(json.dumps(answer)) == [Closed("auth", "wrong proof", by_peer=False)]
    assert [json.loads(text) for text in link.data_to_send()] == [{"type": "bye", "reason": "auth"}]


def test_a_role_cannot_be_changed_after_hello() -> None:
    link = SidecarLink(token=TOKEN, port=1, nonce="b" * 64, boot="boot", version="1")
    link.receive(encode(Hello(role="control", protocol=1, nonce="a" * 64)))
    wrong = {"type": "identify", "proof": proof(TOKEN, "shim", 1, "a" * 64, "b" * 64), "pid": 1}
    (closed,) = link.receive(json.dumps(wrong))
    assert isinstance(closed, Closed)
    assert closed.reason == "auth"


def test_the_proof_is_pinned() -> None:
    # The shim computes the same in JavaScript; this vector must never change within protocol 1.
    assert proof("7e" * 32, "shim", 4000, "a" * 64, "b" * 64) == (
        "d2708d60d092a91dfc3c0dc1528ccf13acf221490b2df360932589f5a3af5fd0"
    )


def test_a_shim_must_name_itself() -> None:
    link = SidecarLink(token=TOKEN, port=1, nonce="b" * 64, boot="boot", version="1")
    link.receive(encode(Hello(role="shim", protocol=1, nonce="a" * 64)))
    right = proof(TOKEN, "shim", 1, "a" * 64, "b" * 64)
    (closed,) = link.receive(json.dumps({"type": "identify", "proof": right, "pid": 1, "boot_id": "ab" * 16}))
    assert isinstance(closed, Closed)
    assert closed.reason == "protocol"


@pytest.mark.parametrize(("protocol", "remedy"), [(0, "durable-stream install"), (2, "start its own")])
def test_another_protocol_is_refused_in_words_by_a_proved_sidecar_to_a_proved_shim(protocol: int, remedy: str) -> None:
    link = SidecarLink(token=TOKEN, port=1, nonce="b" * 64, boot="boot", version="1")
    assert link.receive(encode(Hello(role="shim", protocol=protocol, nonce="a" * 64))) == []
    (challenge,) = link.data_to_send()
    assert json.loads(challenge)["protocol"] == 1
    right = proof(TOKEN, "shim", 1, "a" * 64, "b" * 64)
    said = {"type": "identify", "proof": right, "pid": 7, "shim_version": "0.0.9", "of_another_protocol": True}
    refused, closed = link.receive(json.dumps(said))
    assert refused == Refused("shim", "0.0.9", 7, protocol)
    assert isinstance(closed, Closed) and closed.reason == "unsupported" and remedy in closed.detail
    (bye,) = link.data_to_send()
    assert json.loads(bye) == {"type": "bye", "reason": "unsupported", "detail": closed.detail}


def test_another_protocol_without_the_token_is_a_wrong_proof_and_nothing_else() -> None:
    link = SidecarLink(token=TOKEN, port=1, nonce="b" * 64, boot="boot", version="1")
    link.receive(encode(Hello(role="shim", protocol=2, nonce="a" * 64)))
    (closed,) = link.receive(json.dumps({"type": "identify", "proof": "c" * 64, "pid": 7, "shim_version": "9.0.0"}))
    assert isinstance(closed, Closed) and closed.reason == "auth"


def test_a_client_tells_that_the_sidecar_speaks_another_protocol() -> None:
    client = ClientLink(token=TOKEN, port=4000, nonce="a" * 64, version="1", pid=1)
    right = proof(TOKEN, "sidecar", 4000, "a" * 64, "b" * 64)
    challenge = {"type": "challenge", "protocol": 2, "nonce": "b" * 64, "proof": right, "sidecar_version": "2.0.0"}
    (closed,) = client.receive(json.dumps(challenge))
    assert isinstance(closed, Closed) and closed.reason == "unsupported" and "(2.0.0)" in closed.detail


def test_hooks_on_their_way_are_taken_after_the_sidecars_bye_but_not_acked() -> None:
    pair = Pair()
    pair.exchange()
    pair.client.send_hooks(1, items(2))
    pair.sidecar.leave("draining")
    (hooks,) = [event for text in pair.client.data_to_send() for event in pair.sidecar.receive(text)]
    assert isinstance(hooks, HooksReceived) and len(hooks.items) == 2
    assert pair.sidecar.finish([1, 2])
    assert [json.loads(text)["type"] for text in pair.sidecar.data_to_send()] == ["bye"]
    pair.sidecar.bye("draining")
    assert pair.sidecar.state is State.CLOSED and pair.sidecar.data_to_send() == []


# --- open ---


def test_items_are_acked_only_when_finished_and_cumulatively() -> None:
    pair = opened()
    pair.client.send_hooks(1, items(3))
    pair.exchange()
    sidecar, client = pair.take()
    assert sidecar == [HooksReceived(1, items(3), 0)]
    assert client == []
    pair.sidecar.finish([2, 3])
    pair.exchange()
    assert pair.take() == ([], [])
    pair.sidecar.finish([1])
    pair.exchange()
    assert pair.take() == ([], [Acked(3)])
    assert pair.client.in_flight == 0


def test_what_the_welcome_acked_is_not_taken_again() -> None:
    pair = opened(acked_seq=2)
    pair.client.send_hooks(1, items(4))
    pair.exchange()
    sidecar, client = pair.take()
    assert sidecar == [HooksReceived(3, items(4)[2:], 0)]
    assert client == [Acked(2)]
    pair.sidecar.finish([3, 4])
    pair.exchange()
    assert pair.at_client == [Acked(4)]


def test_a_wholly_known_resend_is_acked_at_once() -> None:
    pair = opened(acked_seq=9)
    pair.client.send_hooks(4, items(2))
    pair.exchange()
    assert pair.take() == ([], [Acked(9)])


def test_calls_context_and_results_cross() -> None:
    pair = opened()
    pair.sidecar.call("c1", "session.get", {"path": {"id": "s"}})
    pair.sidecar.push_context({"x": 2})
    pair.exchange()
    assert pair.at_client == [CallReceived("c1", "session.get", {"path": {"id": "s"}}), ContextReceived({"x": 2})]
    pair.take()
    pair.client.result("c1", {"ok": True})
    pair.client.result("c2", error=CallError("opencode", "lone \ud800", 404))
    pair.client.tool("t1", "x", {}, {})
    pair.client.send_lossy(items(1))
    pair.exchange()
    first, second, tool, lossy = pair.at_sidecar
    assert first == ResultReceived("c1", {"ok": True}, None)
    assert isinstance(second, ResultReceived)
    assert second.error is not None
    assert (second.error.code, second.error.message, second.error.status) == ("opencode", "lone ?", 404)
    assert tool == ToolReceived("t1", "x", {}, {})
    assert lossy == LossyReceived(items(1))


def test_requests_cross() -> None:
    pair = opened(shim=None)
    pair.client.request("r1", "status", {"all": True})
    pair.exchange()
    assert pair.at_sidecar == [RequestReceived("r1", "status", {"all": True})]
    pair.sidecar.result("r1", [1, 2])
    pair.exchange()
    assert pair.at_client == [ResultReceived("r1", [1, 2], None)]


def test_a_bye_sends_the_last_ack_first_and_is_the_last_word() -> None:
    pair = opened()
    pair.client.send_hooks(1, items(1))
    pair.exchange()
    pair.take()
    pair.sidecar.finish([1])
    pair.sidecar.bye("draining")
    pair.sidecar.result("t", 1)
    pair.exchange()
    assert pair.seen == ["ack", "bye"]
    assert pair.at_client == [Acked(1), Closed("draining", "", by_peer=True)]
    assert pair.sidecar.receive('{"type":"ack","seq":1}') == []


def test_the_window_is_enforced_on_both_sides() -> None:
    pair = opened()
    with pytest.raises(LocalProtocolError):
        pair.client.send_hooks(1, items(9))
    assert pair.client.room == 8
    pair.client.send_hooks(1, items(8))
    assert pair.client.room == 0
    pair.exchange()
    # A peer that ignores the window is reported so at twice its size.
    more = {"type": "hooks", "first_seq": 9, "items": [{"hook": "e", "t": 1}] * 9}
    (closed,) = pair.sidecar.receive(json.dumps(more))
    assert isinstance(closed, Closed)
    assert closed.reason == "window"
    assert json.loads(pair.sidecar.data_to_send()[-1]) == {"type": "bye", "reason": "window"}


def test_a_seq_that_goes_back_breaks_the_protocol() -> None:
    pair = opened()
    pair.sidecar.receive('{"type":"hooks","first_seq":5,"items":[{"hook":"e","t":1}]}')
    (closed,) = pair.sidecar.receive('{"type":"hooks","first_seq":4,"items":[{"hook":"e","t":1}]}')
    assert isinstance(closed, Closed)
    assert closed.reason == "protocol"
    with pytest.raises(LocalProtocolError):
        client = opened().client
        client.send_hooks(2, items(1))
        client.send_hooks(2, items(1))


def test_an_ack_of_the_unsent_breaks_the_protocol() -> None:
    (closed,) = opened().client.receive('{"type":"ack","seq":1}')
    assert isinstance(closed, Closed)
    assert closed.reason == "protocol"


def test_a_newer_sidecars_frames_are_passed_over_a_newer_shims_are_not() -> None:
    pair = opened()
    assert pair.client.receive('{"type":"later"}') == []
    assert pair.client.unknown == 1
    (closed,) = pair.sidecar.receive('{"type":"later"}')
    assert isinstance(closed, Closed)
    assert closed.reason == "protocol"


def messages() -> list[str]:
    pair = opened()
    pair.client.send_hooks(1, items(1))
    pair.client.send_lossy(items(1))
    pair.client.result("c", 1)
    control = opened(shim=None)
    control.client.request("r", "m", {})
    first = Pair()
    first.client.receive(json.dumps({"type": "bye", "reason": "idle"}))
    return [*Pair().client.data_to_send(), *pair.client.data_to_send(), *control.client.data_to_send()]


@pytest.mark.parametrize("state", list(SIDECAR))
def test_a_frame_without_an_entry_in_the_table_closes_the_link(state: State) -> None:
    for text in messages():
        link = SidecarLink(token=TOKEN, port=1, nonce="b" * 64, boot="boot", version="1")
        link.role = "shim"
        link.state = state
        allowed = type(decode(text)) in SIDECAR[state]
        closed = any(isinstance(event, Closed) for event in link.receive(text))
        assert closed == (not allowed and state is not State.CLOSED)


def test_a_value_without_a_json_form_leaves_the_link_as_it_was() -> None:
    pair = opened()
    with pytest.raises(FrameError):
        pair.sidecar.call("c1", "m", {"x": object()})
    assert pair.sidecar.data_to_send() == []
    assert pair.sidecar.is_open


def test_calling_before_the_welcome_is_a_local_error() -> None:
    pair = Pair()
    with pytest.raises(LocalProtocolError):
        pair.sidecar.call("c1", "m", {})
    with pytest.raises(LocalProtocolError):
        pair.client.send_hooks(1, items(1))


# --- the window ---


def test_finishing_is_idempotent_and_the_unknown_is_a_bug() -> None:
    window = AckWindow(acked=5)
    window.finish(3)
    window.begin(6)
    window.finish(6)
    window.finish(6)
    assert window.acked == 6
    with pytest.raises(ValueError, match="never received"):
        window.finish(7)


def test_a_refused_begin_takes_nothing() -> None:
    window = AckWindow(window=2)
    window.begin(1, 2)
    with pytest.raises(SeqWentBack):
        window.begin(2, 5)
    with pytest.raises(WindowOverrun):
        window.begin(3, 3)
    assert (window.received, window.unacked) == (2, 2)
    window.finish(2)
    assert window.begin(2, 3) == 1  # finished, though not yet acked: a resend of it is fine
    assert window.unacked == 4


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 6), st.integers(1, 4)), max_size=60), st.integers(0, 5), st.data()
)
def test_the_window_agrees_with_a_plain_model(
    steps: Iterable[tuple[bool, int, int]], start: int, data: st.DataObject
) -> None:
    window = AckWindow(acked=start, window=8)
    received: list[int] = []
    finished: set[int] = set()
    for receive, gap, count in steps:
        if receive:
            first = max([start, *received]) + gap
            if len([seq for seq in received if seq > window.acked]) + count > 16:
                with pytest.raises(WindowOverrun):
                    window.begin(first, count)
                continue
            assert window.begin(first, count) == 0
            received += range(first, first + count)
        elif received:
            seq = data.draw(st.sampled_from(received))
            window.finish(seq)
            finished.add(seq)
        complete = [seq for index, seq in enumerate(received) if set(received[: index + 1]) <= finished]
        assert window.acked == (complete[-1] if complete else start)
        assert window.unacked == len([seq for seq in received if seq > window.acked])
