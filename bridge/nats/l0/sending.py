"""The one way to send a ``cmd`` or ``evt`` message: complete headers, a checked depth, counted notes.

``outgoing`` completes and checks a message's headers, and is pure. ``Sender`` publishes such messages on any
``EventBus`` and counts them. A message that breaks the depth rules is refused before it is sent, which ends its chain.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bridge.nats import headers as h
from bridge.nats.headers import ProtocolViolation, fill_headers
from bridge.nats.l0.recursion import MAX_DEPTH, judge
from bridge.nats.subjects import PROTOCOL_VERSION, is_lossy
from streams.bus.contract import EventBus, Published
from streams.bus.subjects import SubjectError
from streams.hashing import canonical

KEPT_WARNINGS: Final = 20
"""How many recent warnings a ``Sender`` keeps."""

_CHECKED: Final = frozenset({"cmd", "evt"})


class Outgoing(NamedTuple):
    """Complete headers of a message. Count the ``notes`` (see ``headers.Filled``); show the ``warnings``."""

    headers: dict[str, str]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def is_checked(subject: str) -> bool:
    """Whether the protocol's rules apply to a subject: they do for ``cmd`` and ``evt``, but not for ``str`` and dead
    letters.
    """
    tokens = subject.split(".")
    return tokens[0] in _CHECKED or (tokens[0] == "cg" and len(tokens) >= 8 and tokens[4] in _CHECKED)


def outgoing(
    given: Mapping[str, str],
    *,
    depth: int,
    origin: str,
    timestamp_ms: int,
    message_type: str,
    sender: str,
    payload: Mapping[str, Any],
    message_id: str | None = None,
    recorded: int | None = None,
    limit: int = MAX_DEPTH,
    version: str = PROTOCOL_VERSION,
) -> Outgoing:
    """The headers of a ``cmd`` or ``evt`` message at ``depth``; ``recorded`` is its chain's depth, if known.

    Raises:
        HeaderError: a given header cannot be sent.
        ProtocolViolation: the depth breaks the rules; ``code`` is ``protocol_violation`` or
            ``recursion_depth_exceeded``. Send nothing.
    """
    headers = {**given, **h.depth_header(depth)}
    if h.RECURSION_DEPTH in given and given[h.RECURSION_DEPTH] != headers[h.RECURSION_DEPTH]:
        raise ProtocolViolation(
            f"the header says depth {given[h.RECURSION_DEPTH][:40]!a}, but the message has depth {depth}"
        )
    decision = judge("enqueue", headers, recorded=recorded, limit=limit)
    if not decision.accepted:
        raise ProtocolViolation(decision.reason, decision.verdict)
    filled = fill_headers(
        headers,
        origin=origin,
        timestamp_ms=timestamp_ms,
        message_type=message_type,
        sender=sender,
        payload=payload,
        message_id=message_id,
        version=version,
    )
    return Outgoing(filled.headers, filled.notes, filled.warnings)


class Sender:
    """Publishes commands and events on a bus, in the name of ``sender``.

    ``recorded`` returns the depth recorded for a correlation id. ``counts``: ``sent``, ``duplicates``, ``refused``,
    and the notes: ``trace_made``, ``trace_invalid``, ``tracestate_dropped``, ``reserved_keys``.
    """

    def __init__(
        self,
        bus: EventBus,
        now_ms: Callable[[], int],
        *,
        sender: str,
        recorded: Callable[[str], int | None] = lambda correlation: None,
        limit: int = MAX_DEPTH,
    ) -> None:
        self._bus, self._now_ms, self._sender = bus, now_ms, sender
        self._recorded, self._limit = recorded, limit
        self.counts: Counter[str] = Counter()
        self.warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)

    async def publish(
        self,
        subject: str,
        payload: dict[str, Any],
        *,
        type_: str,
        depth: int,
        message_id: str,
        headers: Mapping[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> Published:
        """Publish a payload with complete headers. Messages with the same ``message_id`` are stored only once and have
        the same trace.

        Raises:
            SubjectError: the subject is not a command or event subject.
            HeaderError, ProtocolViolation: see ``outgoing``; nothing was sent.
            BusError: see ``EventBus.publish``.
        """
        if not is_checked(subject):
            why = "`str` messages have no headers" if is_lossy(subject) else "it begins with neither `cmd` nor `evt`"
            raise SubjectError(subject, why)
        try:
            made = outgoing(
                headers or {},
                depth=depth,
                origin=message_id,
                timestamp_ms=self._now_ms(),
                message_type=type_,
                sender=self._sender,
                payload=payload,
                recorded=self._recorded(correlation_id) if correlation_id is not None else None,
                limit=self._limit,
            )
        except ProtocolViolation:
            self.counts["refused"] += 1
            raise
        self.counts.update(made.notes)
        self.warnings.extend(f"{subject}: {warning}" for warning in made.warnings)
        published = await self._bus.publish(subject, canonical(payload), headers=made.headers, message_id=message_id)
        self.counts["duplicates" if published.duplicate else "sent"] += 1
        return published
