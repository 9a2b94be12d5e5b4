"""A KV connector whose answers follow from a request's number, and that notes what it is shown."""

from dataclasses import dataclass
from typing import Any

from hybrid_blocks.tools.profile.engine import NothingToLoad
from hybrid_blocks.tools.profile.loop import fingerprint_schedule
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass
class Seen(KVConnectorMetadata):
    """View of a step: its output, counts of requests, blocks of the requests that it names."""

    step: bytes
    computed: list[tuple[str, int, int]]
    blocks: list[tuple[str, Any]]


def _number(request_id: str) -> int:
    return int(request_id.removeprefix("request"))


def loads_with_first_step(request_id: str) -> bool:
    """Whether a connector fills blocks of this request while its first step runs."""
    return _number(request_id) % 8 == _WITH_FIRST_STEP


_WHILE_OTHERS_RUN, _WITH_FIRST_STEP = 2, 5


class Connector(NothingToLoad):
    """One request in eight loads while others run, one with its first step, and one waits once."""

    def __init__(self, config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(config, role, kv_cache_config)
        self.block_size = config.cache_config.block_size
        self.requests: dict[str, Any] = {}
        self.asked: set[str] = set()
        self.loading: set[str] = set()
        self.sending: set[str] = set()
        self.reported: set[str] = set()

    def on_new_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        kind = _number(request.request_id) % 8
        if kind == 1 and request.request_id not in self.asked:
            self.asked.add(request.request_id)
            return None, False
        left = request.num_prompt_tokens - 1 - num_computed_tokens
        most = left // self.block_size * self.block_size
        if (
            kind not in {_WHILE_OTHERS_RUN, _WITH_FIRST_STEP}
            or most <= 0
            or request.num_preemptions
        ):
            return 0, False
        return most, kind == _WHILE_OTHERS_RUN

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:  # noqa: ARG002
        if num_external_tokens and _number(request.request_id) % 8 == _WHILE_OTHERS_RUN:
            self.loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        state = scheduler_output.kv_connector_block_state
        scheduler_output.kv_connector_block_state = None
        step = fingerprint_schedule(scheduler_output)
        scheduler_output.kv_connector_block_state = state
        return Seen(
            step,
            [
                (id_, request.num_computed_tokens, request.num_output_placeholders)
                for id_, request in self.requests.items()
            ],
            [(id_, state.get_block_ids(id_)) for id_ in sorted(state.req_ids)],
        )

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        number = _number(request.request_id)
        del self.requests[request.request_id]
        is_sent = number % 3 == 0 and request.request_id not in self.loading
        if is_sent:
            self.sending.add(request.request_id)
        handed_on = {"do_remote_prefill": number % 2 == 0, "blocks": repr(block_ids)}
        return is_sent, handed_on if number % 5 else None
