"""The table that says what each event of an OpenCode 2 service is recorded as.

The translator dispatches on this table, and ``docs/events.md`` is generated from it, so code and documentation cannot
disagree. Measured on OpenCode 0.0.0-next-16350; the release's different names (``session.inbox.*``, ``id`` for
``callID``) are understood, too.
"""

from __future__ import annotations

from bridge.opencode.capture.table import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "created",
        "event",
        "created",
        ("lifecycle.session.created", "agent.spawned"),
        "the session; the child session",
        "The durable log begins after this event, so the session's description is also read. A child session names "
        "its parent session; `tool.progress` or the end of the call names the child session. If neither does, the "
        "child session belongs to the open call with the same description and agent.",
    ),
    Rule("forked", "event", "forked", ("lifecycle.session.created",), "the session", "A fork is its own root session."),
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
        "The reason is `deleted`, or `gone` if the session is missing when the sidecar connects.",
    ),
    Rule(
        "event numbers whose events cannot be read",
        "event",
        "",
        ("capture.gap",),
        "session and first number",
        "The reason is `session_deleted`, `hole_in_session_log`, or (if the service keeps no log) `no_session_log`.",
    ),
    Rule(
        "input.admitted",
        "event",
        "admitted",
        ("human.input", "agent.input"),
        "user message",
        "The event is `human.input` only for a `user` input of a root session that Durable Stream did not inject; "
        "otherwise it is `agent.input`. The released version calls the source event `inbox.enqueued`.",
    ),
    Rule(
        "step.started",
        "event",
        "step_started",
        ("agent.handoff", "turn.started"),
        "user message, or the execution's event",
        "Recorded only for the first step after `input.promoted` (in the released version: `inbox.delivered`) or "
        "`compaction.started`. An input that arrives before the turn's last answer becomes part of that turn; a later "
        "input begins the next turn.",
    ),
    Rule("execution.started", "state", "execution_started", note="A turn that is still open was interrupted."),
    Rule(
        "execution.succeeded",
        "event",
        "execution_succeeded",
        ("turn.ended",),
        "user message",
        "The outcome is `completed`, or `stopped` if the last step wanted to continue.",
    ),
    Rule("execution.failed", "event", "execution_failed", ("agent.error", "turn.ended"), "event; user message"),
    Rule(
        "execution.interrupted",
        "event",
        "execution_interrupted",
        ("turn.ended",),
        "user message",
        "The outcome is `aborted` if a person aborted the turn; `stopped` after a refused call, which the service "
        "reports as `shutdown`; `interrupted` after a real shutdown.",
    ),
    Rule("step.ended", "event", "step_ended", ("execution.step",), "event"),
    Rule(
        "step.failed",
        "event",
        "step_failed",
        ("agent.error", "execution.step"),
        "assistant message; event",
        "Recorded without the provider's response. An interruption is not an error, but the tokens used until then are "
        "recorded as a step.",
    ),
    Rule("text.ended", "event", "output_ended", ("execution.output",), "event"),
    Rule("reasoning.ended", "event", "output_ended", ("execution.output",), "event"),
    Rule(
        "tool.success",
        "event",
        "tool_ended",
        ("execution.step",),
        "event",
        "The tool's name is in `tool.input.started`.",
    ),
    Rule("tool.failed", "event", "tool_ended", ("execution.step",), "event"),
    Rule(
        "shell.ended", "event", "shell_ended", ("human.input", "turn.started", "execution.step", "turn.ended"), "event"
    ),
    Rule(
        "compaction.started",
        "event",
        "compaction_started",
        ("turn.started",),
        "input, or the event",
        "An automatic compaction before the first step belongs to the prompt's turn. A compaction during a turn does "
        "not start a new turn.",
    ),
    Rule("compaction.ended", "event", "compaction_ended", ("lifecycle.session.compacted",), "event"),
    Rule("compaction.failed", "event", "compaction_failed", ("agent.error",), "event"),
    Rule(
        "retry.scheduled",
        "event",
        "retried",
        ("opencode.session.retry.scheduled",),
        "event",
        "Says which attempt comes next, when, and why, but omits the provider's response.",
    ),
    Rule("renamed", "event", "renamed", ("opencode.session.renamed",), "event", "Contains the session's new title."),
    Rule(
        "revert.committed",
        "event",
        "reverted",
        ("opencode.message.removed",),
        "event and message",
        "One event for each removed input, starting with the message that the event names.",
    ),
    Rule(
        "permission.asked",
        "event",
        "checkpoint",
        ("workflow.checkpoint",),
        "request and state",
        "The service announces permission requests, questions and forms but does not log them, so the sidecar lists "
        "those that are open each time it connects.",
    ),
    Rule("permission.replied", "event", "checkpoint", ("workflow.checkpoint",), "request and state"),
    Rule("question.asked", "event", "checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("question.replied", "event", "checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("question.rejected", "event", "checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("form.created", "event", "checkpoint", ("workflow.checkpoint",), "form and state", "A question or a form."),
    Rule("form.replied", "event", "checkpoint", ("workflow.checkpoint",), "form and state"),
    Rule("form.cancelled", "event", "checkpoint", ("workflow.checkpoint",), "form and state"),
    Rule("input.promoted", "state", "nothing", note="The turn begins with the next step."),
    Rule("compaction.admitted", "state", "nothing"),
    Rule("text.started", "state", "nothing"),
    Rule("reasoning.started", "state", "nothing"),
    Rule("tool.input.started", "state", "nothing", note="Contains the tool's name."),
    Rule("tool.input.ended", "state", "nothing"),
    Rule("tool.called", "state", "nothing", note="Contains the tool's input, and says when the tool began."),
    Rule("shell.started", "state", "nothing"),
    Rule("instructions.updated", "state", "nothing", note="Contains digests of the instructions."),
    Rule("usage.recorded", "state", "nothing", note="Contains the cost of titles and compactions."),
    Rule("viewed", "state", "nothing", note="Only in the released version: a person looked at the session."),
    Rule("step.streamed", "state", "nothing", note="Only in the released version."),
    Rule("revert.staged", "state", "nothing"),
    Rule("revert.cleared", "state", "nothing"),
)

BY_NAME: dict[str, Rule] = {rule.source: rule for rule in RULES if rule.handle}

UNKNOWN = Rule(
    "any other durable event",
    "event",
    "unknown",
    ("opencode.{type}",),
    "event",
    "Kept whole and counted, so that nothing from a newer OpenCode is lost.",
)
