"""The section ``[gardener]`` of the configuration."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GardenerConfig(BaseModel):
    """``[gardener]``: starts a background agent that looks into a session whose steps fail too often."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = False

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of failed steps in a session's last turns at which an agent is started."""

    calm: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The share below which the session counts as recovered. Until then, it gets no second agent."""

    min_steps: Annotated[int, Field(ge=1, le=10_000)] = 10
    """Minimum number of steps; with fewer, the share is ignored."""

    per_day: Annotated[int, Field(ge=1, le=1000)] = 4
    """Maximum number of agents started in 24 hours."""

    minutes: Annotated[float, Field(gt=0, le=1440)] = 10.0
    """How long each agent may run."""

    agent: Annotated[str, Field(min_length=1, max_length=100)] = "plan"
    """The OpenCode agent to start; choose one that changes no files."""

    @model_validator(mode="after")
    def _calm_is_lower(self) -> Self:
        if self.calm >= self.threshold:
            raise ValueError("`calm` must be lower than `threshold`")
        return self
