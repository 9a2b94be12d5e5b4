"""A graphics card that is not there: vLLM builds a model as on one, and no tensor has memory.

The card is an H100, or another one of `CARDS`.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from absent_operators import Stream
from torch._C import DisableTorchFunctionSubclass
from torch._ops import _OpNamespace
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map_only
from triton.backends.compiler import GPUTarget
from vllm import platforms
from vllm.platforms.cuda import CudaPlatformBase
from vllm.platforms.interface import DeviceCapability

GIB = 2**30

CARDS = {
    "A100-80GB": {"name": "NVIDIA A100-SXM4-80GB", "major": 8, "minor": 0, "sms": 108, "gib": 80},
    "L40S": {"name": "NVIDIA L40S", "major": 8, "minor": 9, "sms": 142, "gib": 45},
    "H100-80GB": {"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "sms": 132, "gib": 80},
    "B200": {"name": "NVIDIA B200", "major": 10, "minor": 0, "sms": 148, "gib": 178},
    "RTX-PRO-6000": {
        "name": "NVIDIA RTX PRO 6000 Blackwell",
        "major": 12,
        "minor": 0,
        "sms": 188,
        "gib": 95,
    },
}
"""Cards under the names of ``plan --gpu``."""

PROPERTIES = SimpleNamespace(
    shared_memory_per_block_optin=232_448,
    shared_memory_per_multiprocessor=233_472,
    max_threads_per_multi_processor=2048,
    warp_size=32,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
)


class Card(CudaPlatformBase):
    """Answers as a card would, and asks no driver."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:  # noqa: ARG003
        return DeviceCapability(PROPERTIES.major, PROPERTIES.minor)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
        return str(PROPERTIES.name)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:  # noqa: ARG003
        return int(PROPERTIES.total_memory)

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"GPU-{device_id}"

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:  # noqa: ARG003
        return True

    @classmethod
    def device_count(cls) -> int:
        return 8

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:  # noqa: ARG003
        return int(PROPERTIES.multi_processor_count)

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:  # noqa: ARG003
        return False

    @classmethod
    def get_cuda_runtime_major(cls) -> int:
        return 13

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        pass

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False


class FirstRank:
    """The first rank of a group: all that a model asks of its groups while it is built."""

    rank_in_group = local_rank = first_rank = last_rank = 0
    is_first_rank = is_last_rank = True
    device = torch.device("meta")
    device_communicator = mq_broadcaster = None
    use_device_communicator = use_custom_op_call = False
    unique_name = "one"

    def __init__(self, world_size: int = 1) -> None:
        self.world_size = world_size
        self.ranks = tuple(range(world_size))
        self.cpu_group = self.device_group = self

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return self.world_size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


_known_operator = _OpNamespace.__getattr__


def _operator(namespace: _OpNamespace, name: str) -> Any:
    """Return an operator, or a stand-in for one of vLLM's, which nothing calls."""
    try:
        return _known_operator(namespace, name)
    except AttributeError:
        if name.startswith("__") or "_C" not in namespace.name:
            raise
        return Stream()


class Driver(Stream):
    """Triton's driver as kernels ask for it while they are declared."""

    @staticmethod
    def get_current_target() -> GPUTarget:
        return GPUTarget("cuda", 10 * PROPERTIES.major + PROPERTIES.minor, 32)

    @staticmethod
    def get_current_device() -> int:
        return 0

    @staticmethod
    def get_active_torch_device() -> torch.device:
        return torch.device("meta")


def pose(card_name: str = "H100-80GB", platform: type[Card] = Card) -> None:
    """Make this process's vLLM see a card; before any model is imported."""
    card: dict[str, Any] = CARDS[card_name]
    vars(PROPERTIES).update({it: card[it] for it in ("name", "major", "minor")})
    vars(PROPERTIES).update(multi_processor_count=card["sms"], total_memory=card["gib"] * GIB)
    platforms.current_platform = platform()
    from vllm import _custom_ops  # noqa: PLC0415 - asks for the platform

    for name in dir(_custom_ops):
        if "support" in name:
            setattr(_custom_ops, name, lambda *_: True)
    triton.runtime.driver.set_active(Driver())
    from vllm.utils import deep_gemm  # noqa: F401, PLC0415
    from vllm.v1.attention.backends.flashinfer import FlashInferBackend  # noqa: PLC0415

    FlashInferBackend.supports_sink = lambda: True  # type: ignore[method-assign]

    for module in list(sys.modules.values()):
        if "has_deep_gemm" in vars(module):
            module.has_deep_gemm = lambda: True  # type: ignore[attr-defined]


class Meta(TorchFunctionMode):
    """Make tensors without memory; those made from values keep them, for code that reads them."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if function in _device_constructors():
            if device is None and function not in FROM_VALUES:
                kwargs["device"] = "meta"
            elif device is not None and torch.device(device).type == "cuda":
                kwargs["device"] = "cpu" if function in FROM_VALUES else "meta"
        elif function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        elif function is torch.Tensor.to:
            args = tuple(args[0].device if _is_cuda(value) else value for value in args)
            if _is_cuda(device):
                kwargs["device"] = args[0].device
        elif _is_cuda(device):
            kwargs["device"] = "meta"
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if "meta" not in str(error):
                raise
            with DisableTorchFunctionSubclass():
                args, kwargs = tree_map_only(torch.Tensor, lambda t: t.to("meta"), (args, kwargs))
                return function(*args, **kwargs)


FROM_VALUES = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.arange, torch.linspace)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.startswith("cuda")


@contextmanager
def no_device(tp: int = 1) -> Iterator[None]:
    """Answer torch's questions about the card, and make tensors without memory.

    The model is that of the first of ``tp`` ranks.
    """
    from vllm.distributed import parallel_state  # noqa: PLC0415 - after `pose`

    groups = ("_WORLD", "_INNER_DP_WORLD", "_TP", "_ETP", "_DCP", "_PP", "_DP", "_EP", "_EPLB")
    answers: dict[str, Any] = {
        **dict.fromkeys(("is_available", "is_initialized"), lambda: True),
        **dict.fromkeys(("synchronize", "set_device", "_lazy_init"), lambda *_: None),
        **dict.fromkeys(("Stream", "Event", "current_stream", "default_stream"), Stream),
        "device_count": lambda: 8,
        "current_device": lambda: 0,
        "get_device_properties": lambda *_: PROPERTIES,
        "get_device_capability": lambda *_: (PROPERTIES.major, PROPERTIES.minor),
        "get_device_name": lambda *_: PROPERTIES.name,
        "mem_get_info": lambda *_: (PROPERTIES.total_memory,) * 2,
        "is_current_stream_capturing": lambda: False,
    }
    with ExitStack() as stack:
        for name in (*groups, "_PCP"):
            size = tp if name == "_TP" else 1
            stack.enter_context(patch.object(parallel_state, name, FirstRank(size)))
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(_OpNamespace, "__getattr__", _operator))
        stack.enter_context(Meta())
        yield
