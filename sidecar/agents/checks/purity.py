"""Checks that an agent is pure: a pure agent only decides and remembers, so that a replay gives the same results.

None of the three checks proves purity, but together they catch accidents:

* the agent's source must not refer to a clock, randomness, a socket, a process, a file or an event loop;
* while ``receive`` and ``apply`` are running, any use of a clock, a file and so on raises an error;
* two fresh agents that get the same events must return the same outputs and end in the same state, ``receive`` must not
  change the state, and the state must survive a snapshot.

Do not use this module in a running sidecar, because the second check affects the whole process while it is running.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from sidecar.agents.agent import Agent, Output, outputs_of
from sidecar.agents.inputs import agent_stream, state_hash
from sidecar.agents.loading import UserAgent
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import Identity, seeded_identity

IMPURE_MODULES: Final = frozenset(
    {
        *("time", "random", "secrets", "socket", "ssl", "select", "selectors", "signal"),
        *("asyncio", "threading", "multiprocessing", "subprocess", "concurrent"),
        *("os", "posix", "shutil", "tempfile", "io", "sqlite3", "logging"),
        *("urllib", "http", "smtplib", "ftplib", "requests", "httpx", "aiohttp", "websockets", "nats"),
    }
)
"""Modules that an agent must not use; ``os.path`` is allowed."""

IMPURE_CALLS: Final = frozenset({"uuid.uuid1", "uuid.uuid4", "uuid.getnode"})
IMPURE_METHODS: Final = frozenset({"now", "utcnow", "today"})
"""Impure methods of ``datetime`` and ``date``."""

IMPURE_BUILTINS: Final = frozenset({"open", "input", "breakpoint", "hash", "id", "__import__"})
"""Built-in functions that an agent must not use. The results of ``hash`` and ``id`` differ from process to process."""

_GUARDED: Final = (
    *(f"time.{name}" for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")),
    *(f"random.{name}" for name in ("random", "randint", "randrange", "choice", "choices", "shuffle", "sample")),
    *(f"random.{name}" for name in ("uniform", "getrandbits", "randbytes", "gauss", "SystemRandom")),
    *(f"secrets.{name}" for name in ("token_hex", "token_bytes", "token_urlsafe", "choice", "randbelow")),
    *("uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getenv", "builtins.open", "builtins.input"),
    *("asyncio.run", "asyncio.create_task", "asyncio.get_event_loop", "asyncio.get_running_loop"),
)
_AUDITED: Final = ("open", "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.spawn", "os.posix_spawn")
"""Prefixes of the interpreter's audit events, which also show what C code does."""


