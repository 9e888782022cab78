"""The log over its directory: opening, reading, migrating, verifying, repairing."""
