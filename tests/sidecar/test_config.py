"""The configuration: who wins, and what a mistake is told like."""

import os
from pathlib import Path

import pytest

from sidecar.config import MIB, ConfigError, load_config


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("DURABLE_STREAM"):
            monkeypatch.delenv(name)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_a_missing_file_gives_the_defaults(tmp_path: Path) -> None:
    config = load_config(tmp_path / "config.toml")
    assert config == load_config(None)
    assert (config.store.segment_bytes, config.link.max_frame_bytes) == (64 * MIB, 16 * MIB)
    assert (config.link.port, config.link.window, config.link.max_connections) == (0, 512, 256)
    assert (config.link.handshake_seconds, config.link.idle_exit_seconds, config.link.hold_seconds) == (5, 600, 2)
    assert (config.redact.enabled, config.redact.patterns, config.redact.keys) == (True, {}, ())
    assert config.capture.exclude == ()


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "[link]\nport = 1\nwindow = 1\nhold_seconds = 1\n[store]\nsegment_bytes = 8192\n")
    monkeypatch.setenv("DURABLE_STREAM_LINK__PORT", "2")
    monkeypatch.setenv("DURABLE_STREAM_LINK__WINDOW", "2")
    config = load_config(path, link={"port": 3})
    assert (config.link.port, config.link.window, config.link.hold_seconds) == (3, 2, 1)
    assert config.store.segment_bytes == 8192


def test_the_other_variables_of_the_product_are_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DURABLE_STREAM", "off")
    monkeypatch.setenv("DURABLE_STREAM_HOME", "/x")
    monkeypatch.setenv("DURABLE_STREAM_COMMAND", "x")
    load_config(None)


def test_lists_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    path = written(
        tmp_path,
        '[redact]\nenabled = false\nkeys = ["pin"]\n[redact.patterns]\nbadge = "B-[0-9]+"\n'
        '[capture]\nexclude = ["/a", "~/b"]\n',
    )
    config = load_config(path)
    assert config.redact.patterns == {"badge": "B-[0-9]+"}
    assert config.redact.keys == ("pin",)
    assert config.capture.exclude == (Path("/a"), Path("/home/u/b"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[link]\nprot = 1\n", "unknown key link.prot"),
        ("[lonk]\nport = 1\n", "unknown key lonk"),
        ("port = 1\n", "unknown key port"),
        ("[link]\nport = 70000\n", "link.port"),
        ('[link]\nport = "x"\n', "link.port"),
        ("link = 1\n", "link"),
        ("[link]\nport =\n", "line 2"),
        ("[link]\nport = 1\nport = 2\n", "line 3"),
        ('[redact.patterns]\nbad = "("\n', "bad is not a regular expression"),
        ('[capture]\nexclude = ["a/b"]\n', "must be absolute"),
    ],
)
def test_a_mistake_names_the_file_and_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as told:
        load_config(path)
    assert str(path) in str(told.value)
    assert said in str(told.value)


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        load_config(written(tmp_path, "[link]\na = 1\nb = 2\n"))
    assert "link.a" in str(told.value)
    assert "link.b" in str(told.value)


def test_a_mistake_in_the_environment_or_a_flag_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "[link]\nport = 1\n")
    with pytest.raises(ConfigError, match=r"command line: link\.port"):
        load_config(path, link={"port": -1})
    monkeypatch.setenv("DURABLE_STREAM_LINK__PROT", "1")
    with pytest.raises(ConfigError, match=r"DURABLE_STREAM_LINK__PROT: unknown key link\.prot"):
        load_config(path)
    monkeypatch.delenv("DURABLE_STREAM_LINK__PROT")
    monkeypatch.setenv("DURABLE_STREAM_LINK__PORT", "x")
    with pytest.raises(ConfigError, match="DURABLE_STREAM_LINK__PORT"):
        load_config(path)
    monkeypatch.delenv("DURABLE_STREAM_LINK__PORT")
    monkeypatch.setenv("DURABLE_STREAM_LINK", "{")
    with pytest.raises(ConfigError, match="environment"):
        load_config(path)


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(path)
