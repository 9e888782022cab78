"""The expected log of a session, derived from OpenCode's own API.

``family`` asks OpenCode, ``expected`` says which records follow from the answer and in which order,
``differences`` compares them with what ``durable-stream log`` printed. Nothing of the product is
imported here; the design's rules are written down a second time.

Not known to this oracle: messages of the user's own ``!`` commands, forks, reverts, questions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tests.real.api import OpenCodeApi
from tests.real.events import Event, EventStream

Json = dict[str, Any]
Name = tuple[str, str, str]
"""What an event is about: its type, its session, and the id of the part, message or ask in it."""

CREATED = "lifecycle.session.created"
RESUMED = "lifecycle.session.resumed"
ENDED = "lifecycle.session.ended"
COMPACTED = "lifecycle.session.compacted"
STARTED = "execution.step.started"


@dataclass(frozen=True)
class Told:
    """One session as OpenCode reports it: its info and its messages, oldest first."""

    info: Json
    messages: list[Json]

    @property
    def id(self) -> str:
        return str(self.info["id"])

    def users(self) -> list[Json]:
        return [message for message in self.messages if message["info"]["role"] == "user"]

    def answers(self, user: str) -> list[Json]:
        """The assistant messages that answer a user message."""
        return [message for message in self.messages if message["info"].get("parentID") == user]

    def prompts(self) -> list[Json]:
        """The user messages of real prompts; OpenCode writes the others itself when it compacts."""
        prompted, own = [], False
        for user in self.users():
            compaction = compaction_of(user)
            if compaction is None and not own:
                prompted.append(user)
            own = bool(compaction and compaction["auto"])
        return prompted


@dataclass
class Family:
    """A root session and all its descendants, parents first."""

    sessions: list[Told]
    asks: list[Event] = field(default_factory=list)
    """``permission.asked`` and ``permission.replied``: OpenCode keeps no history of them."""
    unparted: list[Json] = field(default_factory=list)
    """Tool calls that ran without a part of their own: ``{session, turn, call, input, output}``."""
    deleted: bool = False
    killed: bool = False
    """OpenCode is gone, and with it each turn that was open."""
    resumed: dict[str, int] = field(default_factory=dict)
    """How many other OpenCode processes went on with a session."""
    live: bool = True
    """False if the calls ended before anything was recorded."""
    created: bool = True
    """False when the root was made while nothing was recorded."""
    agent: str = "opencode"
    """How the root was created: the TUI names its agent at once, the API does not."""

    @property
    def root(self) -> str:
        return self.sessions[0].id


@dataclass(frozen=True)
class Row:
    """One required record; ``content`` has fields of its payload."""

    actor: str | None
    """None for a resumed session: whether its agent is known depends on which hook came first."""
    turn: str | None
    cause: Name | None
    content: Json


@dataclass
class Expectation:
    """All records of a family, and chains of groups: each whole group comes after the one before it."""

    root: str
    rows: dict[Name, Row] = field(default_factory=dict)
    chains: list[list[list[Name]]] = field(default_factory=list)

    def add(self, name: Name, actor: str | None, turn: str | None, cause: Name | None, content: Json) -> Name:
        assert name not in self.rows, f"OpenCode told of {name} twice"
        self.rows[name] = Row(actor, turn, cause, content)
        return name


def family(opencode: OpenCodeApi, root: str, events: EventStream | None = None, **known: Any) -> Family:
    """The family as OpenCode reports it now; ``events`` has the requests, ``known`` the fields that no API returns."""
    sessions: list[Told] = []
    waiting = [root]
    while waiting:
        session = waiting.pop(0)
        sessions.append(Told(opencode.session(session), opencode.messages(session)))
        waiting += sorted(child["id"] for child in opencode.children(session))
    asks = [
        event
        for session in sessions
        for event in (events.of(session.id) if events else [])
        if event["type"] in ("permission.asked", "permission.replied")
    ]
    return Family(sessions, asks, **known)


def compaction_of(user: Json) -> Json | None:
    """The part that makes a user message a compaction request."""
    return next((part for part in user["parts"] if part["type"] == "compaction"), None)


def child_of(part: Json) -> str | None:
    """The session that a ``task`` call runs in."""
    return (part.get("state", {}).get("metadata") or {}).get("sessionId") if part.get("tool") == "task" else None


# What must be there


def expected(told: Family) -> Expectation:
    """Exactly the records that a family must have."""
    plan = Expectation(told.root)
    # The n-th task call with a child made the n-th prompt of it.
    tasks: dict[str, list[Name]] = defaultdict(list)
    for session in told.sessions:
        for message in session.messages:
            for part in message["parts"]:
                if child := child_of(part):
                    tasks[child].append(("agent.spawned", session.id, part["id"]))
    ends: dict[str, list[Name]] = {
        session.id: [
            ("turn.ended", session.id, user["info"]["id"])
            for user in session.prompts()
            if session.answers(user["info"]["id"])
        ]
        for session in told.sessions
    }
    for session in told.sessions:
        _expect_session(plan, told, session, tasks, ends)
    return plan


def _expect_session(
    plan: Expectation, told: Family, session: Told, tasks: dict[str, list[Name]], ends: dict[str, list[Name]]
) -> None:
    sid, info = session.id, session.info
    parent = info.get("parentID")
    lineage = {"lineage": "child" if parent else "root", "parent": parent}
    first: list[list[Name]] = []
    if told.created or parent:
        agent = _task_agent(told, sid) if parent else told.agent
        made = {"directory": info["directory"], "project": info["projectID"], "title": info["title"]}
        created = plan.add((CREATED, sid, sid), agent, None, next(iter(tasks[sid]), None), made | lineage)
        first = [[created]]
    for number in range(told.resumed.get(sid, 0)):
        plan.add((RESUMED, sid, str(number)), None, None, None, lineage)
    inputs: dict[str, Name] = {}
    for number, user in enumerate(session.prompts()):
        uid = user["info"]["id"]
        content = {"message": uid, "agent": user["info"]["agent"], "parts": user["parts"]}
        if parent:
            inputs[uid] = plan.add(("agent.input", sid, uid), "opencode", uid, tasks[sid][number], content)
        else:
            inputs[uid] = plan.add(("human.input", sid, uid), "user", uid, None, content)
    plan.chains.append(first + [[name] for name in inputs.values()])
    turns: list[Name] = []
    compactions = 0
    users = session.users()
    for user, following in zip(users, [*users[1:], None], strict=True):
        uid = user["info"]["id"]
        if not session.answers(uid):
            continue
        cause = inputs.get(uid)
        trigger = "prompt" if cause else "compaction"
        if cause is None and compaction_of(user) is None:
            trigger, cause = "continuation", (COMPACTED, sid, str(compactions - 1))
        turns += _expect_turn(plan, session, user, following, trigger, cause, tasks, ends, told)
        for answer in session.answers(uid):
            if answer["info"].get("summary") and not answer["info"].get("error"):
                started = ("turn.started", sid, uid)
                plan.add((COMPACTED, sid, str(compactions)), answer["info"]["agent"], uid, started, {})
                compactions += 1
    plan.chains.append([[name] for name in turns])
    _expect_asks(plan, told, session)
    for one in told.unparted:
        if one["session"] == sid:
            started = ("turn.started", sid, one["turn"])
            fixed = {"kind": "tool", "status": "completed", "part": None}
            plan.add(("execution.step", sid, _unparted(one)), "build", one["turn"], started, fixed | one)
    if told.deleted:
        last = turns[-1] if turns else (CREATED, sid, sid)
        plan.add((ENDED, sid, sid), "opencode", None, last, {"reason": "deleted"})


def _task_agent(told: Family, child: str) -> str:
    parts = [part for session in told.sessions for message in session.messages for part in message["parts"]]
    return str(next(part["state"]["input"]["subagent_type"] for part in parts if child_of(part) == child))


def _expect_turn(
    plan: Expectation,
    session: Told,
    user: Json,
    following: Json | None,
    trigger: str,
    cause: Name | None,
    tasks: dict[str, list[Name]],
    ends: dict[str, list[Name]],
    told: Family,
) -> list[Name]:
    """Add one turn's records; return those of its start and, if it is over, of its end."""
    sid, uid = session.id, user["info"]["id"]
    answers = session.answers(uid)
    opening = answers[0]["info"]
    model = {"provider": opening["providerID"], "model": opening["modelID"]}
    content = {"message": uid, "assistant_message": opening["id"], "agent": opening["agent"]}
    content |= {"trigger": trigger, "model": model}
    started = plan.add(("turn.started", sid, uid), opening["agent"], uid, cause, content)
    chain: list[list[Name]] = [[cause] if cause else [], [started]]
    steps, tokens = sum((one["session"], one["turn"]) == (sid, uid) for one in told.unparted), 0
    for answer in answers:
        place = {"message": answer["info"]["id"], "turn": uid}
        agent = answer["info"]["agent"]
        parallel = False
        for part in answer["parts"]:
            name = ("execution.step", sid, part["id"])
            if part["type"] == "tool":
                if part["state"]["status"] != "pending" and told.live:
                    content = {"tool": part["tool"], "call": part["callID"], "part": part["id"]}
                    chain[-1].append(plan.add((STARTED, sid, part["id"]), agent, uid, started, place | content))
                if child := child_of(part):
                    _expect_spawn(plan, sid, part, started, agent, place, child)
                if part["state"]["status"] not in ("completed", "error"):
                    continue
                source = _child_end(sid, part, tasks, ends) or started
                plan.add(name, agent, uid, source, place | _tool(part))
                steps += 1
                # Calls of one answer run side by side and may end in any order.
                if parallel:
                    chain[-1].append(name)
                else:
                    chain.append([name])
                parallel = True
            elif part["type"] == "step-finish":
                content = {"kind": "inference", "part": part["id"], "finish": part["reason"]}
                content |= {"tokens": part["tokens"], "cost": part["cost"]}
                chain.append([plan.add(name, agent, uid, started, place | content)])
                steps, tokens, parallel = steps + 1, tokens + part["tokens"]["total"], False
            elif part["type"] in ("text", "reasoning") and part.get("time", {}).get("end"):
                name = ("execution.output", sid, part["id"])
                content = {"kind": part["type"], "text": part["text"], "part": part["id"]}
                chain.append([plan.add(name, agent, uid, started, place | content)])
                parallel = False
        if error := _error(answer, answers, following):
            chain.append([plan.add(("agent.error", sid, answer["info"]["id"]), agent, uid, started, place | error)])
    plan.chains.append(chain)
    outcome = _outcome(answers, following)
    if outcome is None and not told.killed:
        return [started]
    content = {"message": uid, "outcome": outcome or "interrupted", "steps": steps, "tokens.total": tokens or None}
    ended = plan.add(("turn.ended", sid, uid), opening["agent"], uid, started, content)
    chain.append([ended])
    return [started, ended]


