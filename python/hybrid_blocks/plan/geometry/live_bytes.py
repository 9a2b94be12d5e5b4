"""Which tokens of a request are still read."""


def live_tokens(length: int, *, kind: str, window: int | None, encoder_tokens: int | None) -> int:
    """Tokens of a request of ``length`` tokens that a token cache must keep.

    All for full attention, the last ``window`` for a sliding window, those of the last, maybe
    partial chunk for chunked attention, the encoder's for cross attention.
    """
    if encoder_tokens is not None:
        return encoder_tokens
    if window is None:
        return length
    if kind == "chunked":
        return length - (length - 1) // window * window
    return min(length, window)
