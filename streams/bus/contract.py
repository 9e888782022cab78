"""The event bus: messages have subjects, subscribers have patterns. The interface of all implementations.

What every bus does (``tests/streams/bus_contract.py``):

* A message is stored before ``publish`` returns; a message id is stored only once.
* The first token of a subject is its mode. ``cmd`` is a work queue: the patterns of two durable names must not overlap,
  ``start`` is ignored, and a handled message is removed. ``str`` messages are never stored; a bus on a server refuses
  them. All other messages are stored.
* Subscribers with different durable names each get every message (multicast). Subscribers that share a durable name
  compete: each message goes to one of them. The bus remembers how far a durable name has come, even while it has no
  subscriber.
* The bus awaits the handler: a subscription handles one message at a time, and a
  message is done when its handler returns. For each durable name, first attempts begin in publishing order.
* A handler that raises gets the message again after its back-off, without holding
  up others; after the last attempt the message becomes a dead letter.

So delivery is at least once, and a handler should record its work under a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

from streams.bus.headers import MAX_HEADERS
from streams.bus.subjects import SubjectError, check_pattern, check_subject, dead_letter_subject

DEAD_SUBJECT: Final = "DS-Dead-Subject"
DEAD_DURABLE: Final = "DS-Dead-Durable"
DEAD_ATTEMPTS: Final = "DS-Dead-Attempts"
DEAD_REASON: Final = "DS-Dead-Reason"

Start = Literal["new", "all"]
"""Where a new durable name begins: with the next message that is published, or with the oldest message that is
stored.
"""


class BusError(Exception):
    """Base of the bus's errors::

    BusError
    ├── BusClosed         the owner closed the bus
    ├── BusUnavailable    the message may not be stored; publish it again with the same message id
    └── DurableConflict   the durable name has another pattern or redelivery, or another name handles these commands
    """


class BusClosed(BusError):
    def __str__(self) -> str:
        return "the bus is closed"


class BusUnavailable(BusError):
    """The server is unreachable. It is safe to publish the message again with the same message id."""


class DurableConflict(BusError):
    """The durable name ``durable`` already exists with other settings, or another durable name already handles the same
    commands.
    """

    def __init__(self, durable: str, reason: str) -> None:
        super().__init__(
            f"durable consumer {durable}: {reason}; use the same settings everywhere, or choose another name"
        )
        self.durable, self.reason = durable, reason


class Retry(Exception):
    """Raised by a handler to try the message again later.

    ``after_s`` replaces the next back-off delay. The attempt still counts towards the limit.
    """

    def __init__(self, after_s: float, reason: str = "") -> None:
        if not 0 <= after_s < float("inf"):
            raise ValueError(f"the delay before a retry must be 0 seconds or more, not {after_s}")
        super().__init__(after_s, reason)
        self.after_s, self.reason = after_s, reason


class Poison(Exception):
    """Raised by a handler to give up on a message, which becomes a dead letter at once; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Redelivery:
    """How many times to try a failing message, and the seconds before each further attempt.

    The last back-off in the list repeats. If the list is empty, there is no back-off.
    """

    max_deliver: int = 5
    backoff_s: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0)

    def __post_init__(self) -> None:
        if self.max_deliver < 1 or any(not 0 <= delay < float("inf") for delay in self.backoff_s):
            raise ValueError(
                "`max_deliver` must be 1 or more, and every delay in `backoff_s` must be a finite number, 0 or more"
            )

    def delay(self, attempt: int) -> float | None:
        """Seconds between the failed ``attempt`` (counted from 1) and the next one; ``None`` if it was the last
        attempt.
        """
        if attempt >= self.max_deliver:
            return None
        return self.backoff_s[min(attempt, len(self.backoff_s)) - 1] if self.backoff_s else 0.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message in the form that a handler gets.

    ``sequence`` is the message's number on the bus, in publishing order. ``attempt`` counts from 1; ``backoff_s`` is
    the wait if this attempt fails, ``None`` if it is the last.
    """

    subject: str
    body: bytes
    headers: Mapping[str, str]
    sequence: int
    attempt: int = 1
    backoff_s: float | None = None


Handler = Callable[[Delivery], Awaitable[None]]


class Published(NamedTuple):
    """The number of a stored message on the bus.

    ``duplicate``: the message id was already known, so nothing was stored, and ``sequence`` is the first message's
    number.
    """

    sequence: int
    duplicate: bool


class Subscription(Protocol):
    @property
    def pattern(self) -> str: ...

    @property
    def durable(self) -> str | None: ...

    async def cancel(self) -> None:
        """Take no more messages. Returns when the running handler has ended, or at once if the handler itself calls it.

        Idempotent. A durable name keeps its place: unhandled messages go to its other subscriptions, or wait for its
        next one.
        """


class EventBus(Protocol):
    """Publishing and subscribing; implemented in ``bridge/nats/jetstream/bus.py``."""

    async def publish(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> Published:
        """Publish a message: store it, whether or not anybody is listening, and deliver it.

        After a cancellation, the message may or may not be published. To be sure, publish it again with the same
        ``message_id``.

        Raises:
            SubjectError: ``subject`` is invalid; for example, it contains a wildcard.
            HeaderError: a header cannot be sent.
            BusUnavailable: the server is unreachable.
            BusClosed: the bus is closed.
        """

    async def subscribe(
        self,
        pattern: str,
        handler: Handler,
        *,
        durable: str | None = None,
        start: Start = "new",
        redelivery: Redelivery | None = None,
    ) -> Subscription:
        """Subscribe ``handler`` to ``pattern``: as soon as this call has returned, the bus awaits ``handler`` for every
        matching message.

        A subscription without a ``durable`` is forgotten when it ends. Without a ``durable``, a message that fails its
        last attempt is counted but does not become a dead letter. ``start`` applies only to a new durable name.

        Raises:
            SubjectError: ``pattern`` is not a pattern, or ``durable`` is not a single token.
            DurableConflict: the durable name has another pattern or redelivery, or ``pattern`` covers commands that
                another subscription handles.
            BusClosed: the bus is closed.
        """

    async def close(self) -> None:
        """Stop all subscriptions after their running handlers end. Idempotent."""


def check_subscription(pattern: str, durable: str | None) -> str:
    """Return ``pattern`` if both ``pattern`` and ``durable`` are valid.

    Raises:
        SubjectError: ``pattern`` is not a pattern, or ``durable`` is not a single token.
    """
    check_pattern(pattern)
    if durable is not None and "." in check_subject(durable):
        raise SubjectError(
            durable, "the name of a durable consumer must be one word, without dots, spaces or wildcards"
        )
    return pattern


def check_shared(durable: str, *, current: object, pattern: str, is_same_redelivery: bool) -> None:
    """Check that a subscription may use an existing durable name, whose pattern is ``current``.

    Raises:
        DurableConflict: the durable name has another pattern or other redelivery settings.
    """
    if current != pattern:
        raise DurableConflict(durable, f"it already exists with the pattern {current}, not {pattern}")
    if not is_same_redelivery:
        raise DurableConflict(durable, "it already exists with other redelivery settings")


def failure_of(delivery: Delivery, error: BaseException) -> tuple[str, float | None]:
    """(why an attempt failed, seconds until the next attempt); the seconds are ``None`` after the last attempt."""
    reason = str(error.reason) if isinstance(error, Poison | Retry) else type(error).__name__
    if isinstance(error, Poison) or delivery.backoff_s is None:
        return reason, None
    return reason, error.after_s if isinstance(error, Retry) else delivery.backoff_s


def dead_letter(delivery: Delivery, durable: str, reason: str) -> tuple[str, dict[str, str]]:
    """(subject, headers) of the dead letter for a message that no attempt of the consumer ``durable`` handled; the body
    stays the same.

    The dead letter keeps the headers, except for the message id, which identifies only the original message. The reason
    is percent-encoded.
    """
    added = {
        DEAD_SUBJECT: _told(delivery.subject),
        DEAD_DURABLE: _told(durable),
        DEAD_ATTEMPTS: str(delivery.attempt),
        DEAD_REASON: _told(reason),
    }
    kept = [(name, value) for name, value in delivery.headers.items() if not name.lower().startswith(_OWN)]
    return dead_letter_subject(durable, delivery.subject), {**dict(kept[: MAX_HEADERS - len(added)]), **added}


def _told(text: str) -> str:
    return quote(text, safe=_PLAIN, errors="replace")[:_TOLD].strip() or "-"


_PLAIN = " !#$&'()*+,/:;<=>?@[]^`{|}"
_TOLD = 500
_OWN = ("nats-", "ds-dead-")
