"""The built-in agent ``messages``: everything that waits until a session or a person has heard it. Pure.

The agent's inputs are commands (``signal``, ``signal.await``, ``message.raise``, ``message.troubles``, ``message.ask``,
``message.answer``, ``message.later``, ``message.return``, ``work.ended``, ``host.ready``, ``tick``), the results of its
effects, the ends of background work, and what capture records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Final

from sidecar.agents.agent import Output
from sidecar.background.intents.works import Asker, user
from sidecar.background.messages import alerts, answers, deliver, person
from sidecar.background.messages.answers import Questions
from sidecar.background.messages.message import State
from sidecar.background.messages.person import Person
from sidecar.background.own_agent import OwnAgent
from sidecar.background.people import effects_in_doubt
from sidecar.notify_config import NotifyConfig
from streams.event import StreamEvent

NAME: Final = "messages"


class MessageAgent(OwnAgent[State]):
    """An ``Agent``.

    Args:
        stages: the channels to a person, see ``Person``.
        config: ``[notify]``.
        asker: says who works in a session.
        zone: see ``Person``.
    """

    events: Sequence[str] = (
        "workflow.checkpoint",
        "human.input",
        "execution.step",
        "turn.ended",
        "lifecycle.session.ended",
        "intent.completed",
        "intent.failed",
        "intent.cancelled",
        "budget.warning",
        "effect.in_doubt",
        "effect.completed",
        "effect.failed",
    )

    def __init__(
        self,
        stages: Sequence[Sequence[str]] = (),
        config: NotifyConfig | None = None,
        asker: Callable[[str], Asker] = user,
        zone: tzinfo | None = None,
    ) -> None:
        self._asker = asker
        self._person = Person(stages, config or NotifyConfig(), zone)
        self._questions = Questions(self._person, bool(self._person.stages), asker)
        self._rings = self._person.config.turns != "off" and bool(self._person.stages)
        super().__init__(NAME, State)

    def deadline(self) -> int | None:
        due = (self._questions.deadline(self.data), self._person.deadline(self.data))
        return min((*deliver.deadlines(self.data), *(at for at in due if at is not None)), default=None)

    # --- deciding ---

    def receive(self, event: StreamEvent) -> list[Output]:
        outputs = self._decide(event)
        return self.data.in_their_chains(event, [*outputs, *person.looks(self.data, outputs)])

    def follow(self, event: StreamEvent, outputs: Sequence[Output]) -> list[Output]:
        return self.data.in_their_chains(event, deliver.follow(self.data, outputs, event.ts))

    def _decide(self, event: StreamEvent) -> list[Output]:
        given, data = event.payload, self.data
        match event.type:
            case "signal":
                return data.signals.comes(event)
            case "signal.await":
                return data.signals.awaits(event)
            case "message.raise":
                return self._person.notify(data, given["message"], given["to"], given["title"], given["text"], event.ts)
            case "message.troubles":
                return alerts.troubled(self._person, data, given["troubles"], event.ts)
            case "message.doubts":
                return self._questions.doubts(data, given["doubts"], event.ts)
            case "message.ask":
                return self._questions.ask(data, given, event.ts)
            case "message.answer":
                return self._questions.answer(data, given, event.ts)
            case "work.ended":  # on another machine
                return [*deliver.ended(given), *alerts.work_ended(self._person, data, event)]
            case "message.later":
                return answers.no_longer([each for each in data.questions() if each.id in given["messages"]])
            case "message.return":
                asked = data.messages.get(given.get("about", ""))
                mine = [asked] if asked is not None and asked.session == given["session"] else []
                return [*deliver.returned(data, event), *answers.no_longer(mine)]
            case "host.ready":
                return deliver.deliver_to(data, given["sessions"])
            case "tick":
                said = self._questions.tick(data, given["now"]) or deliver.tick(data, given["now"])
                return said or self._person.tick(data, given["now"], given.get("focus") or {})
            case "effect.completed" | "effect.failed":
                return self._acted(event)
            case "effect.in_doubt":
                return self._questions.doubted(data, event)
            case "workflow.checkpoint":
                return self._questions.captured(data, event)
            case "human.input":
                began = alerts.turn_began(event) if self._rings else []
                wrote = person.wrote(data, str(given.get("session")), event.ts)
                return [*self._questions.typed(data, event), *wrote, *began]
            case "execution.step":
                return [*deliver.saved(data, event), *self._spent(event)]
            case "turn.ended":
                return self._turn_ended(event)
            case "lifecycle.session.ended":
                return answers.over(data, event, whole=True)
            case "budget.warning":
                return alerts.budget_used(self._person, data, event)
            case "intent.completed" | "intent.failed" | "intent.cancelled":
                return self._work_ended(event)
        return []

    def _work_ended(self, event: StreamEvent) -> list[Output]:
        passed_on = deliver.inherited(self.data, event.payload)
        outputs = [*answers.work_ended(self.data, event), *passed_on, *deliver.ended(event.payload)]
        if event.type == "intent.cancelled":
            return outputs
        lost = [self.data.messages[each.payload["message"]] for each in passed_on if each.type == "message.withdrawn"]
        notified = [output for each in lost for output in alerts.unread(self._person, self.data, event, each)]
        return [*outputs, *alerts.work_ended(self._person, self.data, event), *notified]

    def _acted(self, event: StreamEvent) -> list[Output]:
        if event.actor != NAME:
            return answers.overtaken(self.data, event)
        match event.payload.get("kind"):
            case deliver.WAKE:
                return deliver.woken(self.data, event)
            case person.SHOW | person.SEND:
                return self._person.reached(self.data, event)
            case person.LOOK:
                return person.looked(self.data, event)
            case answers.ANSWER | effects_in_doubt.RESOLVE:
                return self._questions.acted(self.data, event)
        return []

    def _turn_ended(self, event: StreamEvent) -> list[Output]:
        heard = deliver.over(self.data, event, lambda session: not self._asker(session).work)
        if event.payload.get("outcome") != "continued":
            heard += answers.over(self.data, event)
        return heard + (alerts.turn_ended(self._person, self.data, event) if self._rings else [])

    def _spent(self, event: StreamEvent) -> list[Output]:
        if not self._person.config.cost or event.metadata.get("history"):
            return []
        return alerts.spent(self._person, self.data, event)

    # --- remembering ---

    def apply(self, event: StreamEvent) -> None:
        self.data.fold(event)
