"""The commands about background work."""
