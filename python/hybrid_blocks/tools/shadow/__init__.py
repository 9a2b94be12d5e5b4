"""A replay that follows the traffic of a running engine."""
