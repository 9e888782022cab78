"""What each event bears, changes and ends: one rule for each type.

OpenCode keeps what is open in its memory only. So the calls and asks of a session end with the turn that runs, with the
process, and with the session: at ``turn.started``, ``turn.ended``, ``lifecycle.session.resumed`` and
``lifecycle.session.ended``. The turn itself ends at all of these but ``resumed``: the end of a turn whose process died
is recorded later. The end of another turn ends only the asks that name it.

Records come in position order. Any field of a payload may be missing or of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from bridge.opencode.capture.tokens import MOST_COST, add_tokens, can_be, total_of
from sidecar.read.ask_text import CHECKPOINT
from sidecar.read.changes.approvals import Approval, add_answer, ask_of
from sidecar.read.changes.edits import file_changes
from sidecar.read.fields import (
    as_directory,
    as_int,
    as_list,
    as_mapping,
    as_text,
    has_failed,
    is_forgotten,
    is_said,
    model_name,
)
from sidecar.read.kinds import TURN_ENDED, WORK, WORK_STARTED, is_agents
from sidecar.read.losses import GAP
from sidecar.read.rendering.describe import input_text
from sidecar.read.rendering.markup import unwrapped
from sidecar.read.story import tables
from sidecar.read.story.belonging import Belonging
from sidecar.read.story.session_fold import Live, encoded
from sidecar.read.transcript.attached import attached
from streams.lineage import (
    CREATED,
    ENDED,
    FORKED,
    LINKED,
    MARKS,
    MOVED,
    RESUMED,
    RETRIED,
    STEP_STARTED,
    TURN_STARTED,
)
from streams.store import Record

_STARTING: Final = frozenset({"task", "subagent", "agent_spawn"})
"""The tools whose calls start sessions: of OpenCode 1, of OpenCode 2, and ours."""

_BESIDE: Final = ("intent.", "message.")
"""The types of what an imported session has of its background work, questions and messages."""

READ_AGAIN: Final = frozenset({CHECKPOINT, "human.input", "agent.input"})
"""The types of the records that rules about later ones read again."""

_UNDONE: Final = 60
"""How many characters of a prompt are shown to identify an undone prompt."""


class Rules(Belonging):
    """A fold over all records of a log. ``write`` writes the rows."""

    def apply(self, record: Record) -> None:
        event, payload, n = record.event, record.event.payload, record.position
        place, moment = self.place(record)
        if event.type == GAP:
            self._lost_something(record, payload, place)
        if is_agents(event.stream_id):
            if (
                event.stream_id == WORK
                and event.type == WORK_STARTED
                and (given := as_directory(payload.get("directory")))
            ):
                self.work(as_text(payload.get("session")), given, n)
            return
        named = payload.get("session")
        is_own = isinstance(named, str)
        # A forgotten record names no session, so it goes to the root session, which has its stream's name.
        s = self.live(str(named) if is_own else event.stream_id, record, place.key, is_own=is_own)
        self.touch(s, event.ts, is_news=event.type not in MARKS)
        moment.session, moment.count, moment.first, moment.last = s.key, s.state.count, s.state.first, s.state.last
        if is_own and (boot := as_text(event.metadata.get("boot"))):
            self.places.change(place, n, boot=boot)
        if is_forgotten(payload):
            self.item(self.turn(s, "", n), n, "forgotten")
        elif (rule := _RULES.get(event.type)) is not None:
            rule(self, s, record, payload, n)
        else:
            self.item(self.turn(s, "", n), n, "background" if event.type.startswith(_BESIDE) else "other")
        moment.waited = s.state.waited
        self.moments.put(n, moment)

    # --- turns ---

    def _input(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        parts, message = as_list(p.get("parts")), as_text(p.get("message")) or record.event.id
        turn, asked = self.known_turn(s, message), input_text(p)
        known = self.inputs.find("session = ? AND message = ?", s.key, message)
        known = known or self.inputs.add(tables.Input(session=s.key, message=message))
        if turn is not None:
            self.turns.change(turn, n, asked=asked)
        said = any(unwrapped(as_text(part.get("text"))) for part in map(as_mapping, parts) if is_said(part))
        if said or attached(parts)[0] or as_text(p.get("shell")):
            self.item(turn or self.new_turn(s, message, asked, n), n, "prompt")
        elif turn is None:  # only synthetic text, which OpenCode itself adds
            self.inputs.set(known, asked=asked)

    def _turn_started(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        event, agent = record.event, as_text(p.get("agent")) or record.event.actor
        turn, before = self.turn(s, as_text(p.get("message")), n), s.current
        if before is not None and before is not turn and before.started_ms is not None and not before.outcome:
            self.turns.change(before, n, outcome="unknown")  # it never ended, because OpenCode died
        model = as_mapping(p.get("model"))
        now = {"trigger": as_text(p.get("trigger")), "started_ms": turn.started_ms or event.ts}
        self.turns.change(turn, n, model=model_name(model), agent=agent, ended_ms=None, outcome="", **now)
        self.be_current(s, turn)
        if answer := as_text(p.get("assistant_message")):
            self.replied(s, answer, turn)
        agents = {"agent": s.row.agent or event.actor, "role": s.row.role or agent}
        self.close(s, n, event.ts, "over")
        state = s.state
        state.number, state.model_at = state.number + 1, n if model else state.model_at
        state.run_steps, state.run_cost, state.free, state.busy = 0, 0.0, event.ts, None
        s.asked = set()
        s.run = self.begin(s, n, "turn", event.ts, turn=turn.message, total=state.ran, state="running")
        begun, pid = s.row.begun if s.row.begun is not None else event.ts, as_int(event.metadata.get("pid")) or 0
        self.change(s, n, p, model=turn.model, rests=0, run=s.run.key, begun=begun, pid=pid, **agents)
        self.mark(s, n, "turn")

    def _turn_ended(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        ts, outcome = record.event.ts, as_text(p.get("outcome")) or "ended"
        turn = self.turn(s, as_text(p.get("message")), n)
        self.turns.change(turn, n, outcome=outcome, error=as_text(p.get("error")), ended_ms=ts)
        is_other = s.run is not None and s.run.turn != turn.message
        if is_other:  # the turn that runs goes on
            self.over(s, n, ts, turn.message)
        else:
            ran = s.run
            self.close(s, n, ts, "error" if outcome == "failed" else "completed", n)
            if ran is not None:
                self.spans.set(ran, reply=outcome)
        self.change(s, n, p, rests=int(not is_other))
        # An error also ends its turn: it counts once.
        if outcome == "failed" and self.items.find("turn = ? AND kind = 'error'", turn.key) is None:
            self.mark(s, n, "error")

    def _said(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        turn = self.turn_of(s, p, n)
        if as_text(p.get("text")):
            is_summary = turn.trigger == "compaction" and p.get("kind") != "reasoning"
            self.item(turn, n, "summary" if is_summary else "said")

    # --- what agents did ---

    def _call_began(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.began(s, record, p, n)

    def _step(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        turn, is_model = self.turn_of(s, p, n), p.get("kind") == "inference"
        self._used(s, record, p, n, turn, is_model=is_model)
        end, state = as_int(p.get("ended_ms")) or record.event.ts, "error" if has_failed(p) else "completed"
        if state == "error":
            self.mark(s, n, "error")
        if is_model:
            self.go_on(s, n, end)
            live = s.state
            start = min(as_int(p.get("started_ms")) or live.free, end)
            live.free, live.busy, end = max(live.free, end), None, max(live.busy or end, start)
            self.begin(s, n, "model", start, till=n, end=end, state=state, result=n)
        else:
            self._tool(s, record, p, n, turn, end, state)

    def _used(self, s: Live, record: Record, p: dict[str, Any], n: int, turn: tables.Turn, *, is_model: bool) -> None:
        """The row of a step, with the sums."""
        cost, live, of_turn = p.get("cost"), s.state, self.sums_of(s, turn)
        cost = cost if can_be(cost, MOST_COST) else 0.0
        tokens: dict[str, int | float] = {}
        add_tokens(tokens, p.get("tokens"))
        s.sums.add(cost, tokens)
        of_turn.add(cost, tokens)
        own = None
        if is_model:
            if tokens:
                tokens["total"] = total_of(tokens)
            own = encoded(tokens)
            if s.run is not None:
                live.run_steps, live.run_cost = live.run_steps + 1, round(live.run_cost + cost, 9)
        run, is_partial = s.run.key if s.run is not None else None, record.event.metadata.get("host") == "opencode2"
        step = tables.Step(n, record.event.ts, s.key, turn.key, run, as_text(p.get("kind")))
        step.model, step.agent, step.partial = model_name(p.get("model")), record.event.actor, int(is_partial)
        step.cost, step.tokens, step.r_steps, step.r_cost = cost, own, live.run_steps, live.run_cost
        step.s_steps, step.s_cost, step.s_tokens = s.sums.steps, s.sums.cost, s.sums.text
        step.t_steps, step.t_cost, step.t_tokens = of_turn.steps, of_turn.cost, of_turn.text
        self.steps.put(n, step)

    def _tool(
        self, s: Live, record: Record, p: dict[str, Any], n: int, turn: tables.Turn, end: int, state: str
    ) -> None:
        call = as_text(p.get("call"))
        span = s.calling(call)
        start = max(end - (as_int(p.get("duration_ms")) or 0), 0) if span is None else span.start
        s.state.busy = min(s.state.busy or start, start)
        if span is not None:
            del s.open[span.key]
            self.spans.set(span, till=n, end=end, state=state, result=n)
        elif (span := self._lost(s, p, call)) is not None:
            self.spans.change(span, n, state=state, result=n)
        else:
            span = self.begin(s, n, "tool", start, call=call, till=n, end=end, state=state, result=n)
        item = self._call_item(s, p, n, turn, call)
        asks = self._asks(s, p, call)
        for _, ask in asks:
            tail = self.items.find("turn = ? AND kind = 'ask' AND ref = ? AND died IS NULL", turn.key, ask.key)
            self.allowed.add(tables.Allowed(n=n, ask=ask.key, below=item.key if tail is not None else None))
            if tail is not None:
                self.items.set(tail, died=n)
        if self._edited(s, p, n, turn, next((each.diff for each, _ in asks if each.diff), "")):
            for _, ask in asks:
                self.spans.set(ask, shown=ask.shown or n)
        name, about = as_text(p.get("child")), as_mapping(p.get("metadata"))
        if name or as_text(p.get("tool")) in _STARTING:
            goes_on = about.get("background") is True or about.get("status") == "running"
            keys = {"item": item.key, "span": span.key, "background": int(bool(name) and goes_on)}
            message = as_text(p.get("turn"))
            self.started.add(tables.Started(session=s.key, turn=message, call=call, child=name, **keys))
            if name and (child := self.known(name)) is not None:
                self._finished(s, child, turn, n, is_background=goes_on)

    def _lost(self, s: Live, p: dict[str, Any], call: str) -> tables.Span | None:
        """The call of a process that died, whose result is known only now."""
        key, message = s.state.lost.get(call, (None, ""))
        if key is None or message != as_text(p.get("turn")):
            return None
        del s.state.lost[call]
        return self.spans.find("key = ? AND died IS NULL", key)

    def _call_item(self, s: Live, p: dict[str, Any], n: int, turn: tables.Turn, call: str) -> tables.Item:
        """The item of a call that ended."""
        item = None
        if s.state.running:
            item = self.items.find("turn = ? AND call = ? AND call IS NOT NULL ORDER BY id DESC", turn.key, call)
        if item is None:
            return self.item(turn, n, "call", till=n, text=as_text(p.get("title")))
        s.state.running -= 1
        self.items.set(item, till=n, call=None, text=as_text(p.get("title")) or item.text)
        return item

    def _asks(self, s: Live, p: dict[str, Any], call: str) -> list[tuple[Approval, tables.Span]]:
        """What the call of a step asked for, oldest first. Call ids repeat, so the turn and the input must match,
        too."""
        message = as_text(p.get("turn"))
        is_now = s.run is not None and s.run.turn == message
        if not call or (is_now and s.asked is not None and call not in s.asked):
            return []
        since = s.run.at if s.run is not None and is_now else 0
        where = "kind = 'wait' AND session = ? AND call = ? AND turn = ? AND at >= ? AND died IS NULL ORDER BY key"
        spans = [s.open.get(each.key, each) for each in self.spans.all(where, s.key, call, message, since)]
        found = [(Approval(ask_of(record), record), span) for span in spans for record in (self.source(span.at),)]
        return [(approval, span) for approval, span in found if approval.is_about(p)]

    def _edited(self, s: Live, p: dict[str, Any], n: int, turn: tables.Turn, asked_diff: str) -> bool:
        """Whether a step changed a file that it names."""
        changes = file_changes(p, asked_diff)
        named = [each for each in changes if each.file]
        for each in named:
            edit = tables.Edit(0, n, s.key, turn.key, each.file, as_text(p.get("tool")), how=each.how)
            if each.how != "replace":
                edit.added, edit.removed = each.additions, each.deletions
            self.edits.add(edit)
        if changes and not has_failed(p):
            self.mark(s, n, "edit")
        return bool(named)

    def _finished(self, s: Live, child: Live, turn: tables.Turn, n: int, *, is_background: bool) -> None:
        """Put the child of a call below the call, even if no event announced the child."""
        if is_background and child.row.named:
            self.sessions.change(child.row, n, background=1)
        if child.branch is None:
            last = self.items.find("turn = ? AND died IS NULL ORDER BY key DESC", turn.key)
            if last is not None and last.kind in ("call", "adopted") and last.ref is None:
                self.put_below(s, child, last, n)

    # --- asks, errors and what was undone ---

    def _checkpoint(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        request, ts = as_text(p.get("request")), record.event.ts
        known = s.waiting(request)
        if p.get("state") == "asked":
            if known is not None:
                self._answered(s, known, n, ts, "over")
            ask, is_past = ask_of(record), record.event.metadata.get("history")
            turn = self.turn(s, ask.turn, n)
            about = {"turn": ask.turn, "of": turn.key, "call": ask.call, "request": request}
            span = self.begin(s, n, "wait", ts, state="waiting", marked=n if is_past else None, **about)
            s.open[span.key] = span
            if s.asked is not None:
                s.asked.add(ask.call)
            s.state.busy = min(s.state.busy or ts, ts)
            self.item(turn, n, "ask", ref=span.key)
            self.mark(s, n, "ask")
            return
        if known is not None:
            self._answered(s, known, n, ts, "completed")
        else:  # OpenCode may answer an ask that ended with its turn
            where = "kind = 'wait' AND session = ? AND request = ? AND died IS NULL ORDER BY key DESC"
            known = self.spans.find(where, s.key, request)
        if known is None:
            self.item(self.turn(s, as_text(p.get("turn")), n), n, "ask")
        elif known.result is None:
            answer = Approval(ask_of(record), self.source(known.at), record)
            add_answer(answer.ask, record)
            reply = answer.reply if answer.kind == "permission" else None
            self.spans.set(known, result=n, reply=reply or "")

    def _answered(self, s: Live, span: tables.Span, n: int, ts: int, state: str) -> None:
        del s.open[span.key]
        self.end(s, span, n, ts, state)

    def _error(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self._failed(s, record.event.ts, n)
        self.mark(s, n, "error")
        self.item(self.turn(s, as_text(p.get("turn")), n), n, "error")

    def _failed(self, s: Live, ts: int, n: int) -> None:
        """A call of the model that failed; without a known model, none was called, and only the turn has failed."""
        if s.run is not None and s.state.model_at:
            self.go_on(s, n, ts)
            start, about = min(s.state.free, ts), s.state.model_at
            self.begin(s, n, "model", start, till=n, end=ts, state="error", result=n, about=about)
            s.state.free = ts
            self.spans.set(s.run, marked=s.run.marked or n)

    def _retried(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        ts = record.event.ts
        self.go_on(s, n, ts)
        self._failed(s, ts, n)
        s.pause = self.begin(s, n, "pause", ts, state="running")
        s.state.free = max(as_int(p.get("at_ms")) or 0, ts)
        self.mark(s, n, "error")
        self.item(self.turn(s, "", n), n, "other")

    def _compacted(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.item(self.turn(s, "", n), n, "compacted")

    def _lost_something(self, record: Record, p: dict[str, Any], place: tables.Place) -> None:
        about = as_text(record.event.metadata.get("boot")), as_text(p.get("reason")), as_int(p.get("lost")) or 0
        own = place.key if "session" in p else None
        self.gaps.add(tables.Gap(0, record.position, record.event.ts, own, *about))

    def _gap(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        self.mark(s, n, "error")
        self.item(self.turn(s, "", n), n, "gap")

    def _removed(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        message = as_text(as_mapping(p.get("properties")).get("messageID"))
        row = self.undone.find("session = ? AND message = ? AND died IS NULL", s.key, message)
        if row is not None:
            self.undone.set(row, removed=1)
            return
        self.undone.add(tables.Undone(session=s.key, message=message, removed=1, born=n))
        is_shown = self._show_undone(s, n, "undone", self.prompt(s, message), p)
        if not is_shown and self._turn_answered(s, message) is None:
            self.item(self.turn(s, "", n), n, "other")

    def _reverted(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        """Undo the inputs from a message on, and no longer the earlier ones, apart from those removed."""
        first = as_text(p.get("message"))
        begin = self.inputs.find("session = ? AND message = ?", s.key, first)
        later = self.inputs.all("session = ? AND id >= ? ORDER BY id", s.key, begin.id) if begin is not None else []
        messages = dict.fromkeys(each.message for each in later)
        for row in self.undone.all("session = ? AND died IS NULL", s.key):
            if row.message in messages:
                del messages[row.message]
            elif not row.removed:
                self.undone.set(row, died=n)
        for message in messages:
            self.undone.add(tables.Undone(session=s.key, message=message, born=n))
        self._show_undone(s, n, "undone" if first else "redone", self.prompt(s, first), p)

    def _show_undone(self, s: Live, n: int, kind: str, prompt: tables.Item | None, p: dict[str, Any]) -> bool:
        """Add an item with the first words of a prompt; return false if there are none."""
        words = as_text(p.get("prompt"))
        if prompt is not None:
            said = self.source(prompt.at).event.payload
            parts = (part for part in map(as_mapping, as_list(said.get("parts"))) if is_said(part))
            text = "\n\n".join(filter(None, (unwrapped(as_text(part.get("text"))) for part in parts)))
            words = prompt.text or as_text(said.get("shell")) or text
        if words := " ".join(words.split()):
            self.item(self.turn(s, "", n), n, kind, text=words[:_UNDONE] + "…" * (len(words) > _UNDONE))
        return bool(words)

    def _turn_answered(self, s: Live, message: str) -> str | None:
        """The message of the turn to which a message of the model belongs."""
        found = self.replies.find("session = ? AND message = ? ORDER BY id DESC", s.key, message)
        return found.turn if found is not None else None

    def _command(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        given = as_mapping(p.get("properties"))
        message = as_text(given.get("messageID"))
        answered = self._turn_answered(s, message)
        prompt = self.prompt(s, message if answered is None else answered)
        if prompt is None:
            self.item(self.turn(s, "", n), n, "other")
        else:
            text = f"/{as_text(given.get('name'))} {as_text(given.get('arguments'))}".strip()
            self.items.change(prompt, n, text=text)

    def _nothing(self, s: Live, record: Record, p: dict[str, Any], n: int) -> None:
        """Nothing: the record only says where sessions belong."""


_RULES: Final[dict[str, Callable[[Rules, Live, Record, dict[str, Any], int], None]]] = {
    CREATED: Rules.appeared,
    RESUMED: Rules.appeared,
    ENDED: Rules.ended,
    LINKED: Rules.linked,
    FORKED: Rules.titled,
    MOVED: Rules.moved,
    "opencode.session.renamed": Rules.titled,
    **dict.fromkeys(MARKS, Rules.marked),
    "agent.spawned": Rules.spawned,
    "agent.handoff": Rules._nothing,
    "human.input": Rules._input,
    "agent.input": Rules._input,
    TURN_STARTED: Rules._turn_started,
    TURN_ENDED: Rules._turn_ended,
    "execution.output": Rules._said,
    STEP_STARTED: Rules._call_began,
    "execution.step": Rules._step,
    CHECKPOINT: Rules._checkpoint,
    "agent.error": Rules._error,
    RETRIED: Rules._retried,
    "lifecycle.session.compacted": Rules._compacted,
    GAP: Rules._gap,
    "opencode.message.removed": Rules._removed,
    "opencode.session.reverted": Rules._reverted,
    "opencode.command.executed": Rules._command,
}
