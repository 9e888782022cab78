"""Capture: turns OpenCode's hooks into events. Pure."""
