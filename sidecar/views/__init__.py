"""The command line's views of a log: catalog, turns, one event in a line, and finding what a person named."""
