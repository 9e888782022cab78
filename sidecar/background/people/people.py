"""Questions, alerts and signals between a person and a model, through the agent ``messages``."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Final, Literal, Protocol, TypeVar

from pydantic import Field

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.deciding import Handled
from sidecar.agents.effects.runner import EffectKind, Resolution
from sidecar.agents.runtime import Runtime
from sidecar.background.effects import HostActs, Repeatable, send
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.intents.works import Asker, user
from sidecar.background.messages import alerts, answers, person, signals
from sidecar.background.messages.agent import NAME, MessageAgent
from sidecar.background.messages.answers import answer_text, as_row, is_own
from sidecar.background.messages.deliver import notice_id, waiting_sessions
from sidecar.background.messages.message import ASKS, TOAST, Message
from sidecar.background.people import sentences
from sidecar.background.people.answer_page import AnswerPage
from sidecar.background.people.answerers import LINK, Answerers, Who
from sidecar.background.people.channels import ChannelError, Channels
from sidecar.background.people.consent import MAX_TEXT, PERMISSION, may_answer
from sidecar.background.people.effects_in_doubt import DECISIONS, RESOLVE, identifier_of
from sidecar.background.people.terminals import read_focus
from sidecar.background.reading import find_checkpoint, read_checkpoints, waiting
from sidecar.background.stream_read import read_lines
from sidecar.background.tools import AskArgs, NotifyArgs, ReadArgs
from sidecar.background.unredacted import Said
from sidecar.components import until
from sidecar.config import Deed
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.ask_text import checkpoint_id
from sidecar.read.find_by_id import open_reader
from sidecar.read.rendering.agents import agent_troubles
from sidecar.read.wording import cut_middle, visible
from sidecar.registry import Args, NoArgs, Requests
from streams.bus.command import Command
from streams.identity import Identity

T = TypeVar("T")

ANSWER_SECONDS: Final = 25.0
"""How many seconds an answer may take to reach OpenCode, including all attempts."""

TOAST_SECONDS: Final = 5.0
QUEUED_SECONDS: Final = 5.0

MOST_ASKS: Final = 5
"""How many questions of one session may wait for an answer at a time."""

MOST_TOASTS: Final = 20
"""How many of the newest toasts are kept for terminals that read them."""


class AnswerArgs(Args):
    checkpoint: str = Field(min_length=1, max_length=200, description="its id, or a unique prefix of it")
    answer: list[str] = Field(
        min_length=1,
        max_length=50,
        description="as `--answer` of `durable-stream checkpoints`",
    )
    channel: Literal["command-line", "page"] = Field(default="command-line", description="where the person gave it")
    proof: str = Field(
        default="",
        max_length=64,
        description="that a person gave it in OpenCode's terminal: HMAC-SHA256 of id and answers, by the home's token",
    )


class SignalArgs(Args):
    name: str = Field(pattern=signals.SIGNAL, description="its name")
    payload: Any = Field(default=None, description="what everyone who waits for it gets")
    key: str | None = Field(default=None, max_length=300, description="requests with the same key count once")


class TeamDoubts(Protocol):
    """What knows the effects in doubt of the team's agents; see ``TeamAgents``."""

    async def doubts(self) -> list[dict[str, Any]] | None: ...
    async def resolve(self, given: Mapping[str, Any], how: Resolution, *, by: str, mark: str) -> bool: ...