def _expect_spawn(plan: Expectation, sid: str, part: Json, started: Name, agent: str, place: Json, child: str) -> None:
    asked = part["state"]["input"]
    content = {"child": child, "call": part["callID"], "part": part["id"], "description": asked["description"]}
    content |= {"agent": asked["subagent_type"]} | place
    plan.add(("agent.spawned", sid, part["id"]), agent, place["turn"], started, content)


def _child_end(sid: str, part: Json, tasks: dict[str, list[Name]], ends: dict[str, list[Name]]) -> Name | None:
    """The end of the child's turn that a task call waited for, which is the cause of its step."""
    child = child_of(part)
    if child is None:
        return None
    return ends[child][tasks[child].index(("agent.spawned", sid, part["id"]))]


def _tool(part: Json) -> Json:
    state = part["state"]
    same = {name: state.get(name) for name in ("status", "input", "output", "error", "title")}
    time = {"started_ms": state["time"]["start"], "ended_ms": state["time"]["end"]}
    return {"kind": "tool", "tool": part["tool"], "call": part["callID"], "part": part["id"], **same, **time}


def _overflowed(following: Json | None) -> bool:
    return bool(following and (compaction_of(following) or {}).get("overflow"))


def _error(answer: Json, answers: list[Json], following: Json | None) -> Json | None:
    error = answer["info"].get("error")
    if error is None and _overflowed(following) and answer is answers[-1]:
        return {"name": "ContextOverflowError"}  # OpenCode tells it on its bus only, and continues
    if error is None or error["name"] == "MessageAbortedError":
        return None
    return {"name": error["name"], "reason": error["data"]["message"], "status": error["data"].get("statusCode")}


