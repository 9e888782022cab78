"""Loads agents and effects that a user names as ``module:attr`` or ``path.py:attr``, and checks that these agents and
effects meet the contract.

A user's agent is a class without arguments, or a function that returns an object. The object needs ``receive(event)``
and need not import anything from this package, because events are plain dictionaries. ``apply``, ``health``, ``state``,
``load``, ``name`` and ``events`` are optional.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from sidecar.agents.agent import AGENT_NAME, READY, HealthStatus, Output, Status, outputs_of
from sidecar.agents.effects.outbound import outbound_headers
from sidecar.agents.effects.policy import Effect, EffectClass
from sidecar.agents.effects.runner import EffectKind, Reconciled
from streams.event import EVENT_TYPE, StreamEvent
from streams.hashing import canonical


class LoadError(Exception):
    """An agent or effect cannot be used; the text says which, why, and what to change."""

    code: ClassVar[str] = "bad-agent"

    def __init__(self, spec: str, reason: str) -> None:
        super().__init__(f"[worker] {spec}: {reason}")
        self.spec, self.reason = spec, reason


def load_object(spec: str, base: Path) -> Any:
    """The object that ``module:attr`` or ``path.py:attr`` names; a path is relative to ``base``.

    Raises:
        LoadError: the object cannot be imported or does not exist.
    """
    where, colon, attr = spec.rpartition(":")
    if not colon or not where or not attr:
        raise LoadError(spec, "write it as `module:attribute` or `path/to/file.py:attribute`")
    try:
        if not where.endswith(".py"):
            return pkgutil.resolve_name(spec)
        return getattr(_from_file(base / Path(where).expanduser()), attr)
    except AttributeError:
        raise LoadError(spec, f"{where} has no {attr}") from None
    except Exception as error:
        raise LoadError(spec, f"cannot be imported ({type(error).__name__}: {error})") from error


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"durable_stream_agent_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class UserAgent:
    """Wraps a user's agent as an ``Agent``: passes plain dictionaries to the agent, and checks the outputs that it
    returns."""

    events: Sequence[str]
    has_turns, begins_anywhere = True, False

    def __init__(self, spec: str, make: Callable[[], Any]) -> None:
        self._spec, self._make = spec, make
        self._agent = self._new()
        given = getattr(self._agent, "name", None) or _dashed(type(self._agent).__name__)
        if not isinstance(given, str) or AGENT_NAME.fullmatch(given) is None:
            raise LoadError(spec, f"{given!a} is not a valid name: use up to 50 lower-case letters, digits and -")
        events = getattr(self._agent, "events", ())
        if isinstance(events, str) or not all(isinstance(each, str) and _is_wanted(each) for each in events):
            raise LoadError(spec, 'events must be a list of types, such as ["execution.step", "agent.*"]')
        self.name, self.events = given, tuple(events)
        for method, arguments in (("receive", 1), ("apply", 1), ("health", 0), ("state", 0), ("load", 1)):
            self._check(method, arguments)
        self._check_state()

    def receive(self, event: StreamEvent) -> list[Output]:
        return outputs_of(self._agent.receive(_plain(event)))

    def apply(self, event: StreamEvent) -> None:
        if hasattr(self._agent, "apply"):
            self._agent.apply(_plain(event))

    def state(self) -> dict[str, Any]:
        """See ``Agent``. What the user's ``state`` returns, or, if there is no ``state``, the attributes that do not
        begin with ``_``."""
        if hasattr(self._agent, "state"):
            found: dict[str, Any] = self._agent.state()
            return found
        return {name: value for name, value in vars(self._agent).items() if not name.startswith("_")}

    def load(self, state: dict[str, Any] | None) -> None:
        self._agent = self._new()
        if state is None:
            return
        if hasattr(self._agent, "load"):
            self._agent.load(state)
        else:
            for name, value in state.items():
                setattr(self._agent, name, value)

    def health(self) -> HealthStatus:
        """See ``Agent``. The user's ``health`` may return ``"READY"`` or ``("DEGRADED", ["why"])``; an agent without
        ``health`` is ``READY``."""
        if not hasattr(self._agent, "health"):
            return READY
        found = self._agent.health()
        status, reasons = found if isinstance(found, tuple) else (found, ())
        if status not in Status.__args__:  # type: ignore[attr-defined]
            return HealthStatus("FAILED", (f"health returned {status!a}",))
        return HealthStatus(status, tuple(str(reason) for reason in reasons))

    def _new(self) -> Any:
        try:
            return self._make()
        except Exception as error:
            raise LoadError(self._spec, f"cannot be created ({type(error).__name__}: {error})") from error

    def _check(self, method: str, arguments: int) -> None:
        found = getattr(self._agent, method, None)
        if found is None:
            if method == "receive":
                raise LoadError(self._spec, "it has no method `receive(event)`")
            return
        if inspect.iscoroutinefunction(found):
            raise LoadError(self._spec, f"`{method}` must not be async: an agent only decides, and the runtime acts")
        try:
            inspect.signature(found).bind(*[None] * arguments)
        except TypeError:
            takes = "one argument" if arguments else "no argument"
            raise LoadError(self._spec, f"`{method}` must take {takes}") from None

    def _check_state(self) -> None:
        try:
            state = json.loads(json.dumps(self.state()))
        except (TypeError, ValueError) as error:
            hint = "keep only JSON values, or define `state()` and `load(state)`"
            raise LoadError(self._spec, f"its state is not JSON ({error}); {hint}") from None
        if not isinstance(state, dict):
            raise LoadError(self._spec, "`state()` must return a dictionary")


class UserEffect(EffectKind):
    """Wraps a user's coroutine ``run(args, key)`` as an effect. A coroutine with an argument ``headers`` gets
    the headers for its requests to other services.

    The coroutine's attribute ``effect_class`` is ``safe``, ``idempotent`` or ``unsafe`` (the default). The attribute
    ``reconcile``, a coroutine with the same arguments, returns ``{"done": true, "result": …}``, ``{"done": false}``, or
    ``None`` if it cannot tell.
    """

    def __init__(self, spec: str, run: Any) -> None:
        if not inspect.iscoroutinefunction(run):
            raise LoadError(spec, "an effect must be an async function with the arguments `args` and `key`")
        try:
            inspect.signature(run).bind({}, "", **_headers_for(run))
        except TypeError:
            raise LoadError(spec, "an effect must take two arguments, `args` and `key`") from None
        effect_class: Any = getattr(run, "effect_class", "unsafe")
        if effect_class not in EffectClass.__args__:  # type: ignore[attr-defined]
            raise LoadError(spec, "`effect_class` must be `safe`, `idempotent` or `unsafe`")
        self._run, self.effect_class = run, effect_class

    async def run(self, effect: Effect, key: str) -> Any:
        return await _asked(self._run, effect, key)

    async def reconcile(self, effect: Effect, key: str) -> Reconciled:
        ask = getattr(self._run, "reconcile", None)
        found = await _asked(ask, effect, key) if ask is not None else None
        if not isinstance(found, dict):
            return Reconciled(None)
        return Reconciled(bool(found.get("done")), found.get("result"))


def _headers_for(run: Any) -> dict[str, dict[str, str]]:
    return {"headers": outbound_headers()} if "headers" in inspect.signature(run).parameters else {}


async def _asked(run: Any, effect: Effect, key: str) -> Any:
    return await run(effect.args, key, **_headers_for(run))


def load_agents(specs: Sequence[str], base: Path) -> list[UserAgent]:
    """Load every configured agent.

    Raises:
        LoadError: an agent cannot be used, or two agents have the same name.
    """
    agents: dict[str, UserAgent] = {}
    for spec in specs:
        made = load_object(spec, base)
        if not callable(made):
            raise LoadError(spec, "the attribute must be a class, or a function that returns an agent")
        agent = UserAgent(spec, made)
        if agent.name in agents:
            raise LoadError(spec, f"another agent is already named {agent.name}; both would take the same commands")
        agents[agent.name] = agent
    return list(agents.values())


def _plain(event: StreamEvent) -> dict[str, Any]:
    """Copy an event into a dictionary, so that an agent can change the copy without changing anything else."""
    plain: dict[str, Any] = json.loads(canonical(event.fields()))
    return plain


def _dashed(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _is_wanted(type_: str) -> bool:
    return EVENT_TYPE.fullmatch(type_.removesuffix(".*")) is not None
