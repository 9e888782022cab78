"""Write ``docs/subjects.md`` from the tables in ``bridge/nats``; with ``--check``, fail if the page is stale."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).parents[1]))

from bridge.nats import headers as h
from bridge.nats.jetstream.stream_plan import DAY_S, HOUR_S, StreamDefinition, wanted
from bridge.nats.l0 import recursion
from bridge.nats.l0.calls import REPORT, STOP, Worth, card_id
from bridge.nats.l0.captured import MEANINGS, OUTCOMES
from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import MAX_BODY, MAX_OBJECT, L0Payload
from bridge.nats.mirror.messages import DEFAULT_MAX_PAYLOAD, Mirror, mirrored
from bridge.nats.subjects import (
    CHANNEL,
    COMPONENTS,
    EVENTS,
    MAX_TOKEN,
    PROTOCOL_VERSION,
    CommandSubject,
    L0Subject,
    consumer_name,
    escape,
)
from streams.bus.contract import DEAD_ATTEMPTS, DEAD_DURABLE, DEAD_REASON, DEAD_SUBJECT
from streams.bus.headers import MAX_HEADERS, MAX_VALUE
from streams.bus.subjects import MAX_SUBJECT, dead_letter_subject
from streams.event import StreamEvent
from streams.lineage import traceparent
from streams.store import Record
from tools.l0_messages import FAMILIES, Family

PAGE = Path(__file__).parents[1] / "docs" / "subjects.md"

_EVENT = "01HF7YAT00ZMZYPF4JA2VSEMMB"
PROJECT, SESSION, LOG = "d4a1fe59", "ses_dff2", "01HF7YAT0LOG"

EXAMPLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "5.1": ("oracle", "wakeup", {"agent_id": "oracle", "reason": "tool_result"}),
    "5.2": (
        "",
        "tool_result",
        {
            "tool_call_id": "call_1",
            "agent_turn_id": "msg_1",
            "turn_epoch": 3,
            "agent_id": "oracle",
            "after_execution": "suspend",
            "status": "success",
            "tool_result_card_id": "MESHFORGE_EVENTS:9",
        },
    ),
    "5.3": ("", "stop", {"agent_id": "oracle", "agent_turn_id": "msg_1", "turn_epoch": 3, "reason": "cancelled"}),
    "5.4": (
        "web",
        "search",
        {
            "tool_call_id": "call_1",
            "agent_turn_id": "msg_1",
            "turn_epoch": 3,
            "agent_id": "oracle",
            "tool_name": "search",
            "tool_call_card_id": "MESHFORGE_EVENTS:8",
        },
    ),
    "5.5": (
        "pmo",
        "internal.delegate",
        {"tool_call_id": "call_2", "agent_turn_id": "msg_1", "turn_epoch": 3, "agent_id": "oracle"},
    ),
    "5.6": (
        SESSION,
        "step",
        {
            "agent_turn_id": "msg_1",
            "step_id": "prt_1",
            "phase": "completed",
            "metadata": {"kind": "tool", "tool": "bash", "timing": {"duration_ms": 412}},
        },
    ),
    "5.7": (
        SESSION,
        "task",
        {
            "agent_turn_id": "msg_1",
            "status": "failed",
            "error_code": recursion.EXCEEDED,
            "error": "enqueue: depth 20 is not below the limit of 20",
        },
    ),
    "5.8": (
        SESSION,
        "chunk",
        {"agent_turn_id": "msg_1", "step_id": "prt_2", "chunk_type": "text", "content": "Hello", "index": 0},
    ),
    "5.9": (
        SESSION,
        "state",
        {
            "agent_id": SESSION,
            "agent_turn_id": "msg_1",
            "status": "running",
            "turn_epoch": 1,
            "updated_at": 1_700_000_000_000,
        },
    ),
    "5.10": (
        "ui",
        "action",
        {
            "action_id": "act_1",
            "agent_id": "ui_worker",
            "tool_name": "answer",
            "args": {"checkpoint": "chk_1", "answer": ["once"]},
        },
    ),
    "5.11": ("ui", "action_ack", {"action_id": "act_1", "agent_id": "ui_worker", "status": "accepted"}),
}
"""Section → target, suffix and payload of its example."""

HEADERS = (
    (h.TRACEPARENT, "the event's own W3C trace context (version 00), or else one derived from the stream's id"),
    (h.TRACE_MADE, "`true` if the event had no valid `traceparent`; such events are counted"),
    (h.TRACESTATE, "passed on unchanged; dropped and counted if it is malformed or the trace is not continued"),
    (h.TIMESTAMP, "milliseconds since 1970, UTC; filled in if missing"),
    (h.VERSION, f"the version of the L0 protocol, `{PROTOCOL_VERSION}`; filled in if missing"),
    (h.MESSAGE_TYPE, "the type of the L0 message, such as `agent.step`, or of the record; filled in if missing"),
    (h.SENDER, "the sending agent; filled in if missing"),
    (h.RECURSION_DEPTH, "a whole number of at least 0, never guessed; see [Recursion depth](#recursion-depth)"),
    (f"{h.USER_ID}`, `{h.CHANNEL_ID}`, `{h.CONTEXT_ID}", "optional; passed on unchanged along the whole chain"),
    (h.MODE, f"on a command: the mode of `enqueue`, `{recursion.CALL}` if missing; others are a violation"),
    (
        h.MESSAGE_ID,
        "`{event}` for a record, `{event}:l0` and `{event}:l0:state` for its L0 messages, `{event}:cmd` and "
        "`{event}:wakeup` for a command and its wakeup; a rebuild of the mirror adds its number: `{event}:2`",
    ),
    (f"{h.LOG}`, `{h.POSITION}", "the id of the home's log, and the record's position in it; also on L0 messages"),
    (f"{h.OFFSET}`, `{h.HASH}", "the record's offset in its stream, and its hash in the stream's hash chain"),
    (h.FORM, "the form of a record's body, see [above](#records-commands-dead-letters)"),
    (
        f"{DEAD_SUBJECT}`, `{DEAD_DURABLE}`, `{DEAD_ATTEMPTS}`, `{DEAD_REASON}",
        "on a dead letter: the message's subject, the consumer that gave up, the number of attempts, the reason",
    ),
)

DECISIONS = (
    "A message for `enqueue` without a depth gets its chain's depth; if the chain has none, it is refused. A captured "
    "session whose parent is unknown has no depth.",
    "A command without a valid `traceparent` gets a span in the trace that is recorded for its `correlation_id`.",
    "A wakeup's `inbox_id` is the id of the command's event, and its `reason` is the command's type.",
    "In a captured session, `turn_epoch` numbers the turns from 1, and a turn's outcome is in `stats.outcome`.",
    'A payload that is really of the form `{"$sha256": …}` looks forgotten, so verification tries both readings.',
)


def _prose(text: str) -> list[str]:
    """A wrapped paragraph, followed by an empty line."""
    lines = textwrap.wrap(" ".join(text.split()), width=118, break_long_words=False, break_on_hyphens=False)
    return [*lines, ""]


def page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            *_introduction(),
            *_names(),
            *_records(),
            *_families(),
            *_agent(),
            *_headers(),
            *_recursion(),
            *_streams(),
            "## Decisions",
            "",
            "These fill gaps in the text of the L0 protocol, or correct it:",
            "",
            *(f"- {each}" for each in DECISIONS),
            "",
        ]
    )


def _introduction() -> list[str]:
    l0 = "cg.{ver}.{project}.{channel}"
    return [
        "# Subjects on NATS",
        "",
        "Generated by `make docs` from the tables in `bridge/nats/`, which publishers and consumers also use.",
        "",
        *_prose(
            """The *mirror* publishes each record of the log, and for some records also messages of the *L0 protocol*,
            which agents, tools and user interfaces share."""
        ),
        "| subject | what | stream |",
        "|---|---|---|",
        "| `evt.{project}.{log}.{stream}.{type}` | a record | `MESHFORGE_EVENTS` |",
        "| `cmd.{project}.{workspace}.{agent}.{type}` | a command for an agent; a wakeup (5.1) follows "
        "| `MESHFORGE_COMMANDS` |",
        "| `dlq.{durable}.{subject}` | a *dead letter*: a message that could not be handled | `MESHFORGE_DLQ` |",
        f"| `{l0}.evt.{{component}}.{{target}}.{{suffix}}` | an L0 event | `cg_evt_{PROTOCOL_VERSION}` |",
        f"| `{l0}.cmd.{{component}}.{{target}}.{{suffix}}` | an L0 command | `cg_cmd_{PROTOCOL_VERSION}` |",
        f"| `{l0}.str.{{component}}.{{target}}.{{suffix}}` | a piece of an answer, which may be lost | none |",
        "",
        *_prose(
            f"""`ver` is `{PROTOCOL_VERSION}`. `channel` says who may see the message (`{CHANNEL}`). `component` is one
            of {", ".join(f"`{each}`" for each in COMPONENTS)}. `durable` names the durable consumer: the position that
            the server keeps for a reader."""
        ),
    ]


def _names() -> list[str]:
    names = ("agent/oracle", "a.b", "two words", "")
    return [
        "## Names",
        "",
        *_prose(
            f"""A name becomes one token: its UTF-8 bytes, with all but `A-Z a-z 0-9 _ - ~` written as `%XX`. Only dots
            in a type or a suffix stay dots. A token longer than {MAX_TOKEN} characters is cut, and ends in `%~` and 32
            hex digits of the name's SHA-256. A subject has at most {MAX_SUBJECT} bytes."""
        ),
        "| name | token |",
        "|---|---|",
        *(f"| `{json.dumps(name, ensure_ascii=False)}` | `{escape(name)}` |" for name in names),
        "",
        f"An agent's durable consumer is `{{agent}}_consumer`: `{consumer_name('oracle')}`, `{consumer_name('a.b')}`.",
        "",
    ]


