"""Runs vLLM's own tests, unmodified, with and without the plugin, and compares the results."""
