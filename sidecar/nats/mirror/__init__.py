"""The mirror's task and the commands that verify and rebuild it."""
