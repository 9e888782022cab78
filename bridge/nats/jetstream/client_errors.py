"""Translates the client library's errors into subclasses of ``NatsError``; no other module does this. Pure."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import nats.errors

from bridge.nats.jetstream.errors import NatsError, NatsRefused, NatsUnavailable, message_too_large
from bridge.nats.jetstream.options import ConnectOptions

NO_ANSWER: Final = "the server does not answer"
UNKNOWN_HOST: Final = "the host name does not resolve"
NOTHING_LISTENS: Final = "nothing is listening there"

_TLS: Final = "nats-tls-failed"


class OtherServer(nats.errors.Error):
    """Another program answered on our server's port."""


@contextmanager
def translating(options: ConnectOptions) -> Iterator[None]:
    """Raise every error of the block as a ``NatsError``."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - every error of the library is translated
        raise translated(error, options) from None


def not_connected(options: ConnectOptions, error: Exception, problems: list[Exception]) -> NatsError:
    """Why ``connect`` failed: the last problem that is more specific than "no server"."""
    causes = [error, *reversed(problems)]
    cause = next((each for each in causes if not isinstance(each, nats.errors.NoServersError | TimeoutError)), error)
    return translated(cause, options)


def translated(error: Exception, options: ConnectOptions) -> NatsError:
    """The ``NatsError`` for an exception of the library or of the operating system."""
    where = options.shown
    text = short(error)
    match error:
        case NatsError():
            return error
        case OtherServer():
            return NatsUnavailable(
                f"another program answers on {where} instead of the embedded NATS server",
                "nothing was sent to that program; stop it, or set another `port` in [nats]",
                "nats-wrong-server",
            )
        case nats.errors.SecureConnRequiredError() | nats.errors.SecureConnWantedError():
            return NatsRefused(f"the NATS server at {where} offers no TLS", "enable TLS on that server", _TLS)
        case nats.errors.MaxPayloadError():
            return message_too_large()
        case nats.errors.BadSubjectError():
            return NatsRefused("NATS does not accept a subject", "this is a bug: names in subjects must be escaped")
    if any(word in text.lower() for word in ("authorization", "authentication", "user jwt", "credentials")):
        hint = "check `credentials` in [nats], or the login in the addresses in `servers`"
        return NatsRefused(f"the NATS server at {where} rejected the login", hint, "nats-login-refused")
    if "certificate" in text.lower() or "ssl" in type(error).__name__.lower():
        hint = "check `cert_dir` in [nats] and the server's certificate"
        return NatsRefused(f"TLS with {where} failed: {text}", hint, _TLS)
    if isinstance(error, OSError | nats.errors.Error):
        # The sidecar restarts an embedded server and reports its problems, so the user need not do anything.
        hint = "" if options.token else "start the server, or fix the setting `servers` in [nats]"
        return NatsUnavailable(f"cannot reach the NATS server at {where}: {_why(error)}", hint, "nats-unreachable")
    return NatsUnavailable(f"the NATS server at {where} failed: {text}")


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    if isinstance(error, socket.gaierror):
        return UNKNOWN_HOST
    # For a host with several addresses, asyncio gives the error number only in the text.
    found = re.search(r"\[Errno (\d+)\]", str(error))
    number = getattr(error, "errno", None) or (int(found[1]) if found else 0)
    if number == errno.ECONNREFUSED:
        return NOTHING_LISTENS
    return os.strerror(number).lower() if number > 0 else short(error)


def short(error: Exception) -> str:
    text = str(error).removeprefix("nats: ").strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
