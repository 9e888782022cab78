"""A process that copies a home to the team until it is level, in small steps; in spite of a Postgres that is away.

``python -m tests.sidecar.team.mover STORE LOG_ID PORT``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from sidecar.notify_config import TeamConfig
from sidecar.team import shipping
from sidecar.team.errors import TeamUnavailable
from sidecar.team.shipping import Shipping
from streams.log.reader import LogReader


def main(store: str, log_id: str, port: str) -> None:
    shipping.MOST, shipping.MOST_ROWS = 15, 60
    config = TeamConfig(database=f"postgresql://boss@127.0.0.1:{port}/postgres")
    made = Shipping(config, LogReader(Path(store)), log_id, "one", lambda making, change: None)
    goes_on = True
    while goes_on:
        try:
            goes_on = made.step()
            print(made.place.head if made.place is not None else "", flush=True)
        except TeamUnavailable:
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
