"""The wheel is self-contained: installed into an empty environment, it has the shim and the recording."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_holds_all_it_needs(tmp_path: Path) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT]
    subprocess.run(build, check=True, env=environment, timeout=120)
    wheel = next(tmp_path.glob("opencode_durable_stream-*.whl"))
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel],
        check=True,
        env=environment,
        timeout=120,
    )
    shim = target / "sidecar" / "shim"
    sources = {path.name for path in (ROOT / "plugin-shim" / "src").glob("*.js")}
    assert {path.name for path in shim.glob("*.js")} == sources
    assert (target / "sidecar" / "record" / "recordings" / "demo.jsonl").exists()
    config = tmp_path / "config"
    done = subprocess.run(
        [sys.executable, "-m", "sidecar.cli", "--home", tmp_path / "home", "install"],
        env={**environment, "PYTHONPATH": str(target), "XDG_CONFIG_HOME": str(config), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    plugin = (config / "opencode" / "plugin" / "durable-stream.js").read_text()
    assert str(shim / "plugin.js") in plugin