def _records() -> list[str]:
    record = _example_record()
    message = mirrored(record, RecordContext(PROJECT, SESSION, 0, 1), Mirror(LOG)).messages[-1]
    command = CommandSubject(PROJECT, "main", "oracle", "task.run")
    return [
        "## Records, commands, dead letters",
        "",
        *_prose(
            """The body of a record's message is the canonical event, and `DS-Hash` is the record's `hash`, which
            [protocol.md](protocol.md#the-log) defines: a reader can check the hash chain from the messages alone. A
            record's L0 messages come before the record. On core NATS, the last records of a batch may come out of
            order; the stream and `DS-Position` have the right order."""
        ),
        *_example(message.subject, message.headers, json.loads(message.body)),
        "| `DS-Form` | body |",
        "|---|---|",
        "| `whole` | the canonical event |",
        "| `forgotten` | the same, with a digest instead of the forgotten payload, as in the log |",
        "| `pointer` | the same, with a digest instead of a payload that exceeds the server's limit |",
        "| `stub` | even a `pointer` is too large: id, ts, stream_id, type, and `$sha256` of the canonical event |",
        "",
        f"The server's limit (by default {DEFAULT_MAX_PAYLOAD:,} bytes) applies to headers and body together.",
        "",
        *_prose(
            f"""A command such as `{command}` becomes, as a dead letter,
            `{dead_letter_subject(consumer_name("oracle"), str(command))}`."""
        ),
        "| record | in the L0 protocol |",
        "|---|---|",
        *(
            f"| `{type_}` | {', '.join(f'`evt.agent.{{session}}.{suffix}`' for suffix in suffixes)} |"
            for type_, suffixes in MEANINGS.items()
        ),
        "| `message.part.delta` (several joined; not a record) | `str.agent.{session}.chunk` |",
        "",
        "The turn's outcome gives the task's `status`: " + ", ".join(f"{k} → `{v}`" for k, v in OUTCOMES.items()) + ".",
        "",
    ]


