"""Checks of an agent by itself, without a runtime: whether it keeps the contract, and a replay of its history."""
