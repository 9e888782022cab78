"""The table that says what each OpenCode hook and bus event is recorded as.

The translator dispatches on this table, and ``docs/events.md`` is generated from it, so code and documentation cannot
disagree. Measured on OpenCode 1.18.33.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streams.lineage import RETRIED, STEP_STARTED

Kind = Literal["event", "state", "drop"]
"""``event``: the hook is recorded. ``state``: the hook is not final, so it is remembered only while it matters.
``drop``: the hook has no lasting meaning."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table: a hook or bus event, what it is recorded as, and the key that prevents duplicates.

    ``handle`` names the translator's method. ``makes`` lists the event types that the hook can lead to, and ``key``
    describes the last part of their keys, ``{type}:{session}:{id}``.
    """

    source: str
    kind: Kind
    handle: str
    makes: tuple[str, ...] = ()
    key: str = ""
    note: str = ""


RULES: tuple[Rule, ...] = (
    Rule(
        "session.created",
        "event",
        "nothing",
        ("lifecycle.session.created", "agent.spawned"),
        "the session; the child session",
        "A child session waits for the `task` call that created it, so that the cause comes before the effect. For a "
        "session of background work, `agent.spawned` names the turn and the call that asked for the work.",
    ),
    Rule(
        "the first hook of a session in a boot",
        "event",
        "",
        ("lifecycle.session.resumed",),
        "boot",
        "Once per boot, if the session's first hook in that boot is not `session.created`.",
    ),
    Rule(
        "session.deleted",
        "event",
        "session_deleted",
        ("lifecycle.session.ended",),
        "the session",
        "The reason is `deleted`, or `gone` if OpenCode no longer has the session when its plugin connects.",
    ),
    Rule(
        "chat.message",
        "event",
        "chat_message",
        ("human.input", "agent.input"),
        "user message",
        "`human.input` only in a known root session, if a part is neither synthetic nor added by Durable Stream.",
    ),
    Rule(
        "message.updated",
        "event",
        "message_updated",
        ("agent.handoff", "turn.started", "turn.ended", "agent.error", "lineage.forked"),
        "user message; assistant message for errors; origin for forks",
        "A turn starts with the first assistant message that answers a user message. `agent.handoff`: another OpenCode "
        "agent answers from now on. `lineage.forked` names the origin of a fork.",
    ),
    Rule(
        "message.removed",
        "event",
        "message_removed",
        ("opencode.message.removed",),
        "bus event",
        "By `/undo`, for example; reported when the next prompt is sent.",
    ),
    Rule(
        "session.idle",
        "event",
        "session_idle",
        ("turn.ended",),
        "user message",
        "`outcome` is `completed`, `failed`, `aborted`, `stopped` (ended after a tool, without a final answer), "
        "`continued` (a compaction takes over) or `interrupted` (OpenCode died).",
    ),
    Rule(
        "message.part.updated",
        "event",
        "part_updated",
        (STEP_STARTED, "execution.step", "execution.output", "agent.spawned"),
        "part",
        "A tool call that has completed or failed, a `step-finish`, a finished text or reasoning, or a `task` call "
        "that names its child session. `execution.step.started` has the first 200 characters of each text of a call's "
        "input.",
    ),
    Rule(
        "the note in the user message of a `!` command",
        "event",
        "",
        ("human.input", "turn.started"),
        "user message",
        "The turn's trigger is `shell`, and it has no model.",
    ),
    Rule(
        "tool.execute.after",
        "event",
        "tool_after",
        ("execution.step",),
        "part",
        "Completes the step of its part's last update. If none arrives within 2 s, the hook itself is the step.",
    ),
    Rule(
        "session.error",
        "event",
        "session_error",
        ("agent.error",),
        "assistant message",
        "Without the provider's headers and bodies. An abort is not an error; it ends the turn.",
    ),
    Rule("permission.asked", "event", "ask_checkpoint", ("workflow.checkpoint",), "request and state"),
    Rule(
        "permission.replied",
        "event",
        "ask_checkpoint",
        ("workflow.checkpoint",),
        "request and state",
        "The actor is always `user`, because OpenCode does not say who answered.",
    ),
    Rule("question.asked", "event", "ask_checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("question.replied", "event", "ask_checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("question.rejected", "event", "ask_checkpoint", ("workflow.checkpoint",), "question and state"),
    Rule("session.compacted", "event", "session_compacted", ("lifecycle.session.compacted",), "bus event"),
    Rule(
        "capture.gap",
        "event",
        "capture_gap",
        ("capture.gap",),
        "boot, instance and sequence number",
        "How many hooks were lost, and why.",
    ),
    Rule(
        "session.updated",
        "event",
        "session_updated",
        ("opencode.session.reverted",),
        "bus event",
        "A person undid a prompt, or took that back: `message` is the first message that is undone now, if any.",
    ),
    Rule(
        "session.status",
        "event",
        "session_status",
        (RETRIED, "turn.ended"),
        "bus event; user message",
        "Of a chain of failed attempts, the first, second, fourth … are recorded. `idle` ends the turn.",
    ),
    Rule("session.diff", "state", "nothing"),
    Rule("message.part.delta", "drop", "nothing", note="May be lost, as every `.delta`; the final part has all of it."),
    Rule("dispose", "drop", "nothing", note="The link's `bye` reports that the plugin instance ended."),
    Rule("todo.updated", "state", "nothing", note="The `todowrite` step contains the list."),
    Rule("file.edited", "state", "nothing", note="The tool's step names the file."),
)

DROPPED: frozenset[str] = frozenset(
    {
        "plugin.added",
        "catalog.updated",
        "reference.updated",
        "integration.updated",
        "integration.connection.updated",
        "tui.toast.show",
        "tui.prompt.append",
        "tui.command.execute",
        "tui.session.select",
        "server.connected",
        "server.heartbeat",
        "server.instance.disposed",
        "global.disposed",
        "lsp.updated",
        "lsp.client.diagnostics",
        "file.watcher.updated",
        "installation.updated",
        "installation.update-available",
        "project.updated",
        "project.directories.updated",
        "mcp.tools.changed",
        "mcp.browser.open.failed",
        "vcs.branch.updated",
        "pty.created",
        "pty.updated",
        "pty.exited",
        "pty.deleted",
        "workspace.status",
        "workspace.ready",
        "ide.installed",
    }
)
"""Bus events about catalogs, plugins, terminals and toasts, which have no lasting meaning."""

IGNORED_HOOKS: frozenset[str] = frozenset(
    {
        "chat.params",
        "chat.headers",
        "tool.execute.before",
        "tool.definition",
        "shell.env",
        "config",
        "auth",
        "command.execute.before",
        "experimental.chat.messages.transform",
        "experimental.chat.system.transform",
        "experimental.provider.small_model",
        "experimental.session.compacting",
        "experimental.compaction.autocontinue",
        "experimental.text.complete",
    }
)
"""Hooks that only let a plugin change something. Older recordings contain them."""

FINAL_PARTS: frozenset[str] = frozenset({"tool", "text", "reasoning", "step-finish"})
"""Part types of ``message.part.updated`` that can become an event; the other types have no lasting meaning, or repeat
what the recorded input already has."""

BY_SOURCE: dict[str, Rule] = {rule.source: rule for rule in RULES if rule.handle}
UNKNOWN = Rule(
    "any other hook or bus event, or one of the above with an unknown shape",
    "event",
    "unknown_event",
    ("opencode.{type}",),
    "bus event; for a hook: boot, instance and sequence number",
    "Kept whole and counted.",
)


def rule_for(source: str) -> Rule | None:
    """The table's row for a hook name or bus event type; ``None`` if such hooks are dropped, ``UNKNOWN`` for a new
    type.

    An item without the shape in ``hook_shapes.py`` is treated as ``UNKNOWN``.
    """
    rule = BY_SOURCE.get(source)
    if rule is not None:
        return rule if rule.kind != "drop" else None
    if source in DROPPED or source in IGNORED_HOOKS or source.endswith(".delta"):
        return None
    return UNKNOWN
