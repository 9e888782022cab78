"""The commands under "Inspect": they only read."""
