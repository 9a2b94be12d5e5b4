"""Content digests of blocks."""

import hashlib

import numpy as np
import numpy.typing as npt


class DigestChain:
    """Digests of a growing list of tokens: one per full block, over all tokens up to its end."""

    def __init__(self, block_size: int, tokens: npt.NDArray[np.int32]) -> None:
        self._block_size = block_size
        self._partial: list[int] = []
        self.num_tokens = 0
        self.digests: list[bytes] = []
        self.extend(tokens)

    def extend(self, tokens: npt.NDArray[np.int32]) -> None:
        """Append tokens and digest the blocks that they fill."""
        self.num_tokens += len(tokens)
        self._partial.extend(tokens.tolist())
        while len(self._partial) >= self._block_size:
            content = np.array(self._partial[: self._block_size], dtype=np.int32).tobytes()
            parent = self.digests[-1] if self.digests else b""
            self.digests.append(hashlib.sha256(parent + content).digest())
            del self._partial[: self._block_size]
