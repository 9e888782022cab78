"""Checks that an agent keeps the contract: it only decides and remembers, so that a replay gives the same results.

``python -m sidecar.agents.checks.contract SPEC BASE`` is one trial, in a process of its own: it reads events from its
input, and writes a ``Trial`` to its output, both as JSON. ``check_agent`` compares two such processes, in which Python
hashes text in other ways. What an agent takes from a clock, from chance, or from the order of a set then differs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from sidecar.agents.agent import Agent, Output, outputs_of
from sidecar.agents.inputs import agent_stream, state_hash
from sidecar.agents.loading import LoadError, load_agents
from streams.event import StreamEvent
from streams.hashing import canonical
from streams.identity import Identity, seeded_identity


class Finding(NamedTuple):
    """One violation of the contract; ``where`` is the method that is at fault."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Trial(NamedTuple):
    """What one agent did with some events. ``results`` has a digest of outputs and state after each event."""

    findings: list[Finding]
    results: list[str]


async def check_agent(spec: str, base: Path, events: Sequence[StreamEvent]) -> list[Finding]:
    """Check the agent that ``spec`` names with some events; see ``load_object`` for ``spec`` and ``base``.

    Raises:
        LoadError: the agent cannot be loaded, or ends its process.
    """
    given = b"".join(canonical(event.fields()) + b"\n" for event in events)
    trials = [asyncio.ensure_future(_trial(spec, base, given, seed)) for seed in ("1", "2")]
    await asyncio.wait(trials)  # one that fails must not leave the other one's process behind
    first, second = [trial.result() for trial in trials]
    findings = [*first.findings, *second.findings]
    pairs = zip(events, first.results, second.results, strict=False)
    differs = next((event.type for event, one, other in pairs if one != other), None)
    if differs is not None:
        text = f"after {differs}, two processes with the same events differ in their outputs or their state"
        findings.append(Finding("receive", text))
    return list(dict.fromkeys(findings))


async def _trial(spec: str, base: Path, given: bytes, seed: str) -> Trial:
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-m", "sidecar.agents.checks.contract", spec, str(base))
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environ)
    found, _ = await process.communicate(given)
    if process.returncode != 0:
        raise LoadError(spec, f"the process that tried it ended with the code {process.returncode}")
    findings, results = json.loads(found)
    return Trial([Finding(*one) for one in findings], results)


def try_agent(agent: Agent, events: Sequence[StreamEvent]) -> Trial:
    """Give some events to an agent, and check after each that ``receive`` repeats itself and changes no state, and that
    the state survives a snapshot."""
    run = _Run(agent)
    try:
        for event in events:
            run.take(event)
    except Exception as error:  # noqa: BLE001 - foreign code
        run.trial.findings.append(Finding("receive", f"raised {type(error).__name__}: {error}"))
    return run.trial


class _Run:
    def __init__(self, agent: Agent) -> None:
        self._agent, self._identity = agent, seeded_identity(1)
        self.trial = Trial([], [])

    def take(self, event: StreamEvent) -> None:
        before = self._agent.state()
        hash_ = state_hash(before)
        outputs = outputs_of(self._agent.receive(event))
        if outputs != outputs_of(self._agent.receive(event)):
            self._found("receive", f"two calls with the same {event.type} event returned different outputs")
        if state_hash(self._agent.state()) != hash_:
            self._found("receive", f"it changed the state on {event.type}; only `apply` may change the state")
            self._agent.load(json.loads(canonical(before)))
        for output in outputs:
            self._agent.apply(self._applied(output))
        after = state_hash(self._agent.state())
        self._agent.load(json.loads(canonical(self._agent.state())))
        if state_hash(self._agent.state()) != after:
            self._found("load", f"the state after {event.type} changes when it is saved and loaded again")
        result = canonical({"outputs": [output._asdict() for output in outputs], "state": after})
        self.trial.results.append(hashlib.sha256(result).hexdigest())

    def _found(self, where: str, what: str) -> None:
        self.trial.findings.append(Finding(where, what))

    def _applied(self, output: Output) -> StreamEvent:
        payload = output.payload
        if output.effect is not None:
            payload = {"kind": output.effect, "args": output.payload, "node": output.node}
        return as_event({"type": output.type, "payload": payload}, self._identity)


def as_event(given: dict[str, Any], identity: Identity) -> StreamEvent:
    """An event for a trial, of which only ``type`` and ``payload`` are known."""
    about = {"stream_id": agent_stream("checked"), "actor": "user", "source": {"agent": "user", "adapter": "check"}}
    return identity.stamp({**about, **given})


def _main(spec: str, base: str) -> None:
    with redirect_stdout(sys.stderr):  # the agent may print
        (agent,) = load_agents([spec], Path(base))
        events = [StreamEvent.trusted(json.loads(line)) for line in sys.stdin.buffer]
        found = try_agent(agent, events)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