def _outcome(answers: list[Json], following: Json | None) -> str | None:
    """How a turn ended; None while it runs."""
    errors = {answer["info"]["error"]["name"] for answer in answers if answer["info"].get("error")}
    last = answers[-1]["info"]
    if "MessageAbortedError" in errors:
        return "aborted"
    if _overflowed(following):
        return "continued"
    if errors:
        return "failed"
    if "completed" not in last["time"]:
        return "interrupted" if following else None  # its process died
    return {"tool-calls": "stopped", None: "aborted"}.get(last.get("finish"), "completed")


def _expect_asks(plan: Expectation, told: Family, session: Told) -> None:
    answered = {message["info"]["id"]: message["info"].get("parentID") for message in session.messages}
    agents = {message["info"]["id"]: message["info"]["agent"] for message in session.messages}
    asked: dict[str, str] = {}
    for event in told.asks:
        properties = event["properties"]
        if properties["sessionID"] != session.id:
            continue
        request = properties.get("requestID") or properties["id"]
        content = {"kind": "permission", "request": request}
        if event["type"] == "permission.asked":
            message = properties["tool"]["messageID"]
            uid = asked[request] = answered[message]
            cause = ("turn.started", session.id, uid)
            content |= {"state": "asked", "patterns": properties["patterns"], "call": properties["tool"]["callID"]}
            plan.add(("workflow.checkpoint", session.id, f"{request}:asked"), agents[message], uid, cause, content)
        else:
            cause = ("workflow.checkpoint", session.id, f"{request}:asked")
            content |= {"state": "replied", "reply": properties["reply"]}
            name = ("workflow.checkpoint", session.id, f"{request}:replied")
            who = None if properties["reply"] == "reject" else "user"  # a person needs time to reject
            plan.add(name, who, asked[request], cause, content)


