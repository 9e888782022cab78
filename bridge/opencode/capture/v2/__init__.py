"""Translates the durable events of OpenCode 2's sessions into events of the log. Pure."""
