"""The commands under "Check"."""
