"""Checks of an agent by itself, without a runtime: purity, and a replay of its history."""
