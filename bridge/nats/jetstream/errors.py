"""Every error about NATS; ``client_errors.py`` turns the client library's errors into these errors.

::

    NatsError                   nats-error
    ├── NatsUnavailable         nats-unavailable        no connection, no answer or no room; safe to retry
    │   │                       nats-unreachable        no connection to the server
    │   │                       nats-wrong-server       another program answers on our server's port
    │   │                       nats-busy               the server cannot carry out the request right now
    │   └── NoStream            nats-no-stream          nothing answers: no JetStream, or the stream is missing
    ├── NatsRefused             nats-refused            the settings cannot work; a retry changes nothing
    │                           nats-login-refused      the server rejected the token or the credentials
    │                           nats-tls-failed         no TLS, or a certificate that failed verification
    │                           nats-file-refused       a certificate, key or credentials file does not work
    │                           nats-message-too-large  a message exceeds the server's max_payload
    └── ServerRefused           nats-server-refused     the server understood the request and refused it
        ├── NotFound            nats-not-found          no such stream, consumer or message
        ├── WrongExpectation    nats-wrong-expectation  the stream is not in the state that the publisher expected
        ├── BatchRefused        nats-batch-refused      messages were not stored as an atomic batch
        └── StreamRefused       nats-stream-refused     a stream or consumer cannot have the required settings

``code`` identifies the error and never changes; the text of an error may change. No token, password or payload appears
in a text. Pure.
"""

from __future__ import annotations

from typing import Any, ClassVar

from streams.bus.contract import BusError


class NatsError(BusError):
    """Root of all errors about NATS. ``hint`` says what to do; ``code`` may replace that of the class."""

    code: ClassVar[str] = "nats-error"

    def __init__(self, reason: str, hint: str = "", code: str = "") -> None:
        super().__init__(f"{reason}; {hint}" if hint else reason)
        self.reason, self.hint = reason, hint
        if code:
            self.code = code  # type: ignore[misc]


class NatsUnavailable(NatsError):
    """The request may be fine: retry it later, with the same message ids."""

    code = "nats-unavailable"


class NoStream(NatsUnavailable):
    """Nothing answered on the subject. A server that just started may still be reading its streams."""

    code = "nats-no-stream"


class NatsRefused(NatsError):
    """The settings cannot work, and nothing was sent."""

    code = "nats-refused"


def message_too_large() -> NatsRefused:
    reason, hint = "the message is larger than the NATS server accepts", "increase `max_payload` on the server"
    return NatsRefused(reason, hint, "nats-message-too-large")


class ServerRefused(NatsError):
    """The server refused the request ``what``. ``server_code`` is its own error number, or 0."""

    code = "nats-server-refused"

    def __init__(self, what: str, server_code: int, description: str) -> None:
        number = f" (NATS error {server_code})" if server_code else ""
        super().__init__(f"{what}: the server refused: {description}{number}")
        self.what, self.server_code, self.description = what, server_code, description


class NotFound(ServerRefused):
    code = "nats-not-found"


class WrongExpectation(ServerRefused):
    """Another publisher was faster, or the stream was replaced by a different one. Read the stream and decide again."""

    code = "nats-wrong-expectation"


class BatchRefused(ServerRefused):
    """The messages were not stored as a batch. Publish them one by one; their ids prevent duplicates."""

    code = "nats-batch-refused"


class StreamRefused(ServerRefused):
    """The stream or consumer cannot get the required settings; the description says why and what to do."""

    code = "nats-stream-refused"


_NOT_FOUND = frozenset({10014, 10037, 10059})
_EXPECTATION = frozenset({10060, 10070, 10071, 10164})
_BATCH = frozenset({10174, 10175, 10176, 10177, 10178, 10179, 10199, 10200, 10201})
_TEMPORARY = frozenset({10002, 10008, 10023, 10047, 10049, 10077})
"""The server's error numbers for "no room", "busy", and a stream whose directory it is still removing."""


def refusal(what: str, error: dict[str, Any]) -> NatsError:
    number = error.get("err_code")
    code = number if isinstance(number, int) else 0
    description = str(error.get("description") or "no reason given")[:500]
    if code in _NOT_FOUND:
        return NotFound(what, code, description)
    if code in _EXPECTATION:
        return WrongExpectation(what, code, description)
    if code in _BATCH:
        return BatchRefused(what, code, description)
    if code in _TEMPORARY or error.get("code") == 503:
        return NatsUnavailable(str(ServerRefused(what, code, description)), "the request will be retried", "nats-busy")
    return ServerRefused(what, code, description)
