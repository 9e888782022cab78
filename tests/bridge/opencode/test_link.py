"""What the link protocol refuses, without sockets. How links work is in ``tests/sidecar/test_link.py`` and
``test_link.py``."""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.link.frames import Ack, Hello, HookItem, ShimIdentity, decode, encode
from bridge.opencode.link.lenient import FrameError
from bridge.opencode.link.link import ClientLink, SidecarLink
from bridge.opencode.link.protocol import (
    SIDECAR,
    Closed,
    Event,
    LocalProtocolError,
    Refused,
    State,
    WindowError,
    proof,
)
from bridge.opencode.link.window import AckWindow

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


# --- open ---


def test_a_wholly_known_resend_is_acked_at_once() -> None:
    pair = opened(acked_seq=9)
    pair.client.send_hooks(4, items(2))
    pair.exchange()
    assert pair.take() == ([], [Ack(9)])


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
    with pytest.raises(WindowError, match="came after"):
        window.begin(2, 5)
    with pytest.raises(WindowError, match="unacknowledged"):
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
                with pytest.raises(WindowError, match="unacknowledged"):
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
