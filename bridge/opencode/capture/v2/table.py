"""The table that says what each event of an OpenCode 2 service is recorded as.

The translator dispatches on this table, and ``docs/events.md`` is generated from it, so code and documentation cannot
disagree. Measured on OpenCode 2.0.15.
"""

from __future__ import annotations

from bridge.opencode.capture.table import Rule
from streams.lineage import MOVED, STEP_STARTED

RULES: tuple[Rule, ...] = (
    Rule(
        "created",
        "event",
        "nothing",
        ("lifecycle.session.created", "agent.spawned"),
        "the session; the child session",
        "As in OpenCode 1.",
    ),
    Rule(
        "forked",
        "event",
        "nothing",
        ("lifecycle.session.created",),
        "the session",
        "`fork` names its origin, whose messages are not recorded again.",
    ),
    Rule(
        "the first event of a session from another service process",
        "event",
        "",
        ("lifecycle.session.resumed",),
        "service process",
    ),
    Rule(
        "deleted",
        "event",
        "deleted",
        ("lifecycle.session.ended",),
        "the session",
        "As in OpenCode 1.",
    ),
    Rule(
        "inbox.enqueued",
        "event",
        "enqueued",
        ("human.input", "agent.input"),
        "user message",
        "`human.input` only for a `user` input of a root session that Durable Stream did not add. The cause of a "
        "background subagent's report is its last turn.",
    ),
    Rule("synthetic", "event", "enqueued", ("agent.input",), "message", "What OpenCode itself tells the model."),
    Rule(
        "inbox.cancelled",
        "event",
        "cancelled",
        ("opencode.session.inbox.cancelled",),
        "user message",
        "A waiting input was taken back before the model saw it.",
    ),
    Rule(
        "step.started",
        "event",
        "step_started",
        ("agent.handoff", "turn.started"),
        "user message, or the assistant message",
        "Only for the first step after `inbox.delivered` or `compaction.started`. An input before the turn's last "
        "answer becomes part of that turn. After a restart, the service goes on with the open turn.",
    ),
    Rule("execution.started", "state", "nothing"),
    Rule(
        "execution.succeeded",
        "event",
        "execution_succeeded",
        ("turn.ended",),
        "user message",
        "`completed`, also if a step failed and another succeeded.",
    ),
    Rule("execution.failed", "event", "execution_failed", ("agent.error", "turn.ended"), "event; user message"),
    Rule(
        "execution.interrupted",
        "event",
        "execution_interrupted",
        ("turn.ended",),
        "user message",
        "`aborted` by a person; `stopped` after a refused call; `interrupted` after a shutdown that the service does "
        "not go on from.",
    ),
    Rule("step.ended", "event", "step_ended", ("execution.step",), "assistant message"),
    Rule(
        "step.failed",
        "event",
        "step_failed",
        ("agent.error", "execution.step"),
        "assistant message",
        "An interruption is not an error, but the tokens used until then are a step.",
    ),
    Rule("text.ended", "event", "output_ended", ("execution.output",), "assistant message, kind and ordinal"),
    Rule("reasoning.ended", "event", "output_ended", ("execution.output",), "assistant message, kind and ordinal"),
    Rule(
        "text.cut",
        "event",
        "text_cut",
        ("capture.gap",),
        "assistant message",
        "Made by the sidecar for an answer of which a killed service kept no word.",
    ),
    Rule(
        "tool.called",
        "event",
        "tool_called",
        (STEP_STARTED,),
        "assistant message and call",
        "As in OpenCode 1. Not rebuilt from the service's messages.",
    ),
    Rule("tool.success", "event", "tool_ended", ("execution.step",), "assistant message and call"),
    Rule("tool.failed", "event", "tool_ended", ("execution.step",), "assistant message and call"),
    Rule(
        "shell.ended",
        "event",
        "shell_ended",
        ("human.input", "turn.started", "execution.step", "turn.ended"),
        "command",
    ),
    Rule(
        "compaction.started",
        "event",
        "compaction_started",
        ("turn.started",),
        "message of the compaction",
        "Only between turns.",
    ),
    Rule(
        "compaction.ended", "event", "compaction_ended", ("lifecycle.session.compacted",), "message of the compaction"
    ),
    Rule("compaction.failed", "event", "compaction_failed", ("agent.error",), "message of the compaction"),
    Rule(
        "retry.scheduled",
        "event",
        "retried",
        ("opencode.session.retry.scheduled",),
        "event",
        "Which attempt comes next, when, and why.",
    ),
    Rule(
        "moved",
        "event",
        "moved",
        (MOVED,),
        "event",
        "The session's `directory` and `project` from now on.",
    ),
    Rule("renamed", "event", "renamed", ("opencode.session.renamed",), "event", "Contains the session's new title."),
    Rule(
        "revert.staged",
        "event",
        "revert_staged",
        ("opencode.session.reverted",),
        "event",
        "As `session.updated` of OpenCode 1.",
    ),
    Rule("revert.cleared", "event", "revert_staged", ("opencode.session.reverted",), "event"),
    Rule(
        "revert.committed",
        "event",
        "reverted",
        ("opencode.message.removed",),
        "event and message",
        "One event for each removed input.",
    ),
    Rule(
        "permission.asked",
        "event",
        "checkpoint",
        ("workflow.checkpoint",),
        "request and state",
        "Also those open when the plugin links.",
    ),
    Rule("permission.replied", "event", "checkpoint", ("workflow.checkpoint",), "request and state"),
    Rule("form.created", "event", "checkpoint", ("workflow.checkpoint",), "form and state", "A question or a form."),
    Rule("form.replied", "event", "checkpoint", ("workflow.checkpoint",), "form and state"),
    Rule("form.cancelled", "event", "checkpoint", ("workflow.checkpoint",), "form and state"),
    Rule("inbox.delivered", "state", "nothing", note="The turn begins with the next step."),
    Rule("inbox.delivery.changed", "state", "nothing"),
    Rule("text.started", "state", "nothing"),
    Rule("reasoning.started", "state", "nothing"),
    Rule("tool.input.started", "state", "nothing", note="Contains the tool's name."),
    Rule("tool.input.ended", "state", "nothing"),
    Rule("shell.started", "state", "nothing"),
    Rule("instructions.updated", "state", "nothing", note="Contains digests of the instructions."),
    Rule("step.streamed", "state", "nothing"),
    Rule("tool.progress", "state", "nothing", note="Names the child session of a call."),
    Rule("viewed", "state", "nothing", note="A person looked at the session."),
    Rule("usage.updated", "drop", "nothing", note="Each step has its own tokens and cost."),
    *(Rule(f"{each}.delta", "drop", "nothing") for each in ("text", "reasoning", "tool.input", "compaction")),
)

BY_NAME: dict[str, Rule] = {rule.source: rule for rule in RULES if rule.handle}

UNKNOWN = Rule(
    "any other numbered event",
    "event",
    "unknown",
    ("opencode.{type}",),
    "event",
    "Kept whole and counted.",
)
