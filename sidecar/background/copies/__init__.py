"""Private copies of a project in which background work edits."""
