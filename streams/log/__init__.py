"""The log over its directory: opening, reading, moving, verifying, repairing."""