class Finding(NamedTuple):
    """One reason why an agent is not pure. ``where`` is a method, or a place in the source."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Impure(RuntimeError):
    pass


def check_agent(
    make: Callable[[], Any],
    events: Sequence[StreamEvent | Mapping[str, Any]],
    *,
    spec: str = "agent",
    wrap: Callable[[str, Callable[[], Any]], Agent] = UserAgent,
) -> list[Finding]:
    """Check an agent with some events. Each event is a ``StreamEvent``, or a dictionary with ``type`` and ``payload``.

    ``wrap`` turns what ``make`` returns into an ``Agent``.

    Raises:
        LoadError: ``make`` does not return an agent.
    """
    findings = check_source(type(make()))
    try:
        first, second = (_Run(wrap(spec, make)) for _ in range(2))
        identity = seeded_identity(0)
        given = [_event(event, identity) for event in events]
        for event in given:
            found, other = first.take(event), second.take(event)
            if found != other:
                text = f"after {event.type}, two instances of the agent differ in their outputs or their state"
                findings.append(Finding("receive", text))
                break
        findings += [*first.findings, *second.findings]
    except Exception as error:  # noqa: BLE001 - foreign code
        findings.append(Finding("receive", f"raised {type(error).__name__}: {error}"))
    return list(dict.fromkeys(findings))


class _Run:
    def __init__(self, agent: Agent) -> None:
        self._agent, self._identity = agent, seeded_identity(1)
        self.findings: list[Finding] = []

    def take(self, event: StreamEvent) -> tuple[bytes, str]:
        before = self._agent.state()
        hash_ = state_hash(before)
        with _guarded("receive", self.findings):
            outputs = outputs_of(self._agent.receive(event))
            again = outputs_of(self._agent.receive(event))
        if outputs != again:
            self.findings.append(
                Finding("receive", f"two calls with the same {event.type} event returned different outputs")
            )
        if state_hash(self._agent.state()) != hash_:
            self.findings.append(
                Finding("receive", f"it changed the state on {event.type}; only `apply` may change the state")
            )
            self._agent.load(json.loads(canonical(before)))
        for output in outputs:
            applied = self._applied(output)
            with _guarded("apply", self.findings):
                self._agent.apply(applied)
        after = state_hash(self._agent.state())
        self._agent.load(json.loads(canonical(self._agent.state())))
        if state_hash(self._agent.state()) != after:
            self.findings.append(
                Finding("load", f"the state after {event.type} changes when it is saved and loaded again")
            )
        return canonical([output._asdict() for output in outputs]), after

    def _applied(self, output: Output) -> StreamEvent:
        payload = output.payload
        if output.effect is not None:
            payload = {"kind": output.effect, "args": output.payload, "node": output.node}
        return _event({"type": output.type, "payload": payload}, self._identity)


def _event(given: StreamEvent | Mapping[str, Any], identity: Identity) -> StreamEvent:
    if isinstance(given, StreamEvent):
        return given
    about = {"stream_id": agent_stream("checked"), "actor": "user", "source": {"agent": "user", "adapter": "purity"}}
    return identity.stamp({**about, **given})


# --- while it runs ---


_guards: list[list[str]] = []
"""The lists that the audit hook fills: one for each active guard."""
_is_hooked = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _guards or not event.startswith(_AUDITED):
        return
    if event == "open" and str(arguments[0]).endswith((".py", ".pyc", ".so")):
        return  # importing a module opens its file, which is allowed
    _guards[-1].append(event)
    raise Impure(event)


@contextmanager
def _guarded(where: str, findings: list[Finding]) -> Iterator[None]:
    """Make every use of a clock, randomness, sockets, processes and files raise an error, and record the use even if
    the agent catches the error."""
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked = True
    used: list[str] = []

    def forbid(name: str) -> Callable[..., Any]:
        def raises(*args: Any, **more: Any) -> Any:
            used.append(name)
            raise Impure(name)

        return raises

    with ExitStack() as stack:
        for dotted in _GUARDED:
            module, _, name = dotted.rpartition(".")
            stack.enter_context(patch.object(pkgutil.resolve_name(module), name, forbid(dotted)))
        _guards.append(used)
        try:
            yield
        finally:
            _guards.remove(used)
            findings += [Finding(where, f"it used {name}") for name in dict.fromkeys(used)]


# --- its source ---


def check_source(agent: type) -> list[Finding]:
    """The forbidden names in an agent's class, and in those functions of its module that the class uses."""
    findings: list[Finding] = []
    waiting = [
        function
        for base in agent.__mro__
        if base.__module__.split(".")[0] not in sys.stdlib_module_names
        for function in vars(base).values()
        if isinstance(function, FunctionType)
    ]
    seen: set[FunctionType] = set()
    while waiting:
        function = waiting.pop(0)
        if function in seen:
            continue
        seen.add(function)
        try:
            lines, start = inspect.getsourcelines(function)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        names = _Names(function)
        for node in ast.walk(tree):
            line = start + getattr(node, "lineno", 1) - 1
            where = f"{function.__qualname__} (line {line})"
            findings += [Finding(where, f"it uses {what}") for what in names.faults(node)]
            found = names.value(node) if isinstance(node, ast.Name) else None
            if isinstance(found, FunctionType) and found.__module__ == function.__module__:
                waiting.append(found)
    return findings


class _Names:
    def __init__(self, function: FunctionType) -> None:
        closure = inspect.getclosurevars(function)
        self._values: dict[str, Any] = {**closure.globals, **closure.nonlocals}
        self._globals = function.__globals__

    def value(self, node: ast.Name) -> Any:
        return self._values.get(node.id, self._globals.get(node.id))

    def faults(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if _is_impure(name.name))
        elif isinstance(node, ast.ImportFrom) and node.module and _is_impure(node.module):
            yield node.module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = self.value(node.value)
            if isinstance(owner, ModuleType):
                dotted = f"{owner.__name__}.{node.attr}"
                if dotted in IMPURE_CALLS or (_is_impure(owner.__name__) and dotted != "os.path"):
                    yield dotted
            elif node.attr in IMPURE_METHODS and getattr(owner, "__module__", "") == "datetime":
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Attribute) and node.attr in IMPURE_METHODS and _is_datetime(node.value):
            yield f"datetime.{node.attr}"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found = self.value(node)
            if found is None:
                if node.id in IMPURE_BUILTINS and hasattr(builtins, node.id):
                    yield node.id
            elif not isinstance(found, ModuleType) and callable(found):
                module = getattr(found, "__module__", None) or ""
                # ``random.random`` is a method of a hidden Random instance, whose type gives the module.
                owner = getattr(found, "__self__", None)
                module = type(owner).__module__ if owner is not None and not module else module
                if _is_impure(module) or f"{module}.{getattr(found, '__name__', '')}" in IMPURE_CALLS:
                    yield node.id


def _is_datetime(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("datetime", "date")


def _is_impure(module: str) -> bool:
    return module.split(".")[0].lstrip("_") in IMPURE_MODULES and not module.startswith(("os.path", "urllib.parse"))
