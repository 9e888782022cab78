"""What runs code is not loaded from where somebody else could have written it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.agents.loading import LoadError
from sidecar.config import ConfigError, load_config
from sidecar.home import Home
from sidecar.private_files import others_may_write
from sidecar.worker import _check_file


def test_a_config_that_others_may_write_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = home / "config.toml"
    config.write_text("")
    load_config(config)
    config.chmod(0o666)
    with pytest.raises(ConfigError):
        load_config(config)


def test_the_target_of_a_link_and_its_directory_count(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "dotfiles"
    home.mkdir(mode=0o700)
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "config.toml").write_text("")
    (elsewhere / "config.toml").chmod(0o644)
    (home / "config.toml").symlink_to(elsewhere / "config.toml")
    load_config(home / "config.toml")
    elsewhere.chmod(0o777)
    with pytest.raises(ConfigError):
        load_config(home / "config.toml")
    elsewhere.chmod(0o1777)
    assert others_may_write(home / "config.toml", home) == "", "in a sticky directory nobody replaces another's file"


def test_an_agent_file_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    agent = tmp_path / "agent.py"
    agent.write_text("")
    agent.chmod(0o666)
    with pytest.raises(LoadError):
        _check_file(f"{agent}:Agent", home)
    agent.chmod(0o600)
    _check_file(f"{agent}:Agent", home)
