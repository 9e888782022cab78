"""A session's spans for other tools: as an OTLP/JSON request, and in the Chrome trace event format. Pure.

OTLP names follow the OpenTelemetry conventions for generative AI, and have no content of prompts, answers or calls.
The Chrome format is for the own screen, so its spans have titles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from bridge.opencode.capture.tokens import MOST_TOKENS, add_tokens, can_be
from sidecar.read.fields import as_mapping, as_text
from sidecar.read.past.spans import Span, SpanKind
from sidecar.read.wording import one_line
from sidecar.version import VERSION
from streams.lineage import span_id, trace_id
from streams.trace import parse_traceparent

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""Version 0.1.0 of the semantic conventions for generative AI; the names are in ``_ATTRIBUTES``."""

INTERNAL, CLIENT = 1, 3
ERROR: Final = 2
"""The numbers of OTLP's span kinds, and of the status of a span that failed."""

_OPERATIONS: Final[Mapping[SpanKind, str]] = {"turn": "invoke_agent", "model": "chat", "tool": "execute_tool"}

_PROVIDERS: Final = {
    "amazon-bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "google-vertex-anthropic": "gcp.vertex_ai",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "moonshotai-cn": "moonshot_ai",
    "xai": "x_ai",
}
"""OpenCode's ids of providers for which the conventions have another name."""

_LAST_MS: Final = (2**63 - 1) // 1_000_000
"""The last moment, in ms since 1970, that fits in 64 bits of nanoseconds: Jaeger and Perfetto keep times that way."""

Value = str | int | float | list[str] | None


def _model(span: Span) -> Value:
    return as_text(as_mapping(span.facts.get("model")).get("model"))


def _provider(span: Span) -> Value:
    name = as_text(as_mapping(span.facts.get("model")).get("provider"))
    return _PROVIDERS.get(name, name)


def _tokens(*names: str) -> Callable[[Span], Value]:
    """The sum of counts. OpenCode counts cached input and reasoning apart; the conventions count them in, too."""

    def count(span: Span) -> Value:
        counts: dict[str, int | float] = {}
        add_tokens(counts, span.facts.get("tokens"))
        known = [counts[name] for name in names if name in counts]
        return int(sum(known)) if known and can_be(sum(known), MOST_TOKENS) else None

    return count


def _fact(name: str) -> Callable[[Span], Value]:
    def fact(span: Span) -> Value:
        value = span.facts.get(name)
        return value if isinstance(value, str | int | float) else None

    return fact


_ATTRIBUTES: Final[Sequence[tuple[str, Sequence[SpanKind], Callable[[Span], Value]]]] = (
    ("gen_ai.conversation.id", ("session", "turn", "model", "tool", "wait", "pause"), lambda span: span.session),
    ("gen_ai.operation.name", ("turn", "model", "tool"), lambda span: _OPERATIONS[span.kind]),
    ("gen_ai.agent.name", ("turn",), _fact("agent")),
    ("gen_ai.provider.name", ("model",), _provider),
    ("gen_ai.request.model", ("model",), _model),
    ("gen_ai.response.finish_reasons", ("model",), lambda span: [as_text(span.facts["finish"])]),
    ("gen_ai.usage.input_tokens", ("model",), _tokens("input", "cache_read", "cache_write")),
    ("gen_ai.usage.cache_read.input_tokens", ("model",), _tokens("cache_read")),
    ("gen_ai.usage.cache_write.input_tokens", ("model",), _tokens("cache_write")),
    ("gen_ai.usage.output_tokens", ("model",), _tokens("output", "reasoning")),
    ("gen_ai.usage.reasoning.output_tokens", ("model",), _tokens("reasoning")),
    ("gen_ai.tool.name", ("tool",), lambda span: span.name),
    ("gen_ai.tool.type", ("tool",), lambda span: "function"),
    ("gen_ai.tool.call.id", ("tool",), _fact("call")),
    ("error.type", ("turn", "model", "tool"), lambda span: "_OTHER" if span.state == "error" else None),
    ("durable_stream.event.id", ("turn", "model", "tool", "wait", "pause"), lambda span: span.event),
    ("durable_stream.exit_code", ("tool",), _fact("exit")),
    ("durable_stream.outcome", ("turn",), _fact("outcome")),
    ("durable_stream.cost", ("model",), _fact("cost")),
    ("durable_stream.reply", ("wait",), _fact("reply")),
    (
        "durable_stream.unfinished",
        ("session", "turn", "model", "tool", "wait", "pause"),
        lambda span: _unfinished(span),
    ),
)
"""The name of each attribute, the spans that have it, and its value; empty values are left out. ``durable_stream.*`` is
what the conventions have no name for; the cost is in US dollars. A turn has no provider and no model, because each of
its calls may have another."""


def _unfinished(span: Span) -> Value:
    return "true" if span.end is None or span.state == "over" else None


def _name(span: Span) -> str:
    match span.kind:
        case "turn":
            what: Value = as_text(span.facts.get("agent"))
        case "model":
            what = _model(span)
        case "tool":
            what = span.name
        case _:
            return span.kind
    return one_line(f"{_OPERATIONS[span.kind]} {what}")