def _families() -> list[str]:
    return [
        "## Families of the L0 protocol",
        "",
        *_prose(
            f"""A body is canonical JSON of at most {MAX_BODY // 1024} KiB. Fields that are not listed are kept.
            Required fields are **bold**. {_PLAIN[0].upper()}{_PLAIN[1:]}, unless the list says otherwise; an
            object has at most {MAX_OBJECT // 1024} KiB. `evt.agent…`, `cmd.…` and `str.…` are short for the
            full `cg.…` subject. An inbox message is a command `inbox.…`; a wakeup announces it. The headers are
            those [below](#headers)."""
        ),
        *(line for family in FAMILIES for line in _family(family)),
    ]


def _family(family: Family) -> list[str]:
    target, suffix, fields = EXAMPLES[family.section]
    payload = family.model.parse(fields)
    lines = [f"### {family.section} `{family.short}`: {family.model.what()}", ""]
    subject = None
    if not family.short.startswith("inbox"):
        category, component, *_ = family.short.split(".")
        subject = str(L0Subject(PROJECT, category, component, target, suffix))  # type: ignore[arg-type]
    before = [each.section for each in FAMILIES if each.model is family.model]
    told = f"The fields are those of {before[0]}." if before[0] != family.section else _fields(family.model)
    lines += _prose(f"{family.route[0].upper()}{family.route[1:]}. {family.note}") + _prose(told)
    return lines + _example(subject, {}, payload.fields())


