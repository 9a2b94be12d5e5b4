"""Host lists reach the device without a wait, and without an allocation once warm."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from hybrid_blocks.kernels.blocks import Int32s

if TYPE_CHECKING:
    import torch


class UploadRing:
    """Pinned buffers of one stream, each reused once the device has read it.

    Kernels of the same stream read the device copy, so a later upload cannot overtake them; the
    event guards only the pinned side. The ring grows while the host runs ahead of the device and
    then stays as it is.
    """

    def __init__(self, device: "torch.device") -> None:
        self.device = device
        self._free: deque[tuple[torch.Tensor, torch.Tensor, torch.cuda.Event]] = deque()

    def upload(self, lists: Sequence[Int32s]) -> list["torch.Tensor"]:
        """Copy ``lists`` to the device in one transfer on the current stream."""
        import torch  # noqa: PLC0415

        starts = np.cumsum([0, *(-(-len(ids) // 4) * 4 for ids in lists)])
        total = int(starts[-1])
        pinned, device, event = self._buffer(total)
        staged = pinned.numpy()
        for start, ids in zip(starts, lists, strict=False):
            staged[start : start + len(ids)] = ids
        device[:total].copy_(pinned[:total], non_blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        self._free.append((pinned, device, event))
        return [device[s : s + len(ids)] for s, ids in zip(starts, lists, strict=False)]

    def _buffer(self, length: int) -> tuple["torch.Tensor", "torch.Tensor", "torch.cuda.Event"]:
        import torch  # noqa: PLC0415

        if self._free and self._free[0][2].query():
            buffer = self._free.popleft()
            if len(buffer[0]) >= length:
                return buffer
        capacity = max(1024, 1 << (length - 1).bit_length())
        return (
            torch.empty(capacity, dtype=torch.int32, pin_memory=True),
            torch.empty(capacity, dtype=torch.int32, device=self.device),
            torch.cuda.Event(),
        )


_rings: dict[Any, UploadRing] = {}


def upload(device: "torch.device", lists: Sequence[Int32s]) -> list["torch.Tensor"]:
    """Return ``lists`` as int32 tensors on ``device``, in the order of the current stream.

    Raises ``RuntimeError`` while a CUDA graph is
    captured: a replay would read buffers that were filled anew since.
    """
    import torch  # noqa: PLC0415

    if device.type == "cpu":
        return [torch.tensor(ids) for ids in lists]
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "host lists cannot be captured in a CUDA graph; pass int32 tensors on the device, "
            "padded with -1, and refill them before each replay"
        )
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key not in _rings:
        _rings[key] = UploadRing(device)
    return _rings[key].upload(lists)
