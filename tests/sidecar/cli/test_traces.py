"""``export --format otlp`` and ``chrome-trace``: a session as a trace that other tools read."""

from __future__ import annotations

import base64
import json
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.cli.printing.output import json_line
from sidecar.read.past.traces import SCHEMA_URL, _id, chrome, otlp
from sidecar.read.story.ended_spans import ended
from sidecar.read.story.moment import Moment
from sidecar.read.story.timeline import Timeline
from tests.sidecar.cli.helpers import make_home, run
from tests.sidecar.read.conversations import announced_late, every_recording, happened
from tests.sidecar.read.story.playing import RECORDINGS, recorded, snapshot
from tests.sidecar.read.story.playing import spans_of as spans_in

IDS = ("traceId", "spanId", "parentSpanId")
LATE = 4_000_000_000_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("traces") / "home", "task_child", "permission_once", "run_error")


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The address of an OTLP receiver on HTTP, and what it was sent."""
    got: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(parsed(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", got
    server.shutdown()
    thread.join()
    server.server_close()


def parsed(body: bytes | str) -> ExportTraceServiceRequest:
    """A request as a receiver reads it: OTLP writes ids in hex, where protobuf's own JSON has base64."""

    def decoded(value: dict[str, Any]) -> dict[str, Any]:
        for name in IDS:
            if name in value:
                value[name] = base64.b64encode(bytes.fromhex(value[name])).decode()
        return value

    return Parse(json.dumps(json.loads(body, object_hook=decoded)), ExportTraceServiceRequest())


def spans_of(request: ExportTraceServiceRequest) -> list[Span]:
    return [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]


