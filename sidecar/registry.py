"""The table of requests: what the command line may ask a running sidecar.

A request is a name, a pydantic model of its arguments, a handler, and a line of documentation. Every part of the
sidecar registers its own requests. ``docs/protocol.md`` lists all requests, and a test compares the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bridge.nats.jetstream.errors import NatsUnavailable
from bridge.opencode.link.protocol import RequestError
from sidecar.config import Deed
from streams.errors import CodedError

log = logging.getLogger("sidecar.registry")


class Args(BaseModel):
    """Base of all argument models. Unknown arguments are refused, because they may be meant as limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


A = TypeVar("A", bound=Args)


class NoArgs(Args):
    pass


Only = Callable[[Deed, Callable[[Any], Any]], Callable[[Any], Any]]
"""Makes the handler of a request refuse those who may not do a deed; see ``Answerers.only``."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``value`` says what it answers, and the descriptions of the fields what its arguments mean."""

    name: str
    args: type[Args]
    handler: Callable[[Any], Any]
    value: str

    def as_json(self) -> dict[str, Any]:
        """``name``, ``args`` (JSON Schema) and ``value``."""
        return {"name": self.name, "args": self.args.model_json_schema(), "value": self.value}


class Requests:
    """One sidecar's requests, by name. The request ``requests`` lists them."""

    def __init__(self) -> None:
        self._requests: dict[str, Request] = {}
        value = "this table: a list of `name`, `args` (JSON Schema) and `value`"
        self.register("requests", NoArgs, lambda _: [request.as_json() for request in self.table], value)

    def register(self, name: str, args: type[A], handler: Callable[[A], Any], value: str) -> None:
        """Add a request. ``handler``, which may be async, gets the checked arguments and returns a JSON value.

        If ``handler`` raises a ``RequestError``, ``CodedError``, ``NatsUnavailable`` or ``OSError``, the caller gets
        the code and the text of the error.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._requests:
            raise ValueError(f"the request {name} is registered twice")
        self._requests[name] = Request(name, args, handler, value)

    @property
    def table(self) -> tuple[Request, ...]:
        """All requests, by name."""
        return tuple(self._requests[name] for name in sorted(self._requests))

    async def answer(self, method: str, args: dict[str, Any]) -> Any:
        """Call the handler of ``method`` and return its answer.

        Raises:
            RequestError: the request is unknown, its arguments are wrong, or the request failed and the caller should
                know why.
        """
        request = self._requests.get(method)
        if request is None:
            raise RequestError(
                "unknown-request",
                "the running sidecar is of another version than this command and does not know the request "
                f"{method[:40]!r}; run `durable-stream stop`, then run the command again",
            )
        try:
            checked = request.args.model_validate(args)
        except ValidationError as error:
            # Report only names and reasons, because a value may be the user's text.
            faults = "; ".join(
                f"{'.'.join(map(str, each['loc']))[:80]}: {each['msg'][:200]}" for each in error.errors()
            )
            raise RequestError("bad-arguments", f"invalid arguments for {method}: {faults[:1000]}") from None
        try:
            found = request.handler(checked)
            return await found if isawaitable(found) else found
        except (CodedError, NatsUnavailable) as error:
            # Pass the error's text on unchanged, because it is written for the caller.
            raise RequestError(error.code, str(error)) from None
        except OSError as error:
            log.warning("request %s failed: %s", method, error)
            where = f"{error.filename}: " if error.filename else ""
            text = f"the sidecar could not read or write its files: {where}{error.strerror or error}"
            hint = "check that the disk has free space, is writable and works, then run the same command again"
            raise RequestError("disk-error", f"{text}; {hint}") from None