# What is there


def names(records: list[Json]) -> list[Name]:
    """A name for each record."""
    found: list[Name] = []
    seen: Counter[tuple[str, str]] = Counter()
    for record in records:
        type_, payload = record["event"]["type"], record["event"]["payload"]
        session = payload.get("session", "-")
        if type_ in (CREATED, ENDED):
            about = session
        elif type_ in (RESUMED, COMPACTED):
            about = str(seen[type_, session])
            seen[type_, session] += 1
        elif type_ == "execution.step" and "part" not in payload:
            about = _unparted(payload)
        elif type_ in (STARTED, "execution.step", "execution.output", "agent.spawned"):
            about = payload["part"]
        elif type_ in ("human.input", "agent.input", "turn.started", "turn.ended", "agent.error"):
            about = payload.get("message", "-")
        elif type_ == "workflow.checkpoint":
            about = f"{payload['request']}:{payload['state']}"
        else:
            about = record["event"]["idempotency_key"]
        found.append((type_, session, about))
    return found


def other_twin(part: Json, turn: str) -> Json:
    """The one of two parallel calls with one id, `echo one` and `echo two`, that has no part in OpenCode.

    Which one that is depends on which of the two ended first.
    """
    word = {"one\n": "two", "two\n": "one"}[part["state"]["output"]]
    place = {"session": part["sessionID"], "turn": turn, "call": part["callID"]}
    return place | {"input": {"command": f"echo {word}", "description": "d"}, "output": f"{word}\n"}


def _unparted(content: Json) -> str:
    return f"{content['call']}:{content['output']}"


def missing(records: list[Json], plan: Expectation) -> list[Name]:
    """The records that are still missing."""
    there = set(names(records))
    return [name for name in plan.rows if name not in there]


def differences(records: list[Json], plan: Expectation) -> list[str]:
    """All differences between a root's log and the expected one; empty if there are none."""
    found = names(records)
    wrong = [f"missing: {name}" for name in plan.rows if name not in set(found)]
    wrong += [f"{count} times: {name}" for name, count in Counter(found).items() if count > 1]
    wrong += [f"must not be there: {name}" for name in found if name not in plan.rows]
    ids = {record["event"]["id"]: at for at, record in enumerate(records)}
    keys = Counter(record["event"]["idempotency_key"] for record in records)
    wrong += [f"key {key} {count} times" for key, count in keys.items() if count > 1]
    begun = set[tuple[str, str]]()
    for at, (name, record) in enumerate(zip(found, records, strict=True)):
        event, row = record["event"], plan.rows.get(name)
        causing, of_turn = event["causation_id"], (name[1], event["correlation_id"])
        if name[0] == "turn.started":
            begun.add(of_turn)
        cause_at = None if causing is None else ids.get(causing, at)
        facts = [
            ("offset", record["offset"], at),
            ("stream", event["stream_id"], plan.root),
            (
                "traceparent",
                event["traceparent"],
                traceparent(plan.root, name[1], of_turn[1] if of_turn in begun else None),
            ),
            ("source", event["source"], {"agent": event["actor"], "adapter": "opencode"}),
            ("after the one before", record["position"] > (records[at - 1]["position"] if at else -1), True),
            ("cause before it", cause_at is None or cause_at < at, True),
        ]
        if row is not None:
            facts += [
                ("actor", event["actor"], event["actor"] if row.actor is None else row.actor),
                ("correlation", event["correlation_id"], row.turn),
                ("cause", None if cause_at is None else found[cause_at], row.cause),
                *((field, _at(event["payload"], field), value) for field, value in row.content.items()),
            ]
        wrong += [f"{name}: {what} is {is_!r}, must be {must!r}" for what, is_, must in facts if is_ != must]
    return wrong + _disorder(found, plan)


def _at(payload: Json, path: str) -> Any:
    value: Any = payload
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _disorder(found: list[Name], plan: Expectation) -> list[str]:
    place = {name: at for at, name in reversed(list(enumerate(found)))}
    wrong = []
    for chain in plan.chains:
        before: Name | None = None
        for group in chain:
            there = sorted((name for name in group if name in place), key=place.__getitem__)
            if before is not None and there and place[there[0]] < place[before]:
                wrong.append(f"{there[0]} stands before {before}")
            before = there[-1] if there else before
    return wrong


def traceparent(root: str, session: str, turn: str | None) -> str:
    """W3C: the trace is the root's, the span the session's or that of the turn that has begun."""
    trace, span = sha256(f"trace:{root}".encode()).hexdigest()[:32], sha256(f"span:{session}".encode()).hexdigest()[:16]
    if turn is not None:
        span = sha256(f"span:{span}:{turn}".encode()).hexdigest()[:16]
    return f"00-{trace}-{span}-01"
