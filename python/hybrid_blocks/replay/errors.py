"""What can be wrong with a replay."""


class ReplayError(ValueError):
    """A replay that cannot run as it was asked for."""
