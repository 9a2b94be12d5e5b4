"""A connector for outputs of the encoder: answers follow from numbers, and calls are noted."""

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hybrid_blocks.tools.profile.loop import fingerprint_schedule
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata


@dataclass
class Seen(ECConnectorMetadata):
    """View of a step, and the calls since the last one."""

    step: bytes
    calls: list[tuple[Any, ...]]


def _image(identifier: str) -> int:
    return int(identifier.removeprefix("image").partition("-")[0])


class EncoderConnector(ECConnectorBase):
    """One image in five is there already, one comes later, and never comes for some requests."""

    def __init__(self, config: Any, role: Any) -> None:
        super().__init__(config, role)
        self.calls: list[tuple[Any, ...]] = []
        self.asked: Counter[str] = Counter()
        self.lost: set[str] = set()

    def has_cache_item(self, identifier: str) -> bool:
        return _image(identifier) % 5 == 1

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        number = int(request.request_id.removeprefix("request"))
        self.calls.append(("ensure", request.request_id, num_computed_tokens))
        is_here = True
        for image in request.mm_features:
            end = image.mm_position.offset + image.mm_position.length
            if _image(image.identifier) % 5 == 2 and end > num_computed_tokens:
                name = f"{request.request_id} {image.identifier}"
                self.asked[name] += 1
                is_here &= self.asked[name] > 3 or request.num_output_tokens > 4
                if number % 9 == 4 and self.asked[name] > 2:
                    self.lost.add(request.request_id)
        return is_here

    def take_unavailable_requests(self) -> set[str]:
        lost, self.lost = self.lost, set()
        return lost

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        self.calls.append(("alloc", request.request_id, index))

    def update_state_after_free(self, request: Any, index: int) -> None:
        self.calls.append(("free", request.request_id, index))

    def build_connector_meta(self, scheduler_output: Any) -> ECConnectorMetadata:
        state = scheduler_output.kv_connector_block_state
        scheduler_output.kv_connector_block_state = None
        step = fingerprint_schedule(scheduler_output)
        scheduler_output.kv_connector_block_state = state
        # vLLM's code asks again about a running request that finds no blocks.
        calls, self.calls = [call for call, _ in groupby(self.calls)], []
        return Seen(step, calls)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        self.calls.append(("finished", request.request_id))
        return False, {"encoded": request.request_id} if request.mm_features else None

    def start_load_caches(self, encoder_cache: Any, **kwargs: Any) -> None: ...
    def save_caches(self, encoder_cache: Any, mm_hash: str, **kwargs: Any) -> None: ...
