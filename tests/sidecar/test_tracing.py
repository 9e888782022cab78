"""Spans sent as they end: to a real receiver, over failures of both sides, each once and none left out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.care import tracing as module
from sidecar.care.checks.check import scene_of
from sidecar.care.checks.table import BEFORE_THE_LOG
from sidecar.care.checks.tracing import check_tracing
from sidecar.care.metrics import SidecarMetrics
from sidecar.care.tracing import Tracing
from sidecar.config import ConfigError, load_config, secrets_of
from sidecar.home import Home
from sidecar.notify_config import OtelConfig
from sidecar.read.past.traces import otlp
from sidecar.record.playing.play import play
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.lineage import ENDED
from streams.log.log import Log
from streams.log.reader import LogReader
from streams.system.retry import Retry
from tests.answering import AnsweringServer
from tests.sidecar.cli.helpers import events_of, run
from tests.sidecar.cli.test_traces import parsed, spans_of
from tests.sidecar.life import kill
from tests.sidecar.read.story.playing import spans_of as spans_in
from tests.sidecar.support import HANG_SECONDS, RECORDINGS, running, start, wait_for

SECRET = "Bearer hunter2-of-the-receiver"


IDENTITY = seeded_identity(2)


def recorded(name: str) -> list[StreamEvent]:
    """The events of a recording, with ids that no other has."""
    return events_of(name, Translator(IDENTITY))


class Receiver(AnsweringServer):
    """An OTLP receiver. It answers with each of ``answers`` once, and then accepts; ``got`` is what it was sent."""

    def __init__(self, *answers: int, partial: int = 0) -> None:
        super().__init__()
        self.answers, self.partial = list(answers), partial
        self.got: list[dict[str, str]] = []
        """A request each: names by span ids. Those that were not accepted are here, too."""
        self.before_answer = lambda: None

    def answer(self, method: str, path: str, body: bytes, headers: Message) -> tuple[int, bytes, Mapping[str, str]]:
        assert (method, path, headers["content-type"]) == ("POST", "/v1/traces", "application/json")
        assert headers["x-key"] == SECRET
        self.got.append({span.span_id.hex(): span.name for span in spans_of(parsed(body))})
        self.before_answer()
        content = json.dumps({"partialSuccess": {"rejectedSpans": str(self.partial)}} if self.partial else {})
        return (self.answers.pop(0) if self.answers else 200), content.encode(), {}

    @property
    def ids(self) -> list[str]:
        return [each for one in self.got for each in one]

    @property
    def config(self) -> OtelConfig:
        return OtelConfig(endpoint=self.address, headers={"x-key": SECRET})  # type: ignore[dict-item]


async def expected(home: Home) -> set[str]:
    """The ids of every span in the log that has ended, by the export of a whole session."""
    streams: dict[str, list[StreamEvent]] = {}
    over = {ENDED: set[str](), "turn.ended": set[str]()}
    async for record in LogReader(home.store_path).read_all():
        streams.setdefault(record.event.stream_id, []).append(record.event)
        if record.event.type in over:
            over[record.event.type].add(record.event.payload["session"])
    found = set()
    for spans in map(spans_in, streams.values()):
        ended = {span.id for span in spans if span.kind != "session" and span.end is not None}
        runs = {span.id for span in spans if span.kind == "tool"} - ended
        rest = over["turn.ended"] - {span.session for span in spans if span.parent in runs} | over[ENDED]
        whole = otlp(spans, 0)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        for span, sent in zip(spans, whole, strict=True):
            if span.id in ended if span.kind != "session" else span.session in rest:
                found.add(sent["spanId"])
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(module, "RETRY", Retry(0.01, 60.0))


@asynccontextmanager
async def tracing(home: Home, store: Log, receiver: Receiver) -> AsyncIterator[Tracing]:
    made = Tracing(home, receiver.config, store, store.manifest.log_id)
    async with AsyncExitStack() as stack:
        await made.start(stack)
        yield made


async def caught_up(made: Tracing) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := made.status())["lag"]:
            await asyncio.sleep(0.01)
    return found


@pytest.fixture
async def filled(tmp_path: Path) -> AsyncIterator[tuple[Home, Log]]:
    """A home with an empty log."""
    home = Home(tmp_path / "home")
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    yield home, store
    await store.close()


async def test_what_was_recorded_before_is_not_sent_and_all_that_ends_is(filled: tuple[Home, Log]) -> None:
    home, store = filled
    await store.append(recorded("chat"))
    before = await expected(home)
    with Receiver() as receiver:
        async with tracing(home, store, receiver) as made:
            assert (await caught_up(made))["sent"] == 0
            for event in recorded("task_child"):
                await store.append([event])
            found = await caught_up(made)
        wanted = await expected(home) - before
        assert sorted(receiver.ids) == sorted(wanted) and found["sent"] == len(wanted) > 5
        assert "session" in [name for one in receiver.got for name in one.values()], "of the child"
        async with tracing(home, store, receiver) as made:
            assert (await caught_up(made))["sent"] == 0, "a restart repeats nothing"
            await store.append(recorded("permission_once"))
            await caught_up(made)
    assert sorted(receiver.ids) == sorted(await expected(home) - before)


async def test_a_receiver_that_is_away_gets_all_of_it_later(
    filled: tuple[Home, Log], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 2)
    home, store = filled
    with Receiver(503, 429, 401, 307) as receiver:
        async with tracing(home, store, receiver) as made:
            await store.append(recorded("task_child"))
            found = await caught_up(made)
        assert found["failures"] == 4 and found["problem"] == ""
        assert receiver.got[0] == receiver.got[4], "the same request again"
        assert sorted(each for one in receiver.got[4:] for each in one) == sorted(await expected(home))
        assert max(map(len, receiver.got)) < 8
    config = receiver.config
    async with tracing(home, store, receiver) as made:
        await store.append(recorded("chat"))
        status = await _problem(made)
        assert status["lag"] and "cannot be reached" in status["problem"]
    assert SECRET not in caplog.text + str(status) + str(config)


async def _problem(made: Tracing) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not (found := made.status())["problem"]:
            await asyncio.sleep(0.01)
    return found


async def test_what_the_receiver_will_never_accept_is_counted_and_the_rest_goes_on(filled: tuple[Home, Log]) -> None:
    home, store = filled
    with Receiver(400, partial=1) as receiver:
        async with tracing(home, store, receiver) as made:
            await store.append(recorded("chat"))
            first = await caught_up(made)
            assert first["refused"] == len(receiver.got[0]) and first["sent"] == 0
            await store.append(recorded("task_child"))
            found = await caught_up(made)
    assert found["refused"] == first["refused"] + 1 and found["sent"] == len(receiver.got[1]) - 1


async def test_a_place_that_cannot_be_used_is_told_and_stops_nothing(
    filled: tuple[Home, Log], caplog: pytest.LogCaptureFixture
) -> None:
    home, store = filled
    home.otel_path.mkdir()
    with Receiver() as receiver:
        async with tracing(home, store, receiver) as made:
            assert (await _problem(made))["failures"]
            await store.append(recorded("chat"))
            home.otel_path.rmdir()
            await caught_up(made)
            assert sorted(receiver.ids) == sorted(await expected(home)), "from where the sidecar started"
        home.otel_path.write_text('{"position": 0}')
        async with tracing(home, store, receiver) as made:
            await store.append(recorded("permission_once"))
            await caught_up(made)
    assert sorted(receiver.ids) == sorted(await expected(home))
    assert "is damaged" in caplog.text


async def test_few_records_at_a_time_lose_nothing(filled: tuple[Home, Log], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RECORDS", 3)
    home, store = filled
    several = [recorded(name) for name in ("chat", "task_child", "permission_once")]
    with Receiver() as receiver:
        async with tracing(home, store, receiver) as made:
            for n in range(max(map(len, several))):
                await store.append([events[n] for events in several if n < len(events)])
            await caught_up(made)
    assert sorted(receiver.ids) == sorted(await expected(home))


async def test_a_killed_sidecar_leaves_nothing_out_and_sends_again_only_what_was_not_answered(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    nonce = system_identity().nonce
    with Receiver() as receiver:
        home.config_path.write_text(f'[otel]\nendpoint = "{receiver.address}"\nheaders = {{ x-key = "{SECRET}" }}\n')
        home.config_path.chmod(0o600)
        process = start(home)
        try:
            info = running(home)
            killed = threading.Event()

            def die() -> None:
                if not killed.is_set():
                    os.kill(info.pid, signal.SIGKILL)
                    process.wait()
                    killed.set()

            receiver.before_answer = die
            # The sidecar dies while its first request waits for the answer; playing starts another, and goes on.
            await play(home, RECORDINGS / "task_child.jsonl", nonce=nonce)
            wait_for(killed.is_set, "the first request")
            if not home.running():
                process = start(home)
            running(home)
            await play(home, RECORDINGS / "chat.jsonl", nonce=nonce)

            async with asyncio.timeout(HANG_SECONDS):
                while set(receiver.ids) != await expected(home):
                    await asyncio.sleep(0.05)
            again = len(receiver.got[0])
            assert sorted(receiver.ids[again:]) == sorted(await expected(home)), "one request came twice"
            told = run(home.path, "status").out
            assert "up to date with the log" in told and SECRET not in told + home.log_path.read_text()
        finally:
            if (last := home.running()) is not None:
                kill(last.pid)
            process.wait()


def test_a_secret_header_is_redacted_and_a_plain_word_is_not() -> None:
    headers = {"x-key": SECRET, "x-scope-orgid": "team"}
    config = load_config(None, otel={"endpoint": "https://example.org/otlp", "headers": headers})
    assert list(secrets_of(config).values()) == [SECRET] and SECRET not in repr(config)


def test_doctor_and_the_metrics_say_how_far_it_is(tmp_path: Path) -> None:
    assert check_tracing in BEFORE_THE_LOG
    home = Home(tmp_path)
    scene = scene_of(home, ("durable-stream",), tmp_path, {"HOME": str(tmp_path), "PATH": ""})
    assert check_tracing(scene) == []
    scene = scene._replace(config=load_config(None, otel={"endpoint": "http://127.0.0.1:4318"}))
    now = {"position": 3, "lag": 0, "sent": 7, "refused": 0, "failures": 2, "problem": ""}
    told = [check_tracing(scene._replace(answer={"otel": {**now, **more}}))[0] for more in ({}, {"lag": 2}, AWAY)]
    assert [(check.level, check.text) for check in told] == [
        ("ok", "up to date with the log"),
        ("ok", "2 records waiting"),
        ("note", "2 records waiting: 127.0.0.1:4318 answers with status 503"),
    ]
    metrics = SidecarMetrics(lambda: {"otel": now})
    assert "durable_stream_traces_sent_total 7.0" in metrics.text().decode()


AWAY = {"lag": 2, "problem": "127.0.0.1:4318 answers with status 503"}


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "127.0.0.1:4318"},
        {"endpoint": "ftp://127.0.0.1"},
        {"endpoint": "https://ada:hunter2-x@example.org"},
        {"endpoint": "https://example.org?key=hunter2-x"},
        {"endpoint": "http://example.org:4318", "headers": {"x-key": "hunter2-x"}},
        {"endpoint": "http://127.0.0.1:99999"},
    ],
)
def test_an_endpoint_that_cannot_be_used_is_refused_without_its_secrets(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, otel=given)
    assert "hunter2" not in str(refused.value) + refused.value.advice
