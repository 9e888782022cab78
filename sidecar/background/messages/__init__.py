"""Messages: what waits until a session or a person has heard it, with one life cycle and one agent."""
