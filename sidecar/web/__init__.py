"""The HTTP server behind every page of the product."""
