"""The section ``[otel]`` of the configuration."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class OtelConfig(BaseModel):
    """``[otel]``: whether and where spans are sent as they end, with OTLP over HTTP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
        # The errors do not show the address, because it may contain a password.
        try:
            parts = urlsplit(self.endpoint)
            is_one = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
        except ValueError:
            is_one = False
        if not is_one or "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("`endpoint` must be like http://127.0.0.1:4318; secrets belong in `headers`")
        if self.headers and parts.scheme == "http" and not self.is_local:
            raise ValueError("`headers` may hold secrets, so another machine needs an `endpoint` with https://")
        return self
