"""``metrics``: what the running sidecar counts, for a person or for Prometheus."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.cli.shared.command import RUNS, Run, note
from sidecar.failure import Failure

if RUNS:
    from json import dumps

    from sidecar.cli.printing.output import Output
    from sidecar.cli.shared.control import ask_running
    from sidecar.config import load_config
    from sidecar.home import Home
    from streams.system.files import write_durably


async def metrics(
    run: Run,
    scrape_config: Annotated[
        bool,
        typer.Option("--scrape-config", help="Print a scrape config for Prometheus and write its credentials file."),
    ] = False,
) -> None:
    """Print the running sidecar's metrics in the Prometheus text format."""
    home = run.own_home
    if scrape_config:
        text = await _scrape_config(home)
    elif home.running() is None:
        reason = f"no sidecar is running for {home.path}, so there are no metrics"
        raise Failure("not-running", f"{reason}; start one: open OpenCode, or run `durable-stream serve`")
    else:
        text = (await ask_running(home, "metrics"))["text"]
    out = Output()
    for line in text.splitlines():
        out.text(line)


async def _scrape_config(home: Home) -> str:
    """The part of a ``prometheus.yml`` that scrapes this home. Also writes the bearer token for scraping to a file that
    only the user can read.

    This bearer token is not the home's token: see ``sidecar/care/scraping.py``.
    """
    from sidecar.care.scraping import bearer_of

    port = load_config(home.config_path).metrics.port
    if not port:
        reason = f"the metrics have no port; set `port` in [metrics] in {home.config_path}, such as 9464"
        raise Failure("metrics-off", f"{reason}, then run `durable-stream stop`")
    if home.running() is not None:
        now = (await ask_running(home, "status"))["pages"]["metrics"]
        if now is None or now["port"] != port:
            note(f"the sidecar does not listen on port {port} yet; run `durable-stream stop`")
        elif now["problem"]:
            reason = f"the metrics are not served: {now['problem']}"
            raise Failure("port-taken", f"{reason}; set another `port` in [metrics], then run `durable-stream stop`")
    write_durably(home.metrics_token_path, (bearer_of(home.read_token()) + "\n").encode())
    # Write the strings as JSON, because every JSON string is a valid YAML string, whatever the path contains.
    return (
        "scrape_configs:\n"
        "  - job_name: durable-stream\n"
        "    authorization:\n"
        f"      credentials_file: {dumps(str(home.metrics_token_path))}\n"
        "    static_configs:\n"
        f"      - targets: [{dumps(f'127.0.0.1:{port}')}]\n"
    )