_PLAIN = "a field is text of 1 to 512 characters"


def _fields(model: type[L0Payload]) -> str:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    fields = [
        f"{f'**{name}**' if name in required else name}{_type(field)}" for name, field in schema["properties"].items()
    ]
    never = [f"Never `{name}`: {why}." for name, why in model.FORBIDDEN.items()]
    return " ".join([f"Fields: {', '.join(fields)}.", *never])


def _type(field: dict[str, Any]) -> str:
    """What differs from a plain field: `` (an object)``."""
    if "anyOf" in field:
        kinds = [_type(each) for each in field["anyOf"] if each.get("type") != "null"]
        return next((kind for kind in kinds if kind), "").replace(")", " or text)" if "" in kinds else ")")
    if "enum" in field:
        return f" ({' / '.join(f'`{each}`' for each in field['enum'])})"
    if field["type"] == "string":
        plain = field.get("minLength", 0) == 1 and field["maxLength"] == 512
        return "" if plain else f" (up to {field['maxLength']})"
    return " (a whole number)" if field["type"] == "integer" else f" (an {field['type']})"


def _example(subject: str | None, headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    shown = [subject] if subject is not None else []
    shown += [f"{name}: {value}" for name, value in sorted(headers.items())]
    shown += [json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))]
    return ["```", *shown, "```", ""]


REFUSALS: dict[str, str] = {
    "late": "the call has ended: another report was first, its time is over, or its turn was stopped",
    "unknown-call": "the agent has no call of this `tool_call_id` in this turn",
    "old-epoch": "`turn_epoch` is not the one of the call",
    "protocol_violation": "`CG-Recursion-Depth` is missing, or is not the depth of the call",
    "no-card": "`tool_result_card_id` names no card, or the card is not JSON; the call goes on waiting",
}


def _agent() -> list[str]:
    assert {"accepted", *REFUSALS} == set(get_args(Worth))
    return [
        "## An agent in a program of its own",
        "",
        *_prose(
            f"""A **card** is a message in `{EVENTS}`. Other messages name it, for example `{card_id(17)}`; 17 is its
            sequence in the stream. The sender publishes it on `evt.{{project}}.{{name}}.{{agent}}.tool.call` or
            `….tool.result`, with any name of its own. The card of a call is JSON with the arguments in `payload.args`,
            the card of a result JSON with the field `result`, also if the call failed."""
        ),
        *_prose(
            f"""The **inbox** of an agent is a part of its commands: `cmd.{{project}}.{{workspace}}.{{agent}}.{REPORT}`
            and `….{STOP}`; the default workspace is `_`. **The body of a command** that a home sends is the whole event
            (5.2 and 5.3: only the fields), with the content in `payload`. A home takes the same, `{{"payload": {{…}}}}`
            with any of `type`, `correlation_id`, `idempotency_key`, `actor`, or the bare payload. A command's key is
            `idempotency_key`, or else `Nats-Msg-Id`. **The turn** has the command's `correlation_id` as
            `agent_turn_id`, or any new id. **The epoch** grows when another home takes the agent's name: a program that
            is alone says 0, and a report or a stop repeats the call's. **The depth** of what a command leads to, calls
            included, is one more than the command's; a report has the depth of its call."""
        ),
        *_prose(
            """A tool takes calls from `cg_cmd_v1` and reports to the inbox of `agent_id`, with the call's
            `traceparent`, `tracestate` and `CG-Recursion-Depth`. A report that lacks a field becomes a dead letter. One
            that does not fit is recorded as `tool.refused`, which the mirror publishes on
            `evt.{project}.{log}.agent%2F{agent}%2Feffects.tool.refused` with `error_code` in the payload:"""
        ),
        "| `error_code` | the report is refused because |",
        "|---|---|",
        *(f"| `{code}` | {why} |" for code, why in REFUSALS.items()),
        "",
        *_prose("[`examples/foreign_agent.py`](../examples/foreign_agent.py) is such an agent, of a hundred lines."),
    ]