def attributes(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def stream_of(home: Path, text: str) -> str:
    return str(run(home, "query", "--text", text, "--json").objects()[0]["event"]["stream_id"])


def test_a_receiver_gets_a_span_for_each_turn_step_tool_and_child(
    home: Path, tmp_path: Path, receiver: tuple[str, list[ExportTraceServiceRequest]]
) -> None:
    stream, file = stream_of(home, "child work"), tmp_path / "trace.json"
    assert run(home, "export", stream, "--format", "otlp", "--output", str(file)).code == 0
    address, got = receiver
    assert file.read_bytes().count(b"\n") == 1, "a collector's file receiver reads one request a line"
    sent = urllib.request.Request(address, file.read_bytes(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(sent, timeout=30) as answer:
        assert answer.status == 200
    [request] = got
    assert request.resource_spans[0].scope_spans[0].schema_url == SCHEMA_URL
    spans = {span.span_id: span for span in spans_of(request)}

    def path(span: Span) -> list[str]:
        above = path(spans[span.parent_span_id]) if span.parent_span_id else []
        return [*above, span.name]

    paths = [path(span) for span in spans.values()]
    turn = ["session", "invoke_agent build"]
    child = [*turn, "execute_tool task", "session", "invoke_agent general"]
    for each in (turn, [*turn, "chat mock-1"], child, [*child, "chat mock-1"], [*child, "execute_tool bash"]):
        assert each in paths
    assert len([each for each in paths if len(each) == 1]) == 1

    # The ids are those that the recorded events carry, so that other tools' spans of the same trace join.
    events = [each["event"] for each in run(home, "log", stream, "--json").objects()]
    traces = {each["traceparent"].split("-")[1] for each in events}
    assert {span.trace_id.hex() for span in spans.values()} == traces and len(traces) == 1
    own = [span for span in spans.values() if span.name == "session" or span.name.startswith("invoke_agent")]
    assert {span.span_id.hex() for span in own} == {each["traceparent"].split("-")[2] for each in events}
    above = {span.span_id.hex() for span in spans.values() if span.name.startswith("invoke_agent")}
    steps = [each for each in events if each["type"].startswith("execution.")]
    assert above == {each["traceparent"].split("-")[2] for each in steps}, "of its turn"

    step = next(span for span in spans.values() if span.name == "chat mock-1")
    found = attributes(step)
    assert found["gen_ai.operation.name"] == "chat" and step.kind == Span.SPAN_KIND_CLIENT
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (10, 5)
    assert (found["gen_ai.provider.name"], found["gen_ai.request.model"]) == ("mock", "mock-1")
    tool = attributes(next(span for span in spans.values() if span.name == "execute_tool bash"))
    assert tool["gen_ai.tool.name"] == "bash" and tool["gen_ai.tool.call.id"]
    assert (tool["gen_ai.tool.type"], tool["gen_ai.agent.name"]) == ("function", "general")
    assert "echo child" not in file.read_text(), "no content leaves the machine"
    again = run(home, "export", stream, "--format", "otlp")
    assert again.out == file.read_text()


def test_a_failed_turn_is_an_error(home: Path) -> None:
    failed = next(e for e in run(home, "query", "--type", "turn.ended", "--json").objects() if _failed(e))
    request = parsed(run(home, "export", failed["event"]["stream_id"], "--format", "otlp").out)
    turn = next(span for span in spans_of(request) if span.name.startswith("invoke_agent"))
    assert turn.status.code == 2 and attributes(turn)["error.type"] == "_OTHER"


def _failed(record: dict[str, Any]) -> bool:
    return bool(record["event"]["payload"]["outcome"] == "failed")


REQUIRED = {
    "invoke_agent": {"gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.conversation.id"},
    "chat": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.conversation.id"},
    "execute_tool": {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.conversation.id"},
}
ALLOWED = {
    "invoke_agent": {"error.type"},
    "chat": {
        "error.type",
        "gen_ai.response.finish_reasons",
        *(f"gen_ai.usage.{each}_tokens" for each in ("input", "output")),
        *(f"gen_ai.usage.{each}_tokens" for each in ("cache_read.input", "cache_write.input", "reasoning.output")),
    },
    "execute_tool": {"error.type", "gen_ai.agent.name", "gen_ai.tool.type", "gen_ai.tool.call.id"},
}
"""The attributes of a span in version 0.1.0 of the conventions: those that it must have, and those that it may have of
the ones that a log knows. Nothing else in their namespace may be there."""


def test_spans_have_the_names_and_attributes_of_the_conventions() -> None:
    seen = set()
    for name, events in every_recording():
        for span in spans_of(parsed(json.dumps(otlp(spans_in(events), LATE)))):
            found = attributes(span)
            operation = found.get("gen_ai.operation.name", "")
            own = {each for each in found if not each.startswith("durable_stream.")}
            if not operation:
                assert span.name in ("session", "wait", "pause") and own == {"gen_ai.conversation.id"}, name
                continue
            seen.add(operation)
            assert REQUIRED[operation] <= own <= REQUIRED[operation] | ALLOWED[operation], (name, span.name, own)
            of = {"invoke_agent": "agent.name", "chat": "request.model", "execute_tool": "tool.name"}[operation]
            assert span.name == f"{operation} {found[f'gen_ai.{of}']}"
            assert span.kind == (Span.SPAN_KIND_CLIENT if operation == "chat" else Span.SPAN_KIND_INTERNAL)
    assert seen == set(REQUIRED)


def test_every_recording_is_a_tree_in_both_formats() -> None:
    for name, events in every_recording():
        found = spans_in(events)
        spans = {span.span_id: span for span in spans_of(parsed(json.dumps(otlp(found, LATE))))}
        assert len(spans) == len(found), name
        for span in spans.values():
            assert not span.parent_span_id or span.parent_span_id in spans, name
            assert span.end_time_unix_nano >= span.start_time_unix_nano > 0, name
        rows: dict[int, list[dict[str, Any]]] = {}
        for event in chrome(found, LATE)["traceEvents"]:
            if event["ph"] == "X":
                row = rows.setdefault(event["tid"], [])
                while row and row[-1]["ts"] + row[-1]["dur"] <= event["ts"]:
                    row.pop()
                assert not row or row[-1]["ts"] + row[-1]["dur"] >= event["ts"] + event["dur"], name
                row.append(event)


def test_each_call_ends_with_its_own_end_whenever_its_child_session_became_known() -> None:
    for name, events in every_recording():
        ends = {e.id: e.payload.get("ended_ms") or e.ts for e in events if e.payload.get("call")}
        for played in (events, announced_late(events)):
            spans = spans_in(played)
            calls = {span.id: span for span in spans if span.kind == "tool"}
            for span in calls.values():
                is_open = span.state in ("running", "over")
                assert is_open or (span.end, span.state) == (ends[span.event], span.state), (name, span)
            steps = [e for e in events if e.type == "execution.step" and e.payload.get("kind") != "inference"]
            assert sum(span.state not in ("running", "over") for span in calls.values()) == len(steps), name
            starts = {e.payload.get("call") for e in events if e.type == "execution.step.started"}
            ended = {e.payload.get("call") for e in steps}
            assert {span.facts["call"] for span in calls.values()} <= starts | ended, name
            assert sum(span.end is None or span.state == "over" for span in calls.values()) == len(starts - ended), name
            below = {span.session: calls[span.parent].facts["call"] for span in spans if span.parent in calls}
            spawned = {e.payload["child"]: e.payload.get("call") for e in reversed(events) if e.type == "agent.spawned"}
            assert below == spawned, name


def test_a_call_that_did_not_wait_ends_before_its_work_which_ends_with_its_turn() -> None:
    turn = {"turn": "m", "call": "c1"}
    events = [
        happened("turn.started", ts=10, message="m"),
        happened("execution.step.started", ts=20, tool="agent_spawn", **turn),
        happened("execution.step", ts=30, kind="tool", tool="agent_spawn", **turn),
        happened("agent.spawned", ts=40, child="ses_kid", **turn),
        happened("turn.ended", ts=90, message="m", outcome="completed"),
        happened("turn.started", ts=50, session="ses_kid", message="k"),
        happened("turn.ended", ts=70, session="ses_kid", message="k", outcome="completed"),
    ]
    found = chrome(spans_in(events), 90)["traceEvents"]
    assert [(each["name"], each["ts"], each["dur"]) for each in found if each.get("cat") == "tool"] == [
        ("agent_spawn", 20_000, 10_000)
    ]
    assert {each["args"]["state"] for each in found if each["ph"] == "X"} == {"completed"}


def test_what_cannot_be_true_is_left_out() -> None:
    used = {"input": 1e300, "output": -3, "reasoning": 4}
    named, times = {"provider": "google", "model": "a\nb"}, {"started_ms": -5, "ended_ms": 2**63 - 1}
    events = [
        happened("turn.started", message="m", model={"provider": 3, "model": ["x"]}, agent={}),
        happened("execution.step", kind="inference", tokens=used, cost=1e308, model=named, **times),
        happened("execution.step", ts=5, kind="tool", tool=None, call=7, duration_ms=-9),
    ]
    found = spans_in(events)
    turn, step, tool = spans_of(parsed(json.dumps(otlp(found, 5))))[1:]
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in (turn, step, tool))
    assert {name: value for name, value in attributes(step).items() if name.startswith("gen_ai.usage")} == {
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    assert (step.name, attributes(step)["gen_ai.provider.name"]) == ("chat a b", "gcp.gemini")
    assert attributes(tool)["gen_ai.tool.name"] == "tool"
    found[0].start, found[0].end = -5, 2**70
    session = spans_of(parsed(json_line(otlp(found, 5))))[0]
    assert session.start_time_unix_nano == 0 and 2**63 - 10**6 <= session.end_time_unix_nano < 2**63
    slices = [each for each in chrome(found, 5)["traceEvents"] if each["ph"] == "X"]
    assert all(0 <= each["ts"] * 1000 <= (each["ts"] + each["dur"]) * 1000 < 2**63 for each in slices)


def test_the_chrome_format_nests_what_runs_inside(home: Path) -> None:
    stream = stream_of(home, "child work")
    [found] = run(home, "export", stream, "--format", "chrome-trace").objects()
    events = {(each["cat"], each["name"]): each for each in found["traceEvents"] if each["ph"] == "X"}
    tool, turn = events["tool", "task"], events["turn", "mock/mock-1"]
    assert tool["args"]["title"] == "child work" and turn["dur"] > 0
    assert found["traceEvents"][0]["args"]["name"]


def test_the_spans_that_end_one_by_one_are_those_of_the_whole_trace() -> None:
    for name in RECORDINGS:
        records = recorded(name)
        story = snapshot(records)
        for stream in {record.event.stream_id for record in records}:
            spans = Timeline(Moment(story, [stream], story.head)).spans()
            ids = {_id(span) for span in spans}
            sent = [each for n in range(len(records)) for each in ended(story, n - 1, n, 1)[0] if each["spanId"] in ids]
            whole = {each["spanId"]: each for each in otlp(spans, 0)["resourceSpans"][0]["scopeSpans"][0]["spans"]}
            parts = {each["spanId"]: each for each in sent}
            assert len(parts) == len(sent), f"{name}: a span was sent twice"
            open_ = {_id(span) for span in spans if span.end is None or span.kind == "session"}
            assert whole.keys() - parts.keys() <= open_, name
            for each in parts.values():
                # A call that a killed OpenCode was in is over; how it went may be told when OpenCode runs again.
                is_whole = all(fact["key"] != "durable_stream.unfinished" for fact in each["attributes"])
                if each["name"] != "session" and is_whole:
                    assert each == whole[each["spanId"]], name
                assert each.keys() == whole[each["spanId"]].keys()


def test_spans_that_end_are_the_same_however_many_are_read_at_once() -> None:
    records = recorded("task_nested")
    story = snapshot(records)
    whole, until = ended(story, -1, len(records) - 1, 1000)
    parts, after = [], -1
    while after < until:
        some, after = ended(story, after, until, 2)
        parts += some
    assert parts == whole and len(whole) > 10 and until == len(records) - 1
