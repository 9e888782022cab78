"""The sqlite backend: one database."""