def _headers() -> list[str]:
    return [
        "## Headers",
        "",
        *_prose(
            f"""A name is a letter, followed by letters, digits, `-` and `_`. A value is printable ASCII of at most
            {MAX_VALUE} characters; anything else is written as `%XX`. A message has at most {MAX_HEADERS} headers;
            `str` messages have none."""
        ),
        "| header | what |",
        "|---|---|",
        *(f"| `{name}` | {what} |" for name, what in HEADERS),
        "",
    ]


def _recursion() -> list[str]:
    header = {
        "must": "set by the sender",
        "may": "set by the sender, or copied from the recorded depth",
        "zero": "absent or 0",
    }
    recorded = {
        "must": "already recorded",
        "may": "already recorded, or copied from the header",
        "zero": "absent or 0",
    }
    modes = f" (mode `{recursion.CALL}` only)"
    return [
        "## Recursion depth",
        "",
        *_prose(
            f"""The *depth* of a task says how many spawns led to it; a task that a user starts has depth 0. Only the
            spawner counts one up; sender and receiver both check. If a depth is also recorded for the message's
            `correlation_id`, the two must be equal. A depth at or above the limit ({recursion.MAX_DEPTH} by default)
            ends the chain with a `task` of status `failed`, code `{recursion.EXCEEDED}`; a message that violates the
            rules below ends it with `{recursion.VIOLATION}`."""
        ),
        "| operation | depth in the header | recorded depth |",
        "|---|---|---|",
        *(
            f"| `{name}`{modes if name == 'enqueue' else ''} | {header[need]} | {recorded[need]} |"
            for name, need in recursion.RULES.items()
        ),
        "",
    ]


def _streams() -> list[str]:
    return [
        "## Streams",
        "",
        *_prose(
            """The sidecar creates missing streams, with file storage, and corrects settings that differ from the table.
            It refuses a stream of another kind, or one whose subjects overlap."""
        ),
        "| stream | subjects | retention | age | what |",
        "|---|---|---|---|---|",
        *(_stream(each) for each in wanted()),
        "",
        *_prose(
            """Workers with the same durable consumer share the messages of a work queue. Every durable consumer gets
            every event."""
        ),
    ]


def _stream(each: StreamDefinition) -> str:
    age = f"{each.max_age_s // DAY_S} days" if each.max_age_s > DAY_S else f"{each.max_age_s // HOUR_S} hours"
    subjects = ", ".join(f"`{subject}`" for subject in each.subjects)
    words = "work queue" if each.retention == "workqueue" else each.retention
    return f"| `{each.name}` | {subjects} | {words} | {age if each.max_age_s else 'no limit'} | {each.description} |"


def _example_record() -> Record:
    event = StreamEvent.parse(
        {
            "id": _EVENT,
            "ts": 1_700_000_000_000,
            "type": "execution.step",
            "stream_id": SESSION,
            "idempotency_key": f"execution.step:{SESSION}:prt_1",
            "causation_id": "01HF7YAT0026TB0Y6FS7N8W1QK",
            "correlation_id": "msg_1",
            "actor": "build",
            "source": {"agent": "build", "adapter": "opencode"},
            "traceparent": traceparent(SESSION, SESSION),
            "payload": {"session": SESSION, "part": "prt_1", "turn": "msg_1", "kind": "tool", "tool": "bash"},
        }
    )
    return Record(event, 4, 17, "5f" * 32)


def main() -> int:
    """Write the page, or compare it with ``--check``."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is stale: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
