"""The event bus: queues of commands, whose messages have subjects and whose subscriptions have patterns. Its interface.

What every bus does (``tests/streams/bus_contract.py``):

* A message is stored before ``publish`` returns. Of several with the same ``Nats-Msg-Id``, only one is stored.
* Subscriptions that share a durable name compete, in any number of processes: each message goes to one of them. While
  the name has no subscription, its messages wait. The patterns of two durable names must not overlap.
* Handlers begin in the order of publishing. Several run at a time, and none holds up the others.
* A message is removed when its handler returns ``Done``. After ``Again``, or an error, it comes again. After the last
  attempt, and after ``Poison``, it is removed once its dead letter is stored.

So delivery is at least once, and a handler must record its work under a key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote

from streams.bus.headers import MAX_HEADERS, MESSAGE_ID
from streams.bus.subjects import dead_letter_subject
from streams.system.retry import Retry

DEAD_SUBJECT: Final = "DS-Dead-Subject"
DEAD_DURABLE: Final = "DS-Dead-Durable"
DEAD_ATTEMPTS: Final = "DS-Dead-Attempts"
DEAD_REASON: Final = "DS-Dead-Reason"


class BusError(Exception):
    """A message was not published, or perhaps it was: publish it again with the same message id."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message in the form that a handler gets it. ``sequence`` is its number in the queue ``stream``, in the order of
    publishing; ``attempt`` counts from 1."""

    subject: str
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    stream: str
    sequence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Done:
    """The message is handled, and what it led to is durable."""


@dataclass(frozen=True, slots=True)
class Again:
    """The message cannot be handled now: deliver it again after ``delay_s``, or after the back-off."""

    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Poison:
    """The message can never be handled: make it a dead letter. ``reason`` is redacted, and ``headers`` are added
    to the dead letter's.

    ``is_known`` says that the dead letter may be stored already, from before a crash.
    """

    reason: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_known: bool = False


Outcome = Done | Again | Poison
Handler = Callable[[Delivery], Awaitable[Outcome]]


class Subscription(Protocol):
    """The place of one handler at a queue. It takes messages while ``run`` runs."""

    is_ready: bool
    """Whether the queue knows the durable name, so that a message sent now will arrive."""
    pending: int
    """How many messages waited in the queue when the latest one was delivered."""
    problem: str
    """Why no messages are arriving at the moment; empty while messages can arrive."""
    counts: Counter[str]
    """``delivered``, and by outcome ``done``, ``again`` and ``poison``; an implementation may count more."""

    @property
    def working(self) -> int:
        """How many messages are being handled."""

    async def run(self) -> None:
        """Handle messages until ``finish``, over outages of the bus. If it is cancelled, the handlers are, too, and
        their messages come again. It can be run again after a cancellation.
        """

    def finish(self) -> None:
        """Take no more messages; ``run`` returns when the running handlers have ended. Idempotent."""


class EventBus(Protocol):
    """Implemented in ``bridge/nats/jetstream/bus.py``."""

    @property
    def retry(self) -> Retry:
        """How failed messages are tried again."""

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> int:
        """Store a message; return its number in its stream, which is the first one's for a known ``Nats-Msg-Id``.

        Raises:
            BusError: the message may not be stored.
        """

    def subscribe(
        self,
        durable: str,
        patterns: Sequence[str],
        handle: Handler,
        retry: Retry | None = None,
        *,
        exclusive: bool = False,
    ) -> Subscription:
        """A subscription, which still has to be run. ``retry`` takes the place of the bus's own.

        ``exclusive``: no other home may take these messages, not even under the same durable name.
        """


def settled(outcome: Outcome, delivery: Delivery, retry: Retry) -> Outcome:
    """What is done about a message whose handler returned ``outcome``: an ``Again`` gets its delay, or has come to the
    last attempt.
    """
    if isinstance(outcome, Again):
        if retry.is_last(delivery.attempt):
            return Poison(f"failed {delivery.attempt} times")
        if outcome.delay_s is None:
            return Again(retry.pause(delivery.attempt))
    return outcome


def dead_letter(delivery: Delivery, durable: str, poison: Poison) -> tuple[str, dict[str, str]]:
    """(subject, headers) of the dead letter for a message that the durable name ``durable`` did not handle; the body
    stays the same.

    The dead letter keeps the headers, except for the message id, which identifies only the original message. The reason
    is percent-encoded.
    """
    added = {
        DEAD_SUBJECT: _printable(delivery.subject),
        DEAD_DURABLE: _printable(durable),
        DEAD_ATTEMPTS: str(delivery.attempt),
        DEAD_REASON: _printable(poison.reason),
        MESSAGE_ID: f"dead:{durable}:{delivery.stream}:{delivery.sequence}",
        **poison.headers,
    }
    others = [(name, value) for name, value in delivery.headers.items() if not name.lower().startswith(_OWN)]
    return dead_letter_subject(durable, delivery.subject), {**dict(others[: MAX_HEADERS - len(added)]), **added}


def _printable(text: str) -> str:
    return quote(text, safe=_PLAIN, errors="replace")[:_LONGEST].strip() or "-"


_PLAIN = " !#$&'()*+,/:;<=>?@[]^`{|}"
_LONGEST = 500
_OWN = ("nats-", "ds-dead-")
