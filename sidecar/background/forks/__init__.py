"""A new session from a moment of another one, because a person asked for it."""
