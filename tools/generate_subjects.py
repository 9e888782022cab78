"""Write ``docs/subjects.md`` from the tables in ``bridge/nats``; with ``--check``, fail if the page is stale."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bridge.nats import headers as h
from bridge.nats.headers import fill_headers, message_id
from bridge.nats.jetstream.stream_plan import DAY_S, HOUR_S, StreamDefinition, keeps, wanted
from bridge.nats.l0 import recursion
from bridge.nats.l0.captured import MEANINGS, OUTCOMES
from bridge.nats.l0.context import RecordContext
from bridge.nats.l0.payloads import MAX_BODY, MAX_OBJECT, L0Payload
from bridge.nats.l0.table import FAMILIES, Family
from bridge.nats.mirror.messages import DEFAULT_MAX_PAYLOAD, Mirror, mirrored
from bridge.nats.subjects import (
    CHANNEL,
    COMPONENTS,
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
            "tool_result_card_id": "card_9",
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
            "tool_call_card_id": "card_8",
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
        {"action_id": "act_1", "agent_id": "ui_worker", "tool_name": "approve", "args": {"checkpoint": "per_1"}},
    ),
    "5.11": ("ui", "action_ack", {"action_id": "act_1", "agent_id": "ui_worker", "status": "accepted"}),
}
"""Section → target, suffix and payload of its example."""

HEADERS = (
    (h.TRACEPARENT, "the event's own W3C trace context (version 00), or else one derived from the stream's id"),
    (
        h.TRACE_MADE,
        "`true` if the `traceparent` was derived because the event had no valid one; such events are counted",
    ),
    (
        h.TRACESTATE,
        "passed on unchanged; if the value is malformed, or the trace is not continued, it is dropped and counted",
    ),
    (h.TIMESTAMP, "the time in milliseconds since 1970, UTC; filled in if missing"),
    (h.VERSION, f"the version of the L0 protocol, `{PROTOCOL_VERSION}`; filled in if missing"),
    (h.MESSAGE_TYPE, "the type of the L0 message, such as `agent.step`, or of the record; filled in if missing"),
    (h.SENDER, "the sending agent; filled in if missing"),
    (h.RECURSION_DEPTH, "a whole number of at least 0, never guessed; see [Recursion depth](#recursion-depth)"),
    (f"{h.USER_ID}`, `{h.CHANNEL_ID}`, `{h.CONTEXT_ID}", "optional; passed on unchanged"),
    (
        h.MESSAGE_ID,
        "`{event}` for a record, `{event}:l0` and `{event}:l0:state` for its L0 messages, `{event}:cmd` and "
        "`{event}:wakeup` for a command and its wakeup; "
        "a rebuild of the mirror adds its number: `{event}:2`",
    ),
    (f"{h.LOG}`, `{h.POSITION}", "the id of the home's log, and the record's position in it; also on L0 messages"),
    (h.OFFSET, "the record's offset in its stream"),
    (h.HASH, "the record's hash in the hash chain of its stream"),
    (h.FORM, "the form of the record's body: `whole`, `forgotten`, `pointer` or `stub`"),
    (
        f"{DEAD_SUBJECT}`, `{DEAD_DURABLE}`, `{DEAD_ATTEMPTS}`, `{DEAD_REASON}",
        "only on a dead letter: the original message's subject, the durable consumer that gave up, the number of "
        "attempts, and the reason",
    ),
)

DECISIONS = (
    "Headers contain milliseconds instead of ISO times, so one format fits every header and every possible `ts`.",
    "A generated `traceparent` is derived from ids, so a record has the same trace in every rebuild and home.",
    "An invalid `traceparent` is treated as missing, as W3C requires, and is counted separately.",
    'Sender and receiver always check `CG-Recursion-Depth`, not only "when strictness is required".',
    "A message for `enqueue` without a depth gets its chain's depth; if the chain has none, the message is refused.",
    "A captured session whose parent is unknown has no depth, so its messages have no `CG-Recursion-Depth`.",
    "A suffix may have dots (`internal.delegate`), so an L0 subject has eight or more tokens.",
    "`tool_result` and `stop` have no subject: both go to the agent's inbox, and a wakeup announces them.",
    "A wakeup's `inbox_id` is the id of the command's event, and its `reason` is the command's type.",
    "A `partial` report does not end a call, which still waits for its result.",
    "`__cg_control.after_execution` counts only for tools on an allow-list.",
    "`cg_cmd_v1` is a work queue. The protocol's table of modes says so; its list of streams gives only an age.",
    "`turn.ended` is published both as `task` and as `state`, so the `state` has an id of its own, `{event}:l0:state`.",
    "In a captured session, `turn_epoch` numbers the turns from 1, and a turn's outcome is in `stats.outcome`.",
    "In a record's subject, the stream, log and project are one token each; only dots in the type remain dots.",
    "Messages that cannot be decoded become dead letters and are never acknowledged as handled.",
    'An original payload of the form `{"$sha256": …}` looks like a forgotten one, so verification tries both readings.',
    "A record that exceeds the server's limit even as a `pointer` becomes a `stub`, so no record can stop the mirror.",
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
            *_headers(),
            *_recursion(),
            *_streams(),
            "## Decisions",
            "",
            "The following decisions fill gaps in the text of the L0 protocol, or correct it:",
            "",
            *(f"- {each}" for each in DECISIONS),
            "",
        ]
    )


def _introduction() -> list[str]:
    return [
        "# Subjects on NATS",
        "",
        "Generated by `make docs` from the tables in `bridge/nats/`, which publishers and consumers also use.",
        "",
        *_prose(
            """This page lists the messages that are published on NATS, and their subjects. The *L0 protocol* defines
            messages between agents, tools and user interfaces; its message families are listed below. The *mirror*,
            the part of the sidecar that publishes, sends records (`evt.`), the L0 events of agents, pieces of answers,
            and commands for agents in other homes. Each such command is followed by a *wakeup*, which tells the agent
            that a command is waiting. Commands for agents are kept in a stream of their own, and so are dead
            letters."""
        ),
        "",
        "| subject | what | stream |",
        "|---|---|---|",
        "| `evt.{project}.{log}.{stream}.{type}` | a record of a home's log | `MESHFORGE_EVENTS` |",
        "| `cmd.{project}.{workspace}.{agent}.{type}` | a command for an agent | `MESHFORGE_COMMANDS` |",
        "| `dlq.{durable}.{subject}` | a message that could not be handled | `MESHFORGE_DLQ` |",
        "| `cg.{ver}.{project}.{channel}.evt.{component}.{target}.{suffix}` | an event of the L0 protocol | "
        f"`cg_evt_{PROTOCOL_VERSION}` |",
        "| `cg.{ver}.{project}.{channel}.cmd.{component}.{target}.{suffix}` | a command of the L0 protocol | "
        f"`cg_cmd_{PROTOCOL_VERSION}` |",
        "| `cg.{ver}.{project}.{channel}.str.{component}.{target}.{suffix}` | a piece of an answer, which may be lost "
        "| none |",
        "",
        *_prose(
            f"""In a subject, `ver` is `{PROTOCOL_VERSION}`, `channel` says who may see the message (`{CHANNEL}`), and
            `component` is one of {", ".join(f"`{each}`" for each in COMPONENTS)}; `durable` is the name of the durable
            consumer (the position that the server keeps for a reader) from which the message came. In a pattern for
            subjects, `*` matches one token, and `>` at the end matches one or more tokens. In the names of L0 families
            below, `evt.agent…`, `cmd.…` and `str.…` are short for the full `cg.…` subject."""
        ),
    ]


def _names() -> list[str]:
    names = ("ses_dff2", "agent/oracle", "a.b", "*", "two words", "ü", "\r\n", "")
    return [
        "## Names",
        "",
        *_prose(
            f"""Each name becomes one token of a subject: the name's UTF-8 bytes, with all but `A-Z a-z 0-9 _ - ~`
            written as `%XX`. Dots in a type or a suffix stay dots. Different names have different tokens, and every
            token can be decoded, except a token that would be longer than {MAX_TOKEN} characters. A token that would
            be too long is cut off, and ends in `%~` and 32 hex digits of the name's SHA-256. A subject has at most
            {MAX_SUBJECT} bytes."""
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
            """The body of a record's message is the canonical event, so a consumer can compute the hash chain from the
            bodies of a stream and compare the hashes with `DS-Hash`: hash = sha256(previous ‖ event with its payload
            replaced by `{"$sha256": hex of the canonical payload}`), where `previous` is the hash of the stream's
            previous record as 32 bytes, or zeros for the first record. A record may also be published as messages of
            the L0 protocol (see below); these L0 messages are published before the record itself. A server that accepts
            atomic batches leaves its `Nats-Batch-` headers on the messages, after the headers of Durable Stream.
            Listeners on core NATS may receive the last records of a batch slightly out of order; the stream and
            `DS-Position` have the right order."""
        ),
        *_example(message.subject, message.headers, json.loads(message.body)),
        "| `DS-Form` | body |",
        "|---|---|",
        "| `whole` | the canonical event |",
        "| `forgotten` | the canonical event, in which a digest replaces the forgotten payload, as in the log |",
        "| `pointer` | the record exceeds the server's limit, so a digest replaces the payload, which the log has |",
        "| `stub` | even a `pointer` is too large: id, ts, stream_id, type, and `$sha256` of the canonical event |",
        "",
        f"The server's limit (by default {DEFAULT_MAX_PAYLOAD:,} bytes) applies to the headers and body together.",
        "",
        *_prose(
            f"""A command has a subject such as `{command}`. If that command becomes a dead letter, the dead letter
            has the subject `{dead_letter_subject(consumer_name("oracle"), str(command))}`."""
        ),
        "| record | in the L0 protocol |",
        "|---|---|",
        *(
            f"| `{type_}` | {', '.join(f'`evt.agent.{{session}}.{suffix}`' for suffix in suffixes)} |"
            for type_, suffixes in MEANINGS.items()
        ),
        "| `message.part.delta` (several joined; not a record) | `str.agent.{session}.chunk` |",
        "",
        "The turn's outcome determines the task's `status`: "
        + ", ".join(f"{k} → `{v}`" for k, v in OUTCOMES.items())
        + ".",
        "",
    ]


def _families() -> list[str]:
    lines = [
        "## Families of the L0 protocol",
        "",
        *_prose(
            f"""The body of an L0 message is canonical JSON of at most {MAX_BODY // 1024} KiB; a field that is an
            object has at most {MAX_OBJECT // 1024} KiB. Fields that are not listed here are kept when a message is
            decoded and encoded again. In the tables, required fields are **bold**."""
        ),
    ]
    for family in FAMILIES:
        lines += _family(family)
    return lines


def _family(family: Family) -> list[str]:
    target, suffix, fields = EXAMPLES[family.section]
    payload = family.model.parse(fields)
    lines = [f"### {family.section} `{family.short}`: {family.model.what()}", ""]
    subject = None
    if family.category != "inbox":
        subject = str(L0Subject(PROJECT, family.category, family.component, target, suffix))
    stream = keeps(wanted(), subject) if subject is not None else None
    kept = f"Kept in the stream `{stream.name}`." if stream is not None else "Not kept in a stream."
    lines += [f"{family.route[0].upper()}{family.route[1:]}. {kept} {family.note}".rstrip(), ""]
    lines += ["| field | type |", "|---|---|", *_fields(family.model)]
    if family.model.FORBIDDEN:
        lines += [f"| ~~{name}~~ | never: {why} |" for name, why in family.model.FORBIDDEN.items()]
    lines.append("")
    headers: dict[str, str] = {}
    if subject is not None and family.category != "str":
        headers = fill_headers(
            {h.TRACEPARENT: traceparent(SESSION, SESSION), h.RECURSION_DEPTH: "0"},
            origin=SESSION,
            timestamp_ms=1_700_000_000_000,
            message_type=f"{family.component}.{suffix}",
            sender="build",
            message_id=message_id(_EVENT, part="l0" if family.category == "evt" else ""),
        ).headers
    return lines + _example(subject, headers, payload.fields())


def _fields(model: type[L0Payload]) -> list[str]:
    schema = model.model_json_schema()
    required = set(schema.get("required", ()))
    return [
        f"| {f'**{name}**' if name in required else name} | {_type(field)} |"
        for name, field in schema["properties"].items()
    ]


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"] if each.get("type") != "null")
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if field["type"] == "string":
        return f"text, {field.get('minLength', 0)} to {field['maxLength']} characters"
    return "whole number" if field["type"] == "integer" else str(field["type"])


def _example(subject: str | None, headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    shown = [subject] if subject is not None else []
    shown += [f"{name}: {value}" for name, value in sorted(headers.items())]
    shown += [json.dumps(body, ensure_ascii=False, sort_keys=True, separators=(",", ":"))]
    return ["```", *shown, "```", ""]


def _headers() -> list[str]:
    return [
        "## Headers",
        "",
        *_prose(
            f"""The name of a header is a letter followed by letters, digits, `-` and `_`. The value of a header is
            printable ASCII, at most {MAX_VALUE} characters. A message has at most {MAX_HEADERS} headers. In free text,
            anything but printable ASCII is written as `%XX`, so no text can end a header or begin another header. `str`
            messages have no headers. `CG-*` keys in a payload are accepted; `doctor` reports how many commands had
            such keys."""
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
    modes = f" (mode {', '.join(f'`{mode}`' for mode in sorted(recursion.MODES))} only)"
    return [
        "## Recursion depth",
        "",
        *_prose(
            f"""The *depth* of a task says how many spawns led to it: a task that a user starts has depth 0, and a
            spawned task is one level deeper than its spawner. Only the spawner computes the new depth. Both the sender
            and the receiver of a message verify the depth. If a message has a depth in its header, and a depth is also
            recorded for its `correlation_id`, the two depths must be equal. A depth at or above the limit
            ({recursion.MAX_DEPTH} by default) ends the chain. A `task` message then reports the end of the chain:
            `failed` with `{recursion.EXCEEDED}`. A message that violates the rules below ends the chain as `failed`
            with `{recursion.VIOLATION}`."""
        ),
        "| operation | depth in the header | recorded depth |",
        "|---|---|---|",
        *(
            f"| `{name}`{modes if name == 'enqueue' else ''} | {header[rule.header]} | {recorded[rule.recorded]} |"
            for name, rule in recursion.RULES.items()
        ),
        "",
    ]


def _streams() -> list[str]:
    return [
        "## Streams",
        "",
        *_prose(
            """All streams use file storage. The sidecar creates a missing stream. If the settings of a stream differ
            from the table below, the sidecar corrects these settings and keeps the stream's other settings. The sidecar
            refuses a stream that it cannot correct, gives the reasons, and changes nothing. It cannot correct a stream
            that has other storage, that is sealed, that is a mirror, that has overlapping subjects, or that is a work
            queue where it should not be (or the reverse)."""
        ),
        "| stream | subjects | retention | age | what |",
        "|---|---|---|---|---|",
        *(_stream(each) for each in wanted()),
        "",
        "| | storage | who gets a message |",
        "|---|---|---|",
        "| `cmd` | work queue | one worker; workers that use the same durable consumer share the messages |",
        "| `evt` | stream | every durable consumer, each at its own position; readers that use the same durable "
        "consumer share the messages |",
        "| `str` | not stored | current subscribers only |",
        "",
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