class People:
    """The part of the orchestration that talks to people. Call ``keep_time`` often.

    ``runtime`` returns the runtime that runs the agent ``messages``, and ``worker`` the status of all agents.
    """

    def __init__(
        self,
        home: Home,
        config: NotifyConfig,
        identity: Identity,
        hosts: Hosts,
        said: Said,
        runtime: Callable[[], Runtime],
        worker: Callable[[], Mapping[str, Any]] = dict,
        linked: Callable[[], Iterable[int]] = tuple,
        scripts_may: Collection[Deed] = (),
        asker: Callable[[str], Asker] = user,
        team: Callable[[], TeamDoubts | None] = lambda: None,
    ) -> None:
        self._team = team
        self._home, self._identity, self._said = home, identity, said
        self._runtime, self._worker = runtime, worker
        self.answerers = Answerers(linked, scripts_may, home.read_token)
        self.channels, self._turns = Channels(config), config.turns
        self._asker = asker
        self.messages = MessageAgent(self.channels.stages, config, asker)
        self.toasts: deque[dict[str, str]] = deque(maxlen=MOST_TOASTS)
        self.page = AnswerPage(config, home.read_token, identity.now_ms, self._known, self._by_link)
        self.kinds: Mapping[str, EffectKind] = {
            **HostActs(hosts, said, self.toasts.append).kinds,
            person.LOOK: Repeatable(self._look),
            person.SEND: Repeatable(partial(send, self.channels, self.page.link)),
            RESOLVE: Repeatable(self._resolve),
        }
        self._since: dict[str, float] = {}
        """Since when each trouble of an agent has lasted. One that may pass is raised only if it lasts long enough."""
        self._lasts_seconds = config.escalate_after_seconds
        self._waited: Counter[tuple[str, str]] = Counter()
        """How many calls in this process are waiting, by the session that asked and the checkpoint."""

    async def start(self, stack: AsyncExitStack) -> None:
        await self.page.start(stack)

    def owes(self) -> bool:
        """Whether somebody should get a message now, or may still use the link in an earlier one."""
        known = self.messages.data.messages.values()
        waits = self.page.is_on and any(each.is_open and each.is_question for each in known)
        return waits or any(each.state == "sending" or (each.is_open and each.due is not None) for each in known)

    async def keep_time(self) -> None:
        """Send a tick if a deadline has passed, and note which calls are no longer waiting, and which
        agents are in trouble."""
        deadline = self.messages.deadline()
        if deadline is not None and deadline <= (now := self._identity.now_ms()):
            await self._command(f"tick:{now}", "tick", {"now": now, **await self._focus()})
        waiting = [each for each in self.messages.data.questions() if each.waiting]
        if left := [each.id for each in waiting if (each.session, each.id) not in self._waited]:
            await self._command(f"later:{self._identity.ulid()}", "message.later", {"messages": left})
        await self._note_troubles()
        await self._note_doubts()

    async def _note_doubts(self) -> None:
        """Ask about the effects in doubt of the team's agents, which another home may have left so."""
        team = self._team()
        if team is None or not self._runtime().is_known or (found := await team.doubts()) is None:
            return
        wanted = {identifier_of({**each, "key": each.get("idempotency_key")}) for each in found}
        known = {each.id for each in answers.team_doubts(self.messages.data) if each.state != "answering"}
        if known - wanted or wanted - self.messages.data.messages.keys():
            await self._command(f"doubts:{self._identity.ulid()}", "message.doubts", {"doubts": found})

    async def _note_troubles(self) -> None:
        if not self._runtime().is_known or not self.channels.names:
            return
        found, known = (
            [each for each in agent_troubles(self._worker()) if not each.is_asked],
            alerts.troubles(self.messages.data),
        )
        now = asyncio.get_running_loop().time()
        self._since = {each.about: self._since.get(each.about, now) for each in found}
        lasted = {about for about, since in self._since.items() if now - since >= self._lasts_seconds}
        found = [each for each in found if not each.may_pass or each.about in known or each.about in lasted]
        if {each.about for each in found} != known:
            payload = {"troubles": [each._asdict() for each in found]}
            await self._command(f"troubles:{self._identity.ulid()}", "message.troubles", payload)

    async def _focus(self) -> dict[str, Any]:
        """The focus of the terminals, for a tick; empty unless a turn waits for it."""
        known = self.messages.data.messages.values()
        if not any(each.kind == "turn" and each.due is not None for each in known):
            return {}
        return {"focus": await asyncio.to_thread(read_focus, self._home.path)}

    async def _look(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``opencode.look``: whether a terminal that shows a session is in front now. Result: ``{"looks": bool}``."""
        return {"looks": read_focus(self._home.path).get(args["session"]) == "front"}

    async def _resolve(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``effect.resolve``: carries out what a person decided about an effect in doubt. Result: as
        ``opencode.answer``.

        The decision is in the log in one batch with this request, so it survives every process. The ledger knows each
        decision by its mark, so it is carried out once.
        """
        which, how = {**args["effect"], "request": args["request"]}, DECISIONS[args["answer"][0]]
        where: Runtime | TeamDoubts | None = self._runtime() if which.get("log") != answers.TEAM else self._team()
        is_settled = where is not None and await where.resolve(which, how, by=args["by"], mark=key)
        return {"status": "answered" if is_settled else "gone"}

    # --- tools ---

    async def notify(self, session: str, args: NotifyArgs, key: str) -> str:
        """The tool ``notify_user``: raise one alert for each ``key``, and say where it was shown."""
        identifier = f"alr_{sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
        payload = {"message": identifier, "to": self._asker(session).tell, "title": "OpenCode", "text": args.message}
        await self._command(f"alert:{identifier}", "message.raise", payload)

        def toast() -> str:
            return self.messages.data.messages[identifier].channels.get(TOAST, "")

        await until(lambda: toast() != "sending", TOAST_SECONDS)
        if toast() == "sent":
            return "The user's OpenCode shows it."
        if self.channels.names:
            return "No OpenCode says that it shows this; it is being sent to the user's other channels."
        return "Nobody is known to have seen it: no OpenCode says that it shows it. `durable-stream notices` lists it."

    async def ask(self, session: str, args: AskArgs, call: str = "", turn: str = "", seconds: float = 600.0) -> str:
        """The tool ``checkpoint_ask``: ask, and wait for the answer for a while. ``call`` is OpenCode's id of the tool
        call, and ``turn`` the user message that its turn answers."""
        identifier, number = "", 0
        while not identifier or self._was_heard(identifier):
            # A question that is asked again keeps its checkpoint until the answer has been received. After that, it
            # gets a new checkpoint.
            identifier, number = checkpoint_id(session, f"{args.question}#{number}"), number + 1
        self._refuse_crowd(session, identifier)
        text, left_out = cut_middle(visible(args.question), MAX_TEXT)
        payload = {
            "message": identifier,
            "session": session,
            "turn": turn,
            "text": text,
            "left_out": left_out,
            "options": [visible(option) for option in args.options],
            "default": args.default,
            "expires": self._identity.now_ms() + round(args.minutes * 60_000),
        }
        return await self._await_answer(identifier, payload, call, seconds)

    def _was_heard(self, checkpoint: str) -> bool:
        known, notice = (self.messages.data.messages.get(each) for each in (checkpoint, notice_id(checkpoint)))
        return known is not None and not known.is_open and (notice is None or not notice.is_open)

    def _refuse_crowd(self, session: str, identifier: str) -> None:
        """Refuse a question of a session that waits for too many answers, or a model could bury a person in them."""
        ids, known = self.messages.data.messages, self.messages.data.questions()
        open_ = {c.id for c in known if c.kind == "ask" and c.session == session and c.is_open}
        # A question that was asked at the same time may not be in the agent's state yet.
        open_ |= {each for of, each in self._waited if of == session and each not in ids}
        if identifier not in open_ and len(open_) >= MOST_ASKS:
            raise RequestError(
                "too-many-asks",
                f"{MOST_ASKS} questions of this session wait for an answer already; ask again when the user has "
                "answered one, or end your turn",
            )

    async def wait_for_checkpoint(self, known: Message, session: str, call: str, turn: str, seconds: float) -> str:
        """The tool ``wait_for`` with the id of a checkpoint, called by ``session``.

        If another session asked, the call only looks: the answer still goes to the session that asked.
        """
        if session == known.session:
            payload = {"message": known.id, "session": session, "turn": turn}
            return await self._await_answer(known.id, payload, call, seconds)

        def now() -> Message:
            return self.messages.data.messages.get(known.id, known)

        if not await until(lambda: not now().is_open, seconds):
            return f"Nobody has answered yet. Call wait_for with {known.id} to wait longer."
        return self._said.in_message(now().said, _how_it_ended(now()))

    async def wait_for_signal(self, name: str, session: str, root: str, seconds: float) -> str:
        """The tool ``wait_for`` with the name of a signal. A signal that came before the call counts, too.

        ``root`` is the session at the top of the caller's tree.

        Raises:
            RequestError: no signal can have this name, or the tree waits for too many signals already.
        """
        if re.fullmatch(signals.SIGNAL, name) is None:
            raise RequestError("bad-signal", f"{name[:40]!a} is neither an id nor the name of a signal")
        if await until(lambda: name in self.messages.data.signals.known, seconds):
            signal = self.messages.data.signals.known[name]
            age = max(self._identity.now_ms() - signal.raised, 0) // 1000
            return f"Signal {name} came {age} s ago. Payload:\n{signals.as_json(signal.payload)}"
        later = f"Signal {name} has not come yet. Call wait_for again to wait longer"
        if self._asker(session).intent is not None:
            return f"{later}, and do not end before."
        awaited = {"name": name, "session": session, "root": root}
        await self._command(f"await:{self._identity.ulid()}", "signal.await", awaited)
        known = self.messages.data.signals
        if session not in known.awaited.get(name, ()) and name not in known.known:
            many = f"this session and its background work already wait for {signals.MOST_AWAITED} others"
            raise RequestError("too-many-signals", f"{later}; it will come as no message, because {many}")
        return f"{later}, or end your turn: the signal will come as a message."

    async def returned(self, message: str, session: str, call: str, turn: str) -> None:
        """Note that a tool call of the session that a message is for returned its content."""
        # The agent takes the message from the log a moment after what the message tells is known.
        if await until(lambda: message in self.messages.data.messages, QUEUED_SECONDS):
            about = {"message": message, "session": session, "call": call, "turn": turn}
            await self._command(f"return:{self._identity.ulid()}", "message.return", about)

    async def reached(self, sessions: Sequence[str]) -> None:
        """Send what waits for sessions, which an OpenCode that has just linked can reach."""
        if waiting := sorted(waiting_sessions(self.messages.data) & set(sessions)):
            command = f"host:{self._identity.ulid()}"
            await self._command(command, "host.ready", {"sessions": waiting})

    async def read(self, args: ReadArgs, session: str) -> str:
        return await read_lines(open_reader(self._home.store_path), session, args.stream, args.last)

    async def _await_answer(self, identifier: str, payload: dict[str, Any], call: str, seconds: float) -> str:
        with counted(self._waited, (payload["session"], identifier)):
            await self._command(f"ask:{self._identity.ulid()}", "message.ask", payload)

            def is_over() -> bool:
                # If the turn was stopped, nothing waits for this call any more, and the answer is sent instead.
                now = self.messages.data.messages.get(identifier)
                return now is not None and not (now.is_open and now.waiting)

            await until(is_over, seconds)
            known = self.messages.data.messages[identifier]
            if not known.is_open and known.waiting:
                about = {"message": notice_id(identifier), "about": identifier, "session": known.session}
                about |= {"call": call, "turn": payload["turn"]}
                await self._command(f"return:{self._identity.ulid()}", "message.return", about)
            notice = self.messages.data.messages.get(notice_id(identifier))
            if not known.is_open and (notice is None or notice.state in ("returned", "seen")):
                return self._said.in_message(known.said, _how_it_ended(known))
        later = f"Nobody has answered yet. Call wait_for with {identifier} to wait longer."
        if known.intent is not None:
            return f"{later} Do not end before: you get the answer from that call."
        return f"{later} Or end your turn: the answer will come as a message."

    # --- requests ---

    def register(self, requests: Requests) -> None:
        requests.register("checkpoints", NoArgs, self._listed, "`checkpoints`, oldest first")
        requests.register("checkpoint_answer", AnswerArgs, self.answer, "the checkpoint")
        requests.register("signal", SignalArgs, self.signal, "`name`, `count`")
        requests.register("notify_test", NoArgs, self.test, "`channels`: `channel`, `ok`, `error`; `turns`")

    async def _listed(self, args: NoArgs) -> dict[str, Any]:
        listed = await read_checkpoints(open_reader(self._home.store_path))
        return {"checkpoints": [as_row(each) for each in listed]}

    async def waiting(self) -> list[Message]:
        return await waiting(open_reader(self._home.store_path))

    def answered(self, session: str, request: str, answer: dict[str, Any]) -> str:
        """Who gave an answer to OpenCode through the sidecar; empty if nobody did. See ``Answered``."""
        known = self._known(checkpoint_id(session, request))
        return known.by if known is not None and is_own(known, answer) else ""

    def _known(self, checkpoint: str) -> Message | None:
        return self.messages.data.messages.get(checkpoint)

    async def _by_link(self, checkpoint: str, answer: list[str]) -> None:
        await self.answer(AnswerArgs(checkpoint=checkpoint, answer=answer), LINK, most=MAX_TEXT)

    async def answer(self, args: AnswerArgs, who: Who | None = None, *, most: int | None = None) -> dict[str, Any]:
        """Answer a checkpoint as a person; returns when OpenCode has accepted the answer.

        Without ``who``, the answer comes from the command line. ``most`` is how many characters of the text the person
        was shown, if not all.

        Raises:
            RequestError: there is no such checkpoint, it already has an answer, the answer is not acceptable or not
                allowed, or OpenCode cannot be reached.
        """
        if who is None:
            who = await self.answerers.judged("answer", args.checkpoint, args.answer, args.proof, args.channel)
        known = await find_checkpoint(open_reader(self._home.store_path), args.checkpoint)
        if not known.is_open:
            raise _late(known)
        _check_answer(known, args.answer)
        if most is not None and not may_answer(known, args.answer, most):
            raise RequestError(
                "cut-text",
                f"{known.id} is too long to be shown whole here, so here it can only be rejected; "
                f"`durable-stream checkpoints {known.id}` shows it, and --answer answers it",
            )
        key = self._identity.ulid()
        ask = {**{name: getattr(known, name) for name in ASKS}, "ts": known.queued}
        payload = {"message": known.id, "answer": list(args.answer), "by": who.by, "via": who.via}
        said = self._said.keep("answer", args.answer)[1]
        payload |= {"key": key, "ask": ask} | ({"said": said} if said else {})
        handled = await self._command(f"answer:{key}", "message.answer", payload)
        if any(record.event.type == "message.late" for record in handled.records):
            raise _late(self.messages.data.messages[known.id])
        await until(lambda: self.messages.data.messages[known.id].state != "answering", ANSWER_SECONDS)
        known = self.messages.data.messages[known.id]
        if not known.is_open and (known.state != "answered" or known.key != key):
            raise _late(known)
        if known.is_open:
            if known.why:
                raise RequestError(
                    "not-delivered", f"OpenCode did not accept the answer to {known.id}: {known.why}"[:500]
                )
            late = f"the OpenCode that asked {known.id} cannot be reached; try again"
            if known.effect:  # perhaps its kind is just being asked what happened
                late = f"the decision about {known.id} is recorded, but not carried out yet; `checkpoints` shows when"
            raise RequestError("not-delivered", late)
        return as_row(known)

    async def signal(self, args: SignalArgs) -> dict[str, Any]:
        """Raise a signal. The signal is durable when this method returns."""
        key = args.key or self._identity.ulid()
        await self._command(f"signal:{key}", "signal", {"name": args.name, "payload": args.payload})
        return {"name": args.name, "count": self.messages.data.signals.known[args.name].count}

    async def test(self, args: NoArgs) -> dict[str, Any]:
        """Send a test message to every configured channel, immediately and only once."""
        found = []
        for channel in self.channels.names:
            error = ""
            try:
                await self.channels.send(channel, "Durable Stream", "This channel works.")
            except ChannelError as failed:
                error = str(failed)
            found.append({"channel": channel, "ok": not error, "error": error})
        if self.page.is_on or self.page.fault:
            found.append({"channel": "links", "ok": not self.page.fault, "error": self.page.fault})
        return {"channels": found, "turns": self._turns}

    async def _command(self, key: str, type_: str, payload: dict[str, Any]) -> Handled:
        return await self._runtime().command(NAME, Command(key, type_, payload, sender="sidecar"))


@contextmanager
def counted(counter: Counter[T], key: T) -> Iterator[None]:
    """Count one more of ``key`` while the block runs."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _how_it_ended(known: Message) -> str:
    if known.state == "withdrawn":
        return "It was withdrawn before anybody answered."
    return answer_text(known.answer, known.state == "expired", known.by)


def _late(known: Message) -> RequestError:
    how = sentences.how_it_stands(known)
    if known.state == "answered":
        how = f"{how} by {known.by or 'user'}: {'; '.join(known.answer)}"
    return RequestError("already-answered", f"{known.id} no longer accepts an answer: {how}"[:500])


def _check_answer(known: Message, answer: list[str]) -> None:
    if known.kind == "permission":
        if answer[0] not in PERMISSION or len(answer) > (2 if answer[0] == "reject" else 1):
            raise RequestError(
                "unfit-answer",
                "answer a permission request with `once`, `always` or `reject`; only `reject` may be followed by a "
                "message",
            )
    elif known.kind == "question":
        if answer != ["reject"] and len(answer) != known.questions:
            wanted = "1 answer" if known.questions == 1 else f"{known.questions} answers, one for each question"
            raise RequestError("unfit-answer", f"give {wanted}, or `reject`")
        only = next((only for only, given in zip(known.fixed, answer, strict=False) if only and given not in only), ())
        if only and answer != ["reject"]:
            raise RequestError("unfit-answer", f"give one of these answers, or `reject`: {', '.join(map(repr, only))}")
    elif known.kind == "effect":
        if len(answer) != 1 or answer[0] not in DECISIONS:
            raise RequestError("unfit-answer", f"give one of these answers: {', '.join(map(repr, DECISIONS))}")
    elif len(answer) != 1 or not answer[0]:
        raise RequestError("unfit-answer", "give one answer, which must not be empty")
