"""A live view of an engine in a terminal, from its ``/metrics``."""
