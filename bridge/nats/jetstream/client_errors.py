"""What the client library raises, translated into our errors: the one place where that is done. Pure."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket

import nats.errors

from bridge.nats.jetstream.errors import NatsError, NatsRefused, NatsUnavailable, too_large
from bridge.nats.jetstream.options import ConnectOptions


class OtherServer(nats.errors.Error):
    """Another program than ours answered on our server's port."""


def not_connected(options: ConnectOptions, error: Exception, problems: list[Exception]) -> NatsError:
    """Why ``connect`` failed: of several problems the last that says more than "no server"."""
    causes = [error, *reversed(problems)]
    cause = next((each for each in causes if not isinstance(each, nats.errors.NoServersError | TimeoutError)), error)
    return told(cause, options)


def told(error: Exception, options: ConnectOptions) -> NatsError:
    """Our error for one that the library, or what it calls, raised; one of ours stays what it is."""
    where = options.shown
    text = short(error)
    match error:
        case NatsError():
            return error
        case OtherServer():
            return NatsUnavailable(f"another program than our server answers on {where}", "nothing was sent to it")
        case nats.errors.SecureConnRequiredError() | nats.errors.SecureConnWantedError():
            return NatsRefused(f"{where} offers no TLS, and a plain connection is not wanted", "turn TLS on there")
        case nats.errors.MaxPayloadError():
            return too_large()
        case nats.errors.BadSubjectError():
            return NatsRefused("the subject is not one", "escape what it is made of")
        case nats.errors.AuthorizationError() | nats.errors.InvalidUserCredentialsError():
            return _no_entry(where)
    if any(word in text.lower() for word in ("authorization", "authentication", "user jwt")):
        return _no_entry(where)
    if "certificate" in text.lower() or "ssl" in type(error).__name__.lower():
        return NatsRefused(f"TLS with {where} failed: {text}", "check cert_dir in [nats] and the server's certificate")
    if isinstance(error, OSError | nats.errors.Error | TimeoutError | asyncio.TimeoutError):
        # Of an embedded server the port is in no configuration: it comes back by itself, or its own problem is told.
        hint = "" if options.token else "start it, or correct servers in [nats]"
        return NatsUnavailable(f"NATS at {where} cannot be reached: {_why(error)}", hint)
    return NatsUnavailable(f"NATS at {where}: {text}")


def _no_entry(where: str) -> NatsRefused:
    return NatsRefused(f"the NATS server at {where} does not let us in", "check the token or the credentials file")


def _why(error: Exception) -> str:
    """Why there was no connection, in words without numbers and addresses."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "it does not answer"
    if isinstance(error, socket.gaierror):
        return "that name is not known here"
    # Of several addresses of one host asyncio tells in the text alone.
    found = re.search(r"\[Errno (\d+)\]", str(error))
    number = getattr(error, "errno", None) or (int(found[1]) if found else 0)
    if number == errno.ECONNREFUSED:
        return "nothing listens there"
    return os.strerror(number).lower() if number > 0 else short(error)


def short(error: Exception) -> str:
    """The first line of what an error says, without the library's mark."""
    text = str(error).removeprefix("nats: ").strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
