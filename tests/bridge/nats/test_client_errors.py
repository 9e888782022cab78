"""Translation of the client library's errors into ours."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

import nats.errors
import pytest

from bridge.nats.jetstream import errors
from bridge.nats.jetstream.client_errors import (
    NO_ANSWER,
    NOTHING_LISTENS,
    UNKNOWN_HOST,
    OtherServer,
    translated,
)
from bridge.nats.jetstream.errors import (
    LoginRefused,
    MessageTooLarge,
    NatsError,
    NatsRefused,
    NatsUnavailable,
    TlsFailed,
    Unreachable,
    WrongServer,
)
from bridge.nats.jetstream.options import ConnectOptions

OPTIONS = ConnectOptions(servers=("nats://box:4222",))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OtherServer(), WrongServer, "box:4222"),
        (nats.errors.SecureConnRequiredError(), TlsFailed, "box:4222"),
        (nats.errors.MaxPayloadError(), MessageTooLarge, "max_payload"),
        (nats.errors.BadSubjectError(), NatsRefused, "subject"),
        (nats.errors.AuthorizationError(), LoginRefused, "box:4222"),
        (nats.errors.Error("nats: 'Authorization Violation'"), LoginRefused, "box:4222"),
        (ssl.SSLCertVerificationError("certificate verify failed"), TlsFailed, "certificate verify failed"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), Unreachable, NOTHING_LISTENS),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), Unreachable, NOTHING_LISTENS),
        (OSError(errno.EHOSTUNREACH, "x"), Unreachable, os.strerror(errno.EHOSTUNREACH).lower()),
        (socket.gaierror(-2, "x"), Unreachable, UNKNOWN_HOST),
        (TimeoutError(), Unreachable, NO_ANSWER),
        (ValueError("odd\nand long"), NatsUnavailable, "odd"),
    ],
)
def test_each_error_is_translated(error: Exception, kind: type[NatsError], text: str) -> None:
    ours = translated(error, OPTIONS)
    assert type(ours) is kind
    assert text in str(ours) and "and long" not in str(ours)


def test_every_class_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NatsError)]
    assert len(kinds) > 10 and all("code" in vars(kind) for kind in kinds)
    assert len({kind.code for kind in kinds}) == len(kinds)
    documented = re.findall(r"(\w+) +(nats-[a-z-]+)", errors.__doc__ or "")
    assert dict(documented) == {kind.__name__: kind.code for kind in kinds}
