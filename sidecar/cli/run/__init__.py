"""The commands under "Run"."""
