"""Every error about NATS; ``client_errors.py`` turns the client library's errors into these errors.

::

    NatsError                   nats-error
    ├── NatsUnavailable         nats-unavailable        no connection, no answer or no room; safe to retry
    │   ├── Unreachable         nats-unreachable        no connection to the server
    │   ├── WrongServer         nats-wrong-server       another program answers on our server's port
    │   ├── NoStream            nats-no-stream          no stream stores the subject: missing, or still recovering
    │   └── ServerBusy              nats-busy               the server cannot carry out the request right now
    ├── NatsRefused             nats-refused            the settings cannot work; a retry changes nothing
    │   ├── LoginRefused        nats-login-refused      the server rejected the token or the credentials
    │   ├── TlsFailed           nats-tls-failed         no TLS, or a certificate that failed verification
    │   ├── FileRefused         nats-file-refused       a certificate, key or credentials file does not work
    │   └── MessageTooLarge     nats-message-too-large  a message exceeds the server's max_payload
    └── ServerRefused           nats-server-refused     the server understood the request and refused it
        ├── NotFound            nats-not-found          no such stream, consumer or message
        ├── WrongExpectation    nats-wrong-expectation  the stream is not in the state that the publisher expected
        ├── BatchRefused        nats-batch-refused      messages were not stored as an atomic batch
        │   └── BatchDuplicate  nats-batch-duplicate    one of its message ids is already stored
        └── StreamRefused       nats-stream-refused     a stream or consumer cannot have the required settings

``code`` identifies the class and never changes; the text of an error may change. Errors carry their facts as fields and
build the text in ``__str__``. No token, password or payload appears in a text. Pure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from streams.bus.contract import BusError


class NatsError(BusError):
    """Root of all errors about NATS."""

    code: ClassVar[str] = "nats-error"


class NatsUnavailable(NatsError):
    """The request may be fine: retry it later, with the same message ids."""

    code = "nats-unavailable"

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason, hint)
        self.reason, self.hint = reason, hint

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}" if self.hint else self.reason


class Unreachable(NatsUnavailable):
    code = "nats-unreachable"


class WrongServer(NatsUnavailable):
    """Another program answers on the port of our server. Nothing was sent to that program."""

    code = "nats-wrong-server"


class NoStream(NatsUnavailable):
    """No stream stored the message. A server that just started may still be reading its streams."""

    code = "nats-no-stream"


class ServerBusy(NatsUnavailable):
    """The server cannot carry out the request right now: it has no room, is busy, or is still removing older data."""

    code = "nats-busy"


class NatsRefused(NatsError):
    """The settings cannot work, and nothing was sent. ``reason`` says why, and ``hint`` says what to do."""

    code = "nats-refused"

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.reason, self.hint = reason, hint

    def __str__(self) -> str:
        return f"{self.reason}; {self.hint}"


class LoginRefused(NatsRefused):
    code = "nats-login-refused"


class TlsFailed(NatsRefused):
    code = "nats-tls-failed"


class FileRefused(NatsRefused):
    """A certificate, key or credentials file is missing or unusable; ``path`` says which."""

    code = "nats-file-refused"

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(reason, hint)
        self.path = path


class MessageTooLarge(NatsRefused):
    code = "nats-message-too-large"

    def __init__(self) -> None:
        super().__init__("the message is larger than the NATS server accepts", "increase `max_payload` on the server")


class ServerRefused(NatsError):
    """The server refused the request ``what``. ``server_code`` is the server's own error number; 0 if the server gave
    none."""

    code = "nats-server-refused"

    def __init__(self, what: str, server_code: int, description: str) -> None:
        super().__init__(what, server_code, description)
        self.what, self.server_code, self.description = what, server_code, description

    def __str__(self) -> str:
        number = f" (NATS error {self.server_code})" if self.server_code else ""
        return f"{self.what}: the server refused: {self.description}{number}"


class NotFound(ServerRefused):
    code = "nats-not-found"


class WrongExpectation(ServerRefused):
    """Another publisher was faster, or the stream was replaced by a different one. Read the stream and decide again."""

    code = "nats-wrong-expectation"


class BatchRefused(ServerRefused):
    """The messages were not stored as a batch. Publish them one by one; their ids prevent duplicates."""

    code = "nats-batch-refused"


class BatchDuplicate(BatchRefused):
    """A message id of the batch is already stored. The other messages are accepted if published one by one."""

    code = "nats-batch-duplicate"


class StreamRefused(ServerRefused):
    """The stream or consumer cannot get the required settings; the description says why and what to do."""

    code = "nats-stream-refused"


_NOT_FOUND = frozenset({10014, 10037, 10059})
_EXPECTATION = frozenset({10060, 10070, 10071, 10164})
_BATCH = frozenset({10174, 10175, 10176, 10177, 10178, 10179, 10199, 10200})
BATCH_DUPLICATE = 10201
_TEMPORARY = frozenset({10002, 10008, 10023, 10047, 10077})
"""The server's error numbers for "no room" and "busy", which may be temporary."""


def refusal(what: str, error: dict[str, Any]) -> NatsError:
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
        return ServerBusy(str(ServerRefused(what, code, description)), "the request will be retried")
    return ServerRefused(what, code, description)
