"""Where records lie in a staging buffer."""

from typing import TYPE_CHECKING

import numpy as np
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.ids import Int32s

if TYPE_CHECKING:
    import torch


class Records:
    """Records of a group's blocks in ``staging``: one may begin at each multiple of ``granule``.

    Raises ``TypeError`` for a buffer that is not uint8. Raises ``ValueError`` for one that is not
    contiguous, out of the device's reach, or part of the group, and for a granule below 1.
    """

    __slots__ = ("granule", "num_bytes", "num_places", "staging")

    def __init__(self, group: BlockTensors, staging: "torch.Tensor", granule: int) -> None:
        self.staging, self.granule, self.num_bytes = staging, granule, group.record_bytes
        dtype = str(staging.dtype).removeprefix("torch.")
        if dtype != "uint8":
            raise TypeError(f"staging must be uint8, got {dtype}")
        if granule < 1:
            raise ValueError(f"granule is {granule}; a record begins at a multiple of 1 or more")
        if not staging.is_contiguous():
            raise ValueError("staging must be contiguous")
        if staging.device != group.device and not (
            staging.device.type == "cpu" and staging.is_pinned()
        ):
            raise ValueError(
                f"staging is on {staging.device}, the tensors on {group.device}: it must be on "
                "the same device or in pinned host memory"
            )
        if group.overlaps(staging.data_ptr(), staging.numel()):
            raise ValueError("staging lies inside the group's tensors")
        #: Places at which a whole record fits.
        self.num_places = max((staging.numel() - self.num_bytes) // granule + 1, 0)

    def check(self, places: Int32s, *, apart: bool) -> None:
        """Raise ``IndexError`` at a place where no whole record fits.

        With ``apart`` also raises ``ValueError`` where two records overlap.
        """
        if not len(places):
            return
        order = np.sort(places)
        if order[0] < 0 or order[-1] >= self.num_places:
            at = int(np.argmax((places < 0) | (places >= self.num_places)))
            raise IndexError(
                f"places[{at}] is {places[at]}: a record of {self.num_bytes} bytes from byte "
                f"{places[at] * self.granule} does not fit {self.staging.numel()} bytes"
            )
        if not apart or len(order) == 1:
            return
        gaps = order[1:] - order[:-1]
        if int(np.minimum.reduce(gaps)) * self.granule < self.num_bytes:
            at = int(np.argmin(gaps))
            raise ValueError(
                f"places {order[at]} and {order[at + 1]} hold records of {self.num_bytes} bytes "
                "that overlap"
            )
