"""Errors, records and token layouts: what every room may know."""
