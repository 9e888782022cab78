"""``metrics``: what the running sidecar counts, for a person or for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.cli.shared.command import home_of, note
from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.home import Home


async def metrics(
    context: typer.Context,
    scrape_config: Annotated[
        bool,
        typer.Option("--scrape-config", help="Print a scrape config for Prometheus and write its credentials file."),
    ] = False,
) -> None:
    """Print the running sidecar's metrics in the Prometheus text format."""
    from sidecar.cli.printing.output import Output

    home = home_of(context)
    home.check_owner()
    text = _scrape_config(home) if scrape_config else await _text(home)
    out = Output()
    for line in text.splitlines():
        out.text(line)


async def _text(home: Home) -> str:
    from sidecar.cli.shared.identity import own_identity
    from sidecar.link.client import ControlClient
    from sidecar.version import VERSION

    if home.running() is None:
        raise _not_running(home)
    async with await ControlClient.connect(home, version=VERSION, nonce=own_identity().nonce) as client:
        return str((await client.request("metrics"))["text"])


def _scrape_config(home: Home) -> str:
    """The part of a ``prometheus.yml`` that scrapes this home. Also writes the bearer token for scraping to a file that
    only the user can read.

    This bearer token is not the home's token: see ``sidecar/link/scraping.py``.
    """
    from json import dumps

    from sidecar.config import load_config
    from sidecar.link.scraping import bearer_of
    from streams.system.files import write_durably

    info, fixed = home.running(), load_config(home.config_path).link.port
    port = info.port if info is not None else fixed
    if not port:
        raise _not_running(home)
    write_durably(home.metrics_token_path, (bearer_of(home.read_token()) + "\n").encode())
    if not fixed:
        note(f"the sidecar uses another port after each start; set a fixed `port` in [link] in {home.config_path}")
    # Write the strings as JSON, because every JSON string is a valid YAML string, whatever the path contains.
    return (
        "scrape_configs:\n"
        "  - job_name: durable-stream\n"
        "    authorization:\n"
        f"      credentials_file: {dumps(str(home.metrics_token_path))}\n"
        "    static_configs:\n"
        f"      - targets: [{dumps(f'127.0.0.1:{port}')}]\n"
    )


def _not_running(home: Home) -> Failure:
    reason = f"no sidecar is running for {home.path}, so there are no metrics"
    return Failure("not-running", f"{reason}; start one: open OpenCode, or run `durable-stream serve`")
