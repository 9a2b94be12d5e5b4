"""The CUDA driver through ctypes: the few calls that launch kernels and feed them lists.

A launch from prepared arguments is one foreign call of four pointers, which is what keeps a call
of this package in microseconds.
"""

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"

_NOT_READY = 600
_CAPTURE_IMPLICIT = 906
_EVENT_DISABLE_TIMING = 2
_MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

# CUdevice_attribute
SM_COUNT = 16
COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
SHARED_BYTES_AN_SM = 81
SHARED_BYTES_A_BLOCK = 97  # with the opt-in


class DriverError(RuntimeError):
    """A driver call failed; the message names the call and the driver's reason."""


class Driver:
    """libcuda, or what stands for it in a test."""

    def __init__(self, path: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(path)
        self.launch_kernel = self._library.cuLaunchKernelEx
        self._memcpy = self._library.cuMemcpyHtoDAsync_v2
        self._record = self._library.cuEventRecord
        self._query = self._library.cuEventQuery
        self._capturing = self._library.cuStreamIsCapturing

    def check(self, status: int, call: str) -> None:
        """Raise ``DriverError`` unless ``status`` is success."""
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(c_int(status), byref(text))
            reason = (text.value or b"unknown error").decode()
            raise DriverError(f"{call} returned {status}: {reason}")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a driver function that is not on a hot path."""
        self.check(getattr(self._library, name)(*arguments), name)

    def has(self, name: str) -> bool:
        """Return whether this driver knows the function."""
        return hasattr(self._library, name)

    def attribute(self, ordinal: int, attribute: int) -> int:
        """Return a ``CUdevice_attribute`` of a device."""
        device, value = c_int(), c_int()
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        self.call("cuDeviceGetAttribute", byref(value), c_int(attribute), device)
        return value.value

    def load(self, machine_code: bytes) -> c_void_p:
        """Load a module into the current context."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), machine_code)
        return module

    def function(self, module: c_void_p, name: str) -> c_void_p:
        """Return a kernel of a module."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def allow_shared_bytes(self, function: c_void_p, num_bytes: int) -> None:
        """Let ``function`` be launched with up to ``num_bytes`` of dynamic shared memory."""
        self.call(
            "cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED_BYTES), c_int(num_bytes)
        )

    def parameter_bytes(self, function: c_void_p) -> list[int] | None:
        """Return the size of each parameter of a kernel, or None where the driver cannot tell."""
        if not self.has("cuFuncGetParamInfo"):  # before CUDA 12.4
            return None
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        describe = self._library.cuFuncGetParamInfo
        while not describe(function, c_size_t(len(sizes)), byref(offset), byref(size)):
            sizes.append(size.value)
        return sizes

    def copy_to_device(self, target: int, source: int, num_bytes: int, stream: c_void_p) -> None:
        """Enqueue a copy from pinned host memory."""
        status = self._memcpy(c_void_p(target), c_void_p(source), c_size_t(num_bytes), stream)
        self.check(status, "cuMemcpyHtoDAsync")

    def copy_batch(
        self, targets: int, sources: int, sizes: int, count: int, stream: c_void_p
    ) -> None:
        """Enqueue ``count`` copies given by three arrays of 64-bit addresses and sizes.

        The copies keep the order of the stream but none among themselves; no SM is used.
        """
        attributes = (_CopyAttributes * 1)(_CopyAttributes(src_access_order=1))
        first = (c_size_t * 1)(0)
        self.call(
            "cuMemcpyBatchAsync_v2",
            *(c_void_p(targets), c_void_p(sources), c_void_p(sizes), c_size_t(count)),
            *(attributes, first, c_size_t(1), stream),
        )

    def new_event(self) -> c_void_p:
        """Return an event without timing."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(_EVENT_DISABLE_TIMING))
        return event

    def record(self, event: c_void_p, stream: c_void_p) -> None:
        """Let ``event`` be done when the stream's work so far is done."""
        self.check(self._record(event, stream), "cuEventRecord")

    def is_done(self, event: c_void_p) -> bool:
        """Return whether the work before ``event`` is done."""
        status = self._query(event)
        if status == _NOT_READY:
            return False
        self.check(status, "cuEventQuery")
        return True

    def wait(self, event: c_void_p) -> None:
        """Block the host until ``event`` is done."""
        self.call("cuEventSynchronize", event)

    def is_capturing(self, stream: c_void_p) -> bool:
        """Return whether a CUDA graph is being captured on ``stream``."""
        state = c_int()
        status = self._capturing(stream, byref(state))
        if status == _CAPTURE_IMPLICIT:  # the legacy stream while another one captures
            return True
        self.check(status, "cuStreamIsCapturing")
        return state.value != 0


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _CopyAttributes(ctypes.Structure):
    _fields_ = (
        ("src_access_order", c_int),
        ("src_location_hint", _Location),
        ("dst_location_hint", _Location),
        ("flags", c_uint),
    )


@cache
def driver() -> Driver:
    """Return the driver of this process, loaded at the first call."""
    return Driver()
