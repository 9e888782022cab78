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
from bridge.nats.jetstream.errors import NatsError
from bridge.nats.jetstream.options import ConnectOptions

OPTIONS = ConnectOptions(servers=("nats://box:4222",))


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (OtherServer(), "nats-wrong-server", "box:4222"),
        (nats.errors.SecureConnRequiredError(), "nats-tls-failed", "box:4222"),
        (nats.errors.MaxPayloadError(), "nats-message-too-large", "max_payload"),
        (nats.errors.BadSubjectError(), "nats-refused", "subject"),
        (nats.errors.AuthorizationError(), "nats-login-refused", "box:4222"),
        (nats.errors.Error("nats: 'Authorization Violation'"), "nats-login-refused", "box:4222"),
        (ssl.SSLCertVerificationError("certificate verify failed"), "nats-tls-failed", "certificate verify failed"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), "nats-unreachable", NOTHING_LISTENS),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), "nats-unreachable", NOTHING_LISTENS),
        (OSError(errno.EHOSTUNREACH, "x"), "nats-unreachable", os.strerror(errno.EHOSTUNREACH).lower()),
        (socket.gaierror(-2, "x"), "nats-unreachable", UNKNOWN_HOST),
        (TimeoutError(), "nats-unreachable", NO_ANSWER),
        (ValueError("odd\nand long"), "nats-unavailable", "odd"),
    ],
)
def test_each_error_is_translated(error: Exception, code: str, text: str) -> None:
    ours = translated(error, OPTIONS)
    assert ours.code == code
    assert text in str(ours) and "and long" not in str(ours)


def test_every_class_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, NatsError)]
    assert len(kinds) > 8 and all("code" in vars(kind) for kind in kinds)
    assert len({kind.code for kind in kinds}) == len(kinds)
    documented = re.findall(r"([A-Z]\w+) +(nats-[a-z-]+)", errors.__doc__ or "")
    assert dict(documented) == {kind.__name__: kind.code for kind in kinds}
