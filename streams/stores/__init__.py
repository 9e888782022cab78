"""The log on disk: ``journal/`` acknowledges a record, ``sqlite/`` is the database to which it moves.

``plan.py`` decides what an append writes, ``commit.py`` lets many appends share a sync. ``streams/log/`` is the log
that the rest of the program uses.
"""
