"""A log in two places: a journal that acknowledges, and a database that is read."""
