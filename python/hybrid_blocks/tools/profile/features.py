"""Features that requests use beside tokens, and the scheduler's parts for them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.config import KVTransferConfig, VllmConfig
from vllm.config.lora import LoRAConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.outputs import LogprobsLists

from hybrid_blocks.tools.profile.workload import Settings

_IMAGE_TOKENS = 64


class Grammars:
    """Stands for vLLM's manager of grammars: one that takes every token."""

    def accept_tokens(self, request: Any, token_ids: list[int]) -> bool:  # noqa: ARG002
        """Return that a grammar takes tokens."""
        return True


@dataclass(frozen=True)
class NothingToDo(KVConnectorMetadata):
    """Metadata for workers. It compares by its fields, not by its place in memory."""


class NothingToLoad(KVConnectorBase_V1, SupportsHMA):
    """A KV connector that looks at every step and never loads or keeps anything."""

    def get_num_new_matched_tokens(
        self,
        request: Any,  # noqa: ARG002
        num_computed_tokens: int,  # noqa: ARG002
    ) -> tuple[int, bool]:
        """Return that nothing is kept outside."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take note of nothing."""

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:  # noqa: ARG002
        """Return that workers have nothing to do."""
        return NothingToDo()

    def request_finished_all_groups(
        self,
        request: Any,  # noqa: ARG002
        block_ids: Any,  # noqa: ARG002
    ) -> tuple[bool, None]:
        """Return that blocks may be freed."""
        return False, None

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None:
        """Load nothing."""

    def wait_for_layer_load(self, *args: Any, **kwargs: Any) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None:
        """Save nothing."""

    def wait_for_save(self) -> None:
        """Wait for nothing."""


def configure(config: VllmConfig, settings: Settings) -> None:
    """Switch on in a configuration what requests will ask for."""
    if settings.loras:
        config.lora_config = LoRAConfig(max_loras=settings.loras, max_lora_rank=8)
    if settings.connector:
        name = NothingToLoad.__name__
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, __name__, name)
        config.kv_transfer_config = KVTransferConfig(kv_connector=name, kv_role="kv_both")


def equip(scheduler: Any, settings: Settings) -> None:
    """Give a scheduler what a model without images or grammars comes without."""
    if settings.images:
        scheduler.max_num_encoder_input_tokens = 8192
        scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=65_536)
    if settings.grammar:
        scheduler.structured_output_manager = Grammars()


def request_options(settings: Settings, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of the request of that number, and those of its sampling parameters."""
    about: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    if settings.images:
        position = PlaceholderRange(offset=0, length=min(_IMAGE_TOKENS, settings.prompt_tokens))
        image = MultiModalFeatureSpec(
            data=None, modality="image", identifier=f"image{number}", mm_position=position
        )
        about["mm_features"] = [image]
    if settings.loras:
        lora = number % settings.loras + 1
        about["lora_request"] = LoRARequest(f"lora{lora}", lora, "/nowhere")
    if settings.logprobs:
        sampling["logprobs"] = settings.logprobs
    if settings.grammar and number % 4 == 0:
        sampling["structured_outputs"] = StructuredOutputsParams(regex=".*")
    return about, sampling


def allow(request: Any) -> Any:
    """Return a request whose grammar, if it has one, is there."""
    if request.structured_output_request is not None:
        request.structured_output_request.grammar = object()
    return request


def sampler(settings: Settings) -> Callable[[list[int]], tuple[list[list[int]], Any]]:
    """Return what makes up tokens for requests, given how many drafts of each a step verifies.

    A negative number of drafts stands for a request that gets no token. Log probabilities are
    returned beside.
    """
    random = np.random.default_rng(settings.seed)
    width = settings.logprobs + 1

    def sample(num_drafts: list[int]) -> tuple[list[list[int]], Any]:
        draws = random.random((len(num_drafts), max(settings.num_drafts, 1)))
        accepted = np.cumprod(draws < settings.acceptance, axis=1).sum(axis=1).tolist()
        sampled = [
            [] if drafts < 0 else [7] * (1 + min(drafts, taken))
            for drafts, taken in zip(num_drafts, accepted, strict=True)
        ]
        if not settings.logprobs:
            return sampled, None
        starts = np.cumsum([0, *map(len, sampled)]).tolist()
        rows = max(starts[-1], 1)
        ids = np.zeros((rows, width), dtype=np.int32)
        return sampled, LogprobsLists(ids, ids.astype(np.float32), ids[:, 0], starts)

    return sample
