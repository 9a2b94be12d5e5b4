"""Host lists reach the device through a ring of pinned memory that never grows."""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid_blocks.kernels.driver import BareDriver, Driver
from hybrid_blocks.kernels.ids import Int32s

if TYPE_CHECKING:
    import torch

RING_IDS = 1 << 15  # int32 ids: 128 KiB of pinned memory, and as much on the device
MAX_LIST = RING_IDS // 8  # pairs in one launch; a longer list takes several
_ALIGNMENT = 4  # ids: every list starts on 16 bytes


class ListRing:
    """Lists of one stream, on the pinned side and on the device side at the same places.

    A place is used again after the launches that read it: an event behind them guards both sides.
    When the device is so far behind that the ring is full, an upload waits for the oldest launch.
    """

    def __init__(self, driver: Driver | BareDriver, device: "torch.device", stream: int) -> None:
        import torch  # noqa: PLC0415

        self._driver = driver
        self._stream = stream
        self._pinned = torch.empty(RING_IDS, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.device_side = torch.empty(RING_IDS, dtype=torch.int32, device=device)
        self._host = self._pinned.numpy()
        self._host_at = self._pinned.data_ptr()
        self._device_at = self.device_side.data_ptr()
        self._head = 0
        self._open: int | None = None  # where the part that no event guards yet begins
        self._used: deque[tuple[int, int, Any]] = deque()  # begin, end, event: oldest first
        self._events: list[Any] = []

    def put(self, lists: Sequence[Int32s]) -> list[int]:
        """Enqueue the copy of ``lists``; return where each begins, in ids from the ring's start.

        :meth:`close` must follow the launch that reads them; the next call does it otherwise.
        """
        self.close()
        begins, length = [], 0
        for ids in lists:
            begins.append(length)
            length += -(-len(ids) // _ALIGNMENT) * _ALIGNMENT
        at = self._reserve(length)
        for begin, ids in zip(begins, lists, strict=True):
            self._host[at + begin : at + begin + len(ids)] = ids
        self._driver.upload(
            self._device_at + 4 * at, self._host_at + 4 * at, 4 * length, self._stream
        )
        return [at + begin for begin in begins]

    def address(self, at: int) -> int:
        """Return the device address of a place of the ring."""
        return self._device_at + 4 * at

    def close(self) -> None:
        """Guard what was put since the last call by an event behind the launches so far."""
        if self._open is not None:
            event = self._driver.record(self._stream, self._events.pop() if self._events else None)
            self._used.append((self._open, self._head, event))
            self._open = None

    def _reserve(self, length: int) -> int:
        if length > RING_IDS:
            raise ValueError(f"{length} ids do not fit a ring of {RING_IDS}")
        begin = self._head
        if begin + length > RING_IDS:
            # What lies behind the head is older than all before it, and is passed over.
            while self._used and self._used[0][0] >= self._head:
                self._free_oldest()
            begin = 0
        end = begin + length
        while self._used and self._used[0][0] < end and begin < self._used[0][1]:
            self._free_oldest()
        self._open = begin
        self._head = end
        return begin

    def _free_oldest(self) -> None:
        """Wait until the launches that read the oldest place are done."""
        _, _, event = self._used.popleft()
        if not self._driver.is_done(event):
            self._driver.wait(event)
        self._events.append(event)
