"""Capture: from OpenCode's hooks to events. Pure."""
