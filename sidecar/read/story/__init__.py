"""A session at any moment, from tables beside the records.

Each row knows the record that bore it and the record that ended it, so the past is a condition of a query. ``rules``
says what each event bears and ends; ``writing`` keeps the tables; ``reading`` opens them as of one moment of the log.
"""
