"""The parts of CUDA that this package uses, by CuPy: modules, launches, events, uploads."""

from ctypes import CDLL, byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hybrid_blocks.kernels.sources import OPTIONS

if TYPE_CHECKING:
    from cupy.cuda import Event

_CAPTURE_IMPLICIT = 906
_NO_CONTEXT = (3, 201)
_NO_TIMING = 2


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


class BareDriver:
    """What Triton's launches need beside Triton where CuPy is missing: events and uploads."""

    def __init__(self) -> None:
        self.library = library()

    def upload(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        """Enqueue a copy from pinned host memory."""
        self._call(
            "cuMemcpyHtoDAsync_v2",
            *(c_void_p(target), c_void_p(source), c_size_t(num_bytes), c_void_p(stream)),
        )

    def record(self, stream: int, event: "_Event | None") -> "_Event":
        """Let ``event``, or a new one, be done when the stream's work so far is done."""
        if event is None:
            event = _Event(self.library)
            self._call("cuEventCreate", byref(event), c_uint(_NO_TIMING))
        self._call("cuEventRecord", event, c_void_p(stream))
        return event

    def is_done(self, event: "_Event") -> bool:
        """Return whether the work before ``event`` is done."""
        return not self.library.cuEventQuery(event)

    def wait(self, event: "_Event") -> None:
        """Block the host until ``event`` is done."""
        self._call("cuEventSynchronize", event)

    def is_capturing(self, stream: int) -> bool:
        """Return whether a CUDA graph is being captured on ``stream``."""
        state = c_int()
        status = self.library.cuStreamIsCapturing(c_void_p(stream), byref(state))
        if status in _NO_CONTEXT:  # this thread has done nothing on a device
            return False
        return status == _CAPTURE_IMPLICIT or bool(state.value)

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, name)(*arguments):
            raise RuntimeError(f"{name} returned {status}")


class _Event(c_void_p):
    """An event that ends with its last reference."""

    def __init__(self, library: CDLL) -> None:
        super().__init__()
        self._library = library

    def __del__(self) -> None:
        if self:
            self._library.cuEventDestroy_v2(self)


@cache
def library() -> CDLL:
    """Return the driver's library."""
    return CDLL("libcuda.so.1")


@cache
def driver() -> Driver:
    """Return CuPy's driver of this process, made at the first call."""
    return Driver()


@cache
def queues_driver() -> Driver | BareDriver:
    """Return the driver of events and uploads, which needs no CuPy."""
    return driver() if find_spec("cupy") else BareDriver()
