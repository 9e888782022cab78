"""The command line's views of a log: the catalog, turns, one event in a line, and the search for what a person
named."""
