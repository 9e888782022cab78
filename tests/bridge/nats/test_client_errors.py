"""Each error of the client library becomes one of ours, with a sentence that says what to do."""

from __future__ import annotations

import errno
import socket
import ssl

import nats.errors
import pytest

from bridge.nats.jetstream.client_errors import OtherServer, not_connected, told
from bridge.nats.jetstream.errors import NatsError, NatsRefused, NatsUnavailable
from bridge.nats.jetstream.options import ConnectOptions

OPTIONS = ConnectOptions(servers=("nats://box:4222",))


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OtherServer(), NatsUnavailable, "another program than our server answers on"),
        (nats.errors.SecureConnRequiredError(), NatsRefused, "offers no TLS"),
        (nats.errors.MaxPayloadError(), NatsRefused, "larger than the server takes"),
        (nats.errors.BadSubjectError(), NatsRefused, "the subject is not one"),
        (nats.errors.AuthorizationError(), NatsRefused, "check the token or the credentials file"),
        (nats.errors.Error("nats: 'Authorization Violation'"), NatsRefused, "does not let us in"),
        (nats.errors.Error("nats: user jwt expired"), NatsRefused, "does not let us in"),
        (ssl.SSLCertVerificationError("certificate verify failed"), NatsRefused, "TLS with .* failed"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), NatsUnavailable, "nothing listens there"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), NatsUnavailable, "nothing listens there"),
        (OSError(errno.EHOSTUNREACH, "x"), NatsUnavailable, "no route to host"),
        (socket.gaierror(-2, "x"), NatsUnavailable, "that name is not known here"),
        (TimeoutError(), NatsUnavailable, "it does not answer"),
        (nats.errors.TimeoutError(), NatsUnavailable, "it does not answer"),
        (ValueError("odd\nand long"), NatsUnavailable, "odd$"),
    ],
)
def test_each_is_told_in_our_words(error: Exception, kind: type[NatsError], text: str) -> None:
    ours = told(error, OPTIONS)
    assert type(ours) is kind
    with pytest.raises(kind, match=text):
        raise ours


def test_one_of_ours_stays_what_it_is() -> None:
    ours = NatsRefused("as it was", "")
    assert told(ours, OPTIONS) is ours


def test_why_there_was_no_connection_is_the_last_problem_that_says_more_than_that() -> None:
    problems: list[Exception] = [ConnectionRefusedError(errno.ECONNREFUSED, "x"), socket.gaierror(-2, "x")]
    found = not_connected(OPTIONS, nats.errors.NoServersError(), [*problems, TimeoutError()])
    assert "that name is not known here" in str(found)
    alone = not_connected(OPTIONS, nats.errors.NoServersError(), [])
    assert type(alone) is NatsUnavailable and "cannot be reached" in str(alone)
