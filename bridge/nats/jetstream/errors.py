"""Every error the NATS side can raise; what the client library raises becomes one of them in ``client_errors.py``.

::

    NatsError
    ├── NatsUnavailable        no connection, no answer, or no room now; safe to try again later
    │   ├── NoStream           nothing takes in what was published: the stream is missing, or still recovering
    │   └── NotNow             the server answered that it cannot at this moment
    ├── NatsRefused            the settings cannot work: files, library, TLS, token; trying again changes nothing
    └── ServerRefused          the server understood and said no
        ├── NotFound           the stream, consumer or message is not there
        ├── WrongExpectation   the stream is not where the publisher expected it to be
        ├── BatchRefused       an atomic batch was not taken; nothing of it was stored
        │   └── BatchDuplicate because one of its message ids is stored already
        └── StreamRefused      a stream cannot be made as it must be

Errors carry their facts as fields and build their text in ``__str__``. No
token, password or payload appears in a text. Pure.
"""

from __future__ import annotations

from typing import Any


class NatsError(Exception):
    """Root of all errors of the NATS side."""


class NatsUnavailable(NatsError):
    """Nothing is known to be wrong with what was asked; ask again later, with the same message ids."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)
        self.reason, self.hint = reason, hint

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}" if self.hint else self.reason


class NoStream(NatsUnavailable):
    """Nobody took in the message. A server that just started may still be reading its streams."""


class NotNow(NatsUnavailable):
    """The server answered that it cannot do it at this moment: no room, busy, or still removing what was there."""


class NatsRefused(NatsError):
    """What is configured cannot work, and nothing was sent: ``reason``, and what to do in ``hint``."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason, self.hint = reason, hint

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}"


class ServerRefused(NatsError):
    """The server's no: ``code`` is its own number for the reason (0: none given), ``what`` what was asked of it."""

    def __init__(self, what: str, code: int, description: str) -> None:
        super().__init__(what, code, description)
        self.what, self.code, self.description = what, code, description

    def __str__(self) -> str:
        number = f" (NATS error {self.code})" if self.code else ""
        return f"{self.what}: the server says: {self.description}{number}"


class NotFound(ServerRefused):
    """The stream, consumer or message is not on the server."""


class WrongExpectation(ServerRefused):
    """Another publisher was first, or the stream is another one; read it and decide again."""


class BatchRefused(ServerRefused):
    """Nothing of the batch was stored; its messages can be published one by one."""


class BatchDuplicate(BatchRefused):
    """A message id of the batch is stored already; published one by one, the others are taken."""


class StreamRefused(ServerRefused):
    """The stream cannot be made, or changed into, what it must be; the description says why and what to do."""


def too_large() -> NatsRefused:
    """The error for a message that is larger than the server takes."""
    return NatsRefused("a message is larger than the server takes", "raise its max_payload")


_NOT_FOUND = frozenset({10014, 10037, 10059})
_EXPECTATION = frozenset({10060, 10070, 10071, 10164})
_BATCH = frozenset({10174, 10175, 10176, 10177, 10178, 10179, 10199, 10200})
BATCH_DUPLICATE = 10201
_TEMPORARY = frozenset({10002, 10008, 10023, 10047, 10077})
"""No room, or busy: of the server's numbers those that may be gone the next time."""


def refusal(what: str, error: dict[str, Any]) -> NatsError:
    """The error for a server's ``{"code", "err_code", "description"}``; ``what`` was asked of it."""
    number = error.get("err_code")
    code = number if isinstance(number, int) else 0
    description = str(error.get("description") or "no reason given")[:500]
    if code in _NOT_FOUND:
        return NotFound(what, code, description)
    if code in _EXPECTATION:
        return WrongExpectation(what, code, description)
    if code == BATCH_DUPLICATE:
        return BatchDuplicate(what, code, description)
    if code in _BATCH:
        return BatchRefused(what, code, description)
    if code in _TEMPORARY or error.get("code") == 503:
        return NotNow(str(ServerRefused(what, code, description)), "it is tried again")
    return ServerRefused(what, code, description)
