"""The sections ``[notify]``, ``[gardener]``, ``[metrics]``, ``[otel]`` and ``[team]``: what watches, and who learns of
it."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Annotated, Final, Literal, Self
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

Turns = Literal["off", "away", "unless-in-front", "always"]


class Section(BaseModel):
    """A section of the configuration. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def address_of(text: str, *schemes: str) -> SplitResult | None:
    """The parts of an address with a host. Errors must not show it, because it may have a password."""
    try:
        parts = urlsplit(text)
        return parts if parts.scheme in schemes and parts.hostname and (parts.port or 1) > 0 else None
    except ValueError:
        return None


def is_local_host(host: str) -> bool:
    """Whether a host, an address or the directory of a socket is on this machine."""
    if host.startswith("/") or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class NotifyConfig(Section):
    """``[notify]``: how a person learns what is waiting or has ended."""

    urls: tuple[str, ...] = ()
    """Apprise addresses, such as ``ntfy://topic``: a phone, a chat, an email address. Needs the extra ``notify``."""

    desktop: bool = False
    """Whether this machine's desktop shows a notification before ``urls`` are used."""

    command: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """A program of yours that takes a message, used together with ``urls``: it reads the text from its standard input,
    and the title from the variable ``TITLE``. The program must exit with code 0 within 20 seconds."""

    quiet_hours: Annotated[
        str, Field(pattern=r"^(([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d)?$", examples=["22:00-07:00"])
    ] = ""
    """Quiet hours in local time, such as ``22:00-07:00``, when neither the desktop nor ``urls`` are used. Messages that
    are due in quiet hours are sent afterwards.
    """

    min_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Background work that succeeded in less time is reported only to the model, and shorter turns not at all."""

    turns: Turns = "off"
    """Whether the end of an ordinary turn that took ``min_seconds`` is reported: ``off``; ``away``, if its terminal
    says that it is not in front; ``unless-in-front``, also if the terminal says nothing; ``always``."""

    cost: Annotated[float, Field(ge=0, examples=[5.0])] = 0.0
    """Dollars that a session with its child sessions may cost before a person is warned, and at each doubling of that;
    0: no limit. Nothing is stopped."""

    escalate_after_seconds: Annotated[float, Field(ge=0, le=86_400)] = 120.0
    """If nobody has seen a message for this long, the next channel is used."""

    answer_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the page on which a link in a message answers a checkpoint; 0: no page and no links."""

    answer_host: Annotated[str, Field(pattern=r"^[0-9A-Fa-f.:]{2,45}$", examples=["127.0.0.1"])] = "127.0.0.1"
    """The address of this machine on which the page listens. The page uses plain HTTP, which is not encrypted."""

    answer_url: Annotated[
        str,
        Field(pattern=r"^(https?://[^\s?#]+)?$", max_length=500, examples=["https://answers.example.org"]),
    ] = ""
    """Where your phone reaches the page, such as the address of a tunnel; empty: at the address and port above."""

    @model_validator(mode="after")
    def _has_an_address(self) -> Self:
        if self.answer_port and not self.answer_url and self.answer_host.strip("0:.") == "":
            raise ValueError("`answer_host` is every address of this machine, so links need `answer_url`")
        return self


class GardenerConfig(Section):
    """``[gardener]``: starts a background agent that looks into a session whose steps fail too often."""

    enabled: bool = False


class MetricsConfig(Section):
    """``[metrics]``: whether Prometheus can scrape the sidecar."""

    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port on 127.0.0.1 of ``GET /metrics``; 0: none."""


class OtelConfig(Section):
    """``[otel]``: whether and where spans are sent as they end, with OTLP over HTTP."""

    endpoint: str = ""
    """The receiver's address without ``/v1/traces``, such as ``http://127.0.0.1:4318``; empty: none."""

    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers of each request, such as the receiver's key."""

    @property
    def is_local(self) -> bool:
        """Whether the receiver is on this machine."""
        return urlsplit(self.endpoint).hostname in ("127.0.0.1", "localhost", "::1")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.endpoint:
            return self
        parts = address_of(self.endpoint, "http", "https")
        if parts is None or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("`endpoint` must be like http://127.0.0.1:4318; secrets belong in `headers`")
        if self.headers and parts.scheme == "http" and not self.is_local:
            raise ValueError("`headers` may hold secrets, so another machine needs an `endpoint` with https://")
        return self


_OF_AN_ADDRESS: Final = frozenset({"host", "sslrootcert", "sslcert", "sslkey"})


class TeamConfig(Section):
    """``[team]``: the Postgres to which this home is copied, for all machines of a team."""

    database: str = ""
    """Its address without a password, such as ``postgresql://laptop@db.example.org/team``; empty: none. Needs the extra
    ``team``."""

    password: SecretStr | None = None
    """The password; without it, that of libpq's password file."""

    machine: Annotated[str, Field(max_length=100)] = ""
    """What the team, and the other machines on the NATS server, call this machine; empty: its host name."""

    @property
    def machine_name(self) -> str:
        return self.machine or socket.gethostname()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.database:
            return self
        parts = address_of(self.database, "postgresql", "postgres") or _of_a_socket(self.database)
        if parts is None:
            raise ValueError("`database` must be like postgresql://user@host:5432/name")
        options = parse_qsl(parts.query, keep_blank_values=True)
        if parts.password is not None or "password" in dict(options):
            raise ValueError("`database` must not hold the password, which belongs in `password`")
        if bad := sorted({name for name, _ in options} - _OF_AN_ADDRESS):
            raise ValueError(f"`database` cannot set {', '.join(bad)}; it may set {', '.join(sorted(_OF_AN_ADDRESS))}")
        return self


def _of_a_socket(text: str) -> SplitResult | None:
    """The parts of an address without a host that names the directory of a socket."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    is_one = parts.scheme in ("postgresql", "postgres") and dict(parse_qsl(parts.query)).get("host", "").startswith("/")
    return parts if is_one else None
