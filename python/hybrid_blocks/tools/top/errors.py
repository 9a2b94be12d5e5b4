"""What the view waits out."""


class GoneError(OSError):
    """No engine answers with its figures; the message says why."""
