"""The manager's message to workers: where chunks lie in host memory."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import BlockIDsLoadStoreSpec


class HostLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Chunks in host memory, by the first byte of each in the region.

    ``block_ids`` holds these bytes as ``int64``: vLLM's worker only counts and slices them.
    """

    def __init__(self, offsets: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Name chunks in the order of the blocks on the device."""
        super().__init__([])
        self.block_ids = np.asarray(offsets, dtype=np.int64)
