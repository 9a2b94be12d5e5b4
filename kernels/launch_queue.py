"""One stream of a device: its list ring, and what must stay alive until its launches are done."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from hybrid_blocks.kernels import driver as drivers
from hybrid_blocks.kernels.ids import IdList, Int32s
from hybrid_blocks.kernels.upload import ListRing

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")


class LaunchQueue:
    """Launches of one stream. Calls from several threads take turns.

    ``handle`` is the raw stream, and the key of its queue. A new stream with the handle of a
    destroyed one takes over its ring, which the older one's events keep safe.
    """

    def __init__(self, device: "torch.device", handle: int) -> None:
        self.device = device
        self.handle = handle
        self._ordinal = None if device.type == "cpu" else device.index
        self.lock = threading.RLock()
        self._kept: deque[tuple[Any, torch.Tensor]] = deque()

    @cached_property
    def driver(self) -> drivers.Driver | drivers.BareDriver:
        """The driver of this queue's events and uploads."""
        return drivers.queues_driver()

    @cached_property
    def ring(self) -> ListRing:
        """Where host lists that are too long for a kernel's parameters go; made at first use."""
        with self.activate():
            return ListRing(self.driver, self.device, self.handle)

    def is_current_device(self) -> bool:
        """Return whether driver calls of this thread already go to the queue's device."""
        return self._ordinal is None or _torch_cuda("_cuda_getDevice")() == self._ordinal

    @cached_property
    def stream(self) -> "torch.cuda.Stream":
        """The stream as torch knows it."""
        import torch  # noqa: PLC0415

        if self.handle == 0:  # for which ExternalStream makes a new stream, in no order with it
            return torch.cuda.default_stream(self.device)
        return torch.cuda.ExternalStream(self.handle, device=self.device)

    def activate(self) -> "AbstractContextManager[Any]":
        """Return a context in which torch's and Triton's launches go to this stream."""
        if self.device.type == "cpu":
            return nullcontext()
        import torch  # noqa: PLC0415

        return torch.cuda.stream(self.stream)

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured on this stream."""
        return self._ordinal is not None and self.driver.is_capturing(self.handle)

    def check_not_capturing(self) -> None:
        """Raise ``RuntimeError`` while a graph is captured: a replay would repeat these ids."""
        if self.is_capturing():
            raise RuntimeError(
                "host lists cannot be captured in a CUDA graph; pass int32 tensors on the device, "
                "padded with -1, and refill them before each replay"
            )

    def on_device(self, lists: Sequence[IdList]) -> "list[torch.Tensor]":
        """Return the lists as tensors on the device; :meth:`done` must follow what reads them."""
        import torch  # noqa: PLC0415

        if not isinstance(lists[0], np.ndarray):
            return list(lists)  # type: ignore[arg-type]
        if self.device.type == "cpu":
            return [torch.tensor(ids) for ids in lists]
        return self.on_device_side(lists)  # type: ignore[arg-type]

    def on_device_side(self, lists: Sequence[Int32s]) -> "list[torch.Tensor]":
        """Return the lists as parts of the ring; :meth:`done` must follow what reads them."""
        begins = self.ring.put(lists)
        side = self.ring.device_side
        return [side[at : at + len(ids)] for at, ids in zip(begins, lists, strict=True)]

    def addresses(self, lists: Sequence[IdList]) -> list[int]:
        """Return where the lists lie on the device; :meth:`done` must follow what reads them."""
        if isinstance(lists[0], np.ndarray):
            ring = self.ring
            return [ring.address(at) for at in ring.put(lists)]  # type: ignore[arg-type]
        return [ids.data_ptr() for ids in lists]  # type: ignore[union-attr]

    def done(self) -> None:
        """Let the memory of uploaded lists be used again after the launches so far."""
        if "ring" in self.__dict__:
            self.ring.close()

    def guard(self, *tensors: Any, own_stream: bool, may_capture: bool = True) -> None:
        """Keep the memory of tensors that launches on this stream still use.

        Memory of the device is recorded for the stream if the caller named one (``own_stream``).
        Pinned memory keeps a reference until the launches so far are done, because torch's
        allocator does not see a kernel's accesses. A capture needs no reference, since host lists
        rule it out (``may_capture=False``).
        """
        if self.device.type == "cpu":
            return
        for tensor in tensors:
            if isinstance(tensor, np.ndarray):
                continue
            if tensor.is_cuda:
                if own_stream:
                    tensor.record_stream(self.stream)
            elif not (may_capture and self.is_capturing()):
                self.keep(tensor)

    def keep(self, tensor: "torch.Tensor") -> None:
        """Hold a reference to ``tensor`` until the stream's work so far is done."""
        with self.lock:
            event = None
            while self._kept and self.driver.is_done(self._kept[0][0]):
                event, _ = self._kept.popleft()
            with self.activate():
                self._kept.append((self.driver.record(self.handle, event), tensor))


_queues: "dict[tuple[torch.device, int], LaunchQueue]" = {}


def queue_of(device: "torch.device", stream: "torch.cuda.Stream | None") -> LaunchQueue:
    """Return the queue of ``stream``, or of torch's current stream of ``device``.

    Raises ``ValueError`` for a stream of another device, or any stream for CPU tensors.
    """
    if device.type == "cpu":
        if stream is not None:
            raise ValueError("CPU tensors take no stream: the work is done when the call returns")
        handle = 0
    elif stream is None:
        handle = _torch_cuda("_cuda_getCurrentRawStream")(device.index)
    elif stream.device != device:
        raise ValueError(f"the stream is on {stream.device}, the tensors are on {device}")
    else:
        handle = stream.cuda_stream
    queue = _queues.get((device, handle))
    if queue is None:
        queue = _queues.setdefault((device, handle), LaunchQueue(device, handle))
    return queue


@cache
def _torch_cuda(name: str) -> Callable[..., int]:
    """Return one of torch's own queries, which Triton's launcher uses too: no object is made."""
    import torch  # noqa: PLC0415

    function: Callable[..., int] = getattr(torch._C, name)
    return function


def on_its_stream(
    function: Callable[Concatenate[LaunchQueue, P], R],
) -> Callable[Concatenate[LaunchQueue, P], R]:
    """Let a version that launches through torch or Triton run on its queue's stream."""

    @wraps(function)
    def run(queue: LaunchQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with queue.lock, queue.activate():
            result = function(queue, *args, **kwargs)
            queue.done()
            return result

    return run