def otlp(spans: Sequence[Span], now: int) -> dict[str, Any]:
    """An ``ExportTraceServiceRequest`` as OTLP/JSON. A span that has not ended ends at ``now``, in ms since 1970.

    Ids are derived from the log, so the same session gives the same trace.
    """
    above = _parents(spans)
    sessions = {span.session: span for span in spans if span.kind == "session"}
    return otlp_request([otlp_span(span, above.get(span.id), sessions[span.session], now) for span in spans])


def otlp_request(spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A request with spans of ``otlp_span``."""
    scope = {"name": "durable-stream", "version": VERSION}
    resource = {"attributes": [_attribute("service.name", "opencode")]}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans, "schemaUrl": SCHEMA_URL}]}
        ]
    }


def otlp_span(span: Span, parent: Span | None, session: Span, now: int) -> dict[str, Any]:
    """A span of a session in OTLP/JSON; ``parent`` is the span around it. See ``otlp``."""
    attributes = [(name, read(span)) for name, kinds, read in _ATTRIBUTES if span.kind in kinds]
    if span.kind == "tool" and parent is not None:
        attributes.append(("gen_ai.agent.name", _fact("agent")(parent)))
    found: dict[str, Any] = {
        "traceId": _trace(session),
        "spanId": _id(span),
        "name": _name(span),
        "kind": CLIENT if span.kind == "model" else INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(max(now if span.end is None else span.end, span.start)),
        "attributes": [_attribute(name, value) for name, value in attributes if value not in (None, "", [""])],
        "status": {"code": ERROR} if span.state == "error" else {},
    }
    if parent is not None:
        found["parentSpanId"] = _id(parent)
    return found


def _trace(session: Span) -> str:
    context = parse_traceparent(session.trace)
    return context.trace_id if context is not None else trace_id(session.session)


def _id(span: Span) -> str:
    """A session and a turn have the spans that their events name in their ``traceparent``."""
    context = parse_traceparent(span.trace) if span.kind == "turn" else None
    return context.span_id if context is not None else span_id(span.session if span.kind == "session" else span.id)


def _attribute(name: str, value: Value) -> dict[str, Any]:
    if isinstance(value, list):
        return {"key": name, "value": {"arrayValue": {"values": [{"stringValue": each} for each in value]}}}
    if isinstance(value, bool | str):
        return {"key": name, "value": {"stringValue": str(value)}}
    kind = "intValue" if isinstance(value, int) else "doubleValue"
    return {"key": name, "value": {kind: str(value) if kind == "intValue" else value}}


def _nanoseconds(ms: int) -> str:
    return str(_possible(ms) * 1_000_000)


def _possible(ms: int) -> int:
    """A time that the formats can hold: other programs may have recorded any number."""
    return min(max(ms, 0), _LAST_MS)


def _parents(spans: Sequence[Span]) -> dict[str, Span]:
    """The span around each span, by its id; a session may name the session that started it."""
    known = {span.id: span for span in spans}
    return {span.id: parent for span in spans if (parent := parent_of(span, known)) is not None}


def parent_of(span: Span, known: Mapping[str, Span]) -> Span | None:
    """The span around a span, among those that are known by their ids."""
    parent = known.get(span.parent) or known.get(f"session:{span.parent}")
    return parent if parent is not span else None


def chrome(spans: Sequence[Span], now: int) -> dict[str, Any]:
    """The spans in the Chrome trace event format, which ui.perfetto.dev opens. A span lies on its parent; what runs
    beside another span has a row of its own."""
    above = _parents(spans)
    rows: list[list[Span]] = []
    events: list[dict[str, Any]] = []
    ends = {span.id: max(now if span.end is None else span.end, span.start) for span in spans}
    for span in sorted(spans, key=lambda span: (span.start, _depth(span, above))):
        row = _row(span, above.get(span.id), rows, ends)
        rows[row].append(span)
        events.append(
            {
                "name": one_line(span.name) or span.kind,
                "cat": span.kind,
                "ph": "X",
                "ts": _possible(span.start) * 1000,
                "dur": (_possible(ends[span.id]) - _possible(span.start)) * 1000,
                "pid": 1,
                "tid": row + 1,
                "args": dict(_shown(span)),
            }
        )
    title = next((span.name for span in spans if span.kind == "session"), "")
    about = {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": one_line(title) or "session"}}
    return {"displayTimeUnit": "ms", "traceEvents": [about, *events]}


def _row(span: Span, parent: Span | None, rows: list[list[Span]], ends: Mapping[str, int]) -> int:
    """The first row whose innermost span at that time is the parent, else the first that is empty at that time."""
    for row in rows:
        while row and ends[row[-1].id] <= span.start and row[-1] is not parent:
            row.pop()
    fitting = (n for n, row in enumerate(rows) if row and row[-1] is parent and ends[parent.id] >= ends[span.id])
    empty = (n for n, row in enumerate(rows) if not row)
    if (found := next(fitting, next(empty, None))) is None:
        rows.append([])
        return len(rows) - 1
    return found


def _depth(span: Span, above: Mapping[str, Span]) -> int:
    seen = {span.id}
    while (parent := above.get(span.id)) is not None and parent.id not in seen:
        seen.add(parent.id)
        span = parent
    return len(seen)


def _shown(span: Span) -> Iterator[tuple[str, Any]]:
    yield "state", span.state
    for name in ("title", "agent", "outcome", "error", "exit", "reply", "by", "cost", "tokens", "model"):
        if value := span.facts.get(name):
            yield name, value
    if span.event:
        yield "event", span.event
