"""The checks of ``doctor``, some of which ``status`` runs too: small functions that return findings as data.

Checks only read, and finish in bounded time. ``repairs`` holds the changes that ``doctor --fix`` makes.
"""
