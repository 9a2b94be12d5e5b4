"""Writes the traffic of a running engine to a file, without its prompts."""
