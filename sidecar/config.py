"""The configuration: ``<home>/config.toml``, the environment, and flags.

A flag wins over ``DURABLE_STREAM_<SECTION>__<KEY>``, which wins over the file,
which wins over the defaults below. A key nobody knows is an error, not a
surprise later.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

MIB = 1024 * 1024


class ConfigError(Exception):
    """The configuration cannot be used; the text names the file or variable, the key and the reason."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StoreConfig(_Section):
    """``[store]``: the log on disk."""

    segment_bytes: Annotated[int, Field(ge=4096)] = 64 * MIB
    """Size at which a segment file is closed and the next one begun."""


class LinkConfig(_Section):
    """``[link]``: the websocket between shims, command line and sidecar."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port on 127.0.0.1; 0 takes a free one."""

    window: Annotated[int, Field(ge=1, le=100_000)] = 512
    """Most unacknowledged items a shim keeps in flight."""

    max_frame_bytes: Annotated[int, Field(ge=64 * 1024, le=64 * MIB)] = 16 * MIB
    """Largest frame taken; a larger one closes its link."""

    max_connections: Annotated[int, Field(ge=1, le=10_000)] = 256
    """Most proved connections, and most unproved ones beside them."""

    handshake_seconds: Annotated[float, Field(gt=0, le=300)] = 5.0
    """How long a peer may take to open a connection, and again to prove itself."""

    idle_exit_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a sidecar that a shim started stays when it owes nothing to anybody."""

    hold_seconds: Annotated[float, Field(ge=0, le=60)] = 2.0
    """How long a hook may wait for its pair or its parent before it is written as it is."""


class RedactConfig(_Section):
    """``[redact]``: what is taken out before anything is written."""

    enabled: bool = True
    patterns: dict[str, str] = Field(default_factory=dict)
    """Further secrets to find, name = regular expression; the name is what is written instead."""

    keys: tuple[str, ...] = ()
    """Further object keys whose values are taken out whole."""

    @field_validator("patterns")
    @classmethod
    def _compiles(cls, patterns: dict[str, str]) -> dict[str, str]:
        for name, pattern in patterns.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{name} is not a regular expression: {error}") from None
        return patterns


class CaptureConfig(_Section):
    """``[capture]``: what is recorded."""

    exclude: tuple[Path, ...] = ()
    """Project directories, absolute or from ``~``, that are not recorded."""

    @field_validator("exclude")
    @classmethod
    def _absolute(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        expanded = tuple(path.expanduser() for path in paths)
        for path in expanded:
            if not path.is_absolute():
                raise ValueError(f"{path} must be absolute, or begin with ~")
        return expanded


class Config(_Section):
    """All sections. Make one with ``load_config``."""

    store: StoreConfig = StoreConfig()
    link: LinkConfig = LinkConfig()
    redact: RedactConfig = RedactConfig()
    capture: CaptureConfig = CaptureConfig()


def load_config(path: Path | None, **flags: Mapping[str, Any]) -> Config:
    """Read ``path`` (a missing file is an empty one) and the environment.

    ``flags`` are sections: ``load_config(path, link={"port": 7000})``.

    Raises:
        ConfigError: the file is not TOML (with its line), a key is unknown, or a value does not fit.
    """
    content = {} if path is None else _read(path)

    class Sources(Config, BaseSettings):
        model_config = SettingsConfigDict(env_prefix="DURABLE_STREAM_", env_nested_delimiter="__")

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, content)

    try:
        found = Sources(**flags)  # type: ignore[arg-type]
        return Config(**{name: getattr(found, name) for name in Config.model_fields})
    except ValidationError as error:
        problems = [_explain(problem, path, flags) for problem in error.errors(include_url=False)]
        raise ConfigError("; ".join(problems)) from None
    except ValueError as error:  # pydantic-settings: a variable whose text is not JSON
        raise ConfigError(f"environment: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None  # "… (at line 3, column 7)"


def _explain(problem: Mapping[str, Any], path: Path | None, flags: Mapping[str, Any]) -> str:
    where = [str(part) for part in problem["loc"]]
    key = ".".join(where)
    section = f"DURABLE_STREAM_{where[0].upper()}"
    variable = "__".join([section, *(part.upper() for part in where[1:2])])
    names = {name.upper() for name in os.environ}
    if _holds(flags, where):
        source = "command line"
    elif section in names:
        source = f"environment {section}"
    elif any(name == variable or name.startswith(f"{variable}__") for name in names):
        source = f"environment {variable}"
    else:
        source = str(path)
    if problem["type"] == "extra_forbidden":
        return f"{source}: unknown key {key}"
    return f"{source}: {key}: {problem['msg'].removeprefix('Value error, ')}"


def _holds(tree: Any, keys: list[str]) -> bool:
    """Whether ``keys`` lead somewhere in ``tree``; for a list's item, that its list is there is enough."""
    for key in keys:
        if isinstance(tree, list):
            return True
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True
