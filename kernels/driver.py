"""The parts of CUDA that this package uses, by CuPy: modules, launches, events, uploads."""

from functools import cache
from typing import TYPE_CHECKING, Any

from hybrid_blocks.kernels.sources import OPTIONS

if TYPE_CHECKING:
    from cupy.cuda import Event

_CAPTURE_IMPLICIT = 906


class Driver:
    """CuPy's driver and runtime, or what stands for them in a test.

    Streams, kernels and parameters are raw addresses. ``launch`` takes a kernel, three sizes of the
    grid and of a block, bytes of shared memory, a stream, the parameters and 0.
    """

    def __init__(self) -> None:
        import cupy  # noqa: PLC0415 - it is optional

        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self.launch = cupy.cuda.driver.launchKernel
        self.upload_kind = self._runtime.memcpyHostToDevice

    def module(self, text: str) -> Any:
        """Return CuPy's module of a source, compiled or found in CuPy's cache on disk."""
        return self._cupy.RawModule(code=text, options=OPTIONS)

    def function(self, module: Any, name: str) -> int:
        """Return a kernel of a module, loaded on the current device."""
        address: int = module.get_function(name).kernel.ptr
        return address

    def upload(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Enqueue a copy from pinned host memory."""
        self._runtime.memcpyAsync(target, source, num_bytes, self.upload_kind, stream)

    def record(self, stream: int, event: "Event | None") -> "Event":
        """Let ``event``, or a new one, be done when the stream's work so far is done."""
        event = event or self._cupy.cuda.Event(disable_timing=True)
        self._runtime.eventRecord(event.ptr, stream)
        return event

    def is_done(self, event: "Event") -> bool:
        """Return whether the work before ``event`` is done."""
        done: bool = event.done
        return done

    def wait(self, event: "Event") -> None:
        """Block the host until ``event`` is done."""
        event.synchronize()

    def is_capturing(self, stream: int) -> bool:
        """Return whether a CUDA graph is being captured on ``stream``."""
        try:
            return bool(self._runtime.streamIsCapturing(stream))
        except self._runtime.CUDARuntimeError as error:
            if error.status == _CAPTURE_IMPLICIT:  # the legacy stream while another one captures
                return True
            raise


@cache
def driver() -> Driver:
    """Return the driver of this process, made at the first call."""
    return Driver()
