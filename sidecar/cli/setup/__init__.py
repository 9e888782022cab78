"""The commands under "Set up"."""
