"""Digests of every prefix of a request, for telling states of different tokens apart."""

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]


class PrefixDigests:
    """64-bit digests of a growing list of tokens.

    The digest of ``n`` tokens is the sum, modulo 2^64, of a mix of each token and its position:
    not for adversaries, but made for whole prompts at once.
    """

    def __init__(self, tokens: npt.NDArray[np.int32]) -> None:
        self._sums = np.zeros(len(tokens) + 1, dtype=np.uint64)
        self._known = 0
        self.extend(tokens)

    def extend(self, tokens: npt.NDArray[np.int32]) -> None:
        """Append tokens, shape ``[num_tokens]``."""
        start, end = self._known, self._known + len(tokens)
        if end >= len(self._sums):
            self._sums = np.concatenate((self._sums, np.zeros(end, dtype=np.uint64)))
        terms = _mix(
            tokens.astype(np.uint64) << np.uint64(32) | np.arange(start, end, dtype=np.uint64)
        )
        self._sums[start + 1 : end + 1] = self._sums[start] + np.cumsum(terms, dtype=np.uint64)
        self._known = end

    def of(self, lengths: npt.NDArray[np.int64]) -> Digests:
        """Return the digests of the first ``lengths[i]`` tokens."""
        if lengths.max(initial=0) > self._known:
            raise IndexError(f"{lengths.max()} tokens were asked for, {self._known} are known")
        return self._sums[lengths]


def _mix(words: Digests) -> Digests:
    """Return the output function of SplitMix64 (Steele, Lea and Flood, 2014) of each word."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
