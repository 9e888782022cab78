"""A team's Postgres: many homes in one place, each copied there by its own sidecar."""
