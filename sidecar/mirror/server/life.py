"""The state table of the embedded server. Pure.

::

                 ┌────────────── PAUSE_OVER ──────────────┐
                 ▼                                        │
    STOPPED ─▶ STARTING ──READY──▶ RUNNING ──EXITED──▶ WAITING
                 │                 │     ▲                ▲
                 │              UNWELL  WELL              │
                 │                 ▼     │                │
                 └──GIVEN_UP──▶ ENDING ◀─GIVEN_UP─ UNWELL ┤
                                   └──────EXITED──────────┘

In every state ``STOP`` leads to ``STOPPING``, or to ``STOPPED`` if there is no process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    UNWELL = "not answering"
    """The server's process is running, but its last probe failed."""
    ENDING = "being ended"
    """The server no longer answers, so it is killed and restarted."""
    WAITING = "waiting to be started again"
    STOPPING = "stopping"


class Happening(StrEnum):
    START = "start"
    READY = "ready"
    EXITED = "exited"
    WELL = "well"
    UNWELL = "unwell"
    GIVEN_UP = "given up"
    """The server took too long to start, or failed too many probes."""
    PAUSE_OVER = "pause over"
    STOP = "stop"


_S, _H = State, Happening

TABLE: Final[dict[tuple[State, Happening], State]] = {
    (_S.STOPPED, _H.START): _S.STARTING,
    (_S.STOPPED, _H.STOP): _S.STOPPED,
    (_S.STARTING, _H.READY): _S.RUNNING,
    (_S.STARTING, _H.EXITED): _S.WAITING,
    (_S.STARTING, _H.GIVEN_UP): _S.ENDING,
    (_S.STARTING, _H.STOP): _S.STOPPING,
    (_S.RUNNING, _H.WELL): _S.RUNNING,
    (_S.RUNNING, _H.UNWELL): _S.UNWELL,
    (_S.RUNNING, _H.EXITED): _S.WAITING,
    (_S.RUNNING, _H.STOP): _S.STOPPING,
    (_S.UNWELL, _H.WELL): _S.RUNNING,
    (_S.UNWELL, _H.UNWELL): _S.UNWELL,
    (_S.UNWELL, _H.GIVEN_UP): _S.ENDING,
    (_S.UNWELL, _H.EXITED): _S.WAITING,
    (_S.UNWELL, _H.STOP): _S.STOPPING,
    (_S.ENDING, _H.EXITED): _S.WAITING,
    (_S.ENDING, _H.STOP): _S.STOPPING,
    (_S.WAITING, _H.PAUSE_OVER): _S.STARTING,
    (_S.WAITING, _H.STOP): _S.STOPPED,
    (_S.STOPPING, _H.STOP): _S.STOPPING,
    (_S.STOPPING, _H.EXITED): _S.STOPPED,
}

WITH_PROCESS: Final = frozenset({_S.STARTING, _S.RUNNING, _S.UNWELL, _S.ENDING, _S.STOPPING})


def after(state: State, happening: Happening) -> State:
    """The next state.

    Raises:
        ValueError: the event cannot occur in this state.
    """
    try:
        return TABLE[state, happening]
    except KeyError:
        raise ValueError(f"{happening} cannot happen to a server that is {state}") from None
