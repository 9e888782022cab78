"""OpenCode as a host of background sessions, in both major versions."""
