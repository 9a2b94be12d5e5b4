"""The scheduler side of pulls by NIXL, which over slabs bounds what waits for its reader."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)

from hybrid_blocks import metrics as figures
from hybrid_blocks.arithmetic import ceil_div
from hybrid_blocks.metrics import Sample
from hybrid_blocks.offload.nixl import params
from hybrid_blocks.offload.nixl.held import DEFAULT_SHARE, SHARE, Held
from hybrid_blocks.offload.nixl.stalled import Stalled, StalledReads
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.specs import is_state

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.utils import BlockIds
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class HandshakeData(dict[tuple[int, int], bytes]):
    """Payloads by rank for the thread that answers readers, which an error would end."""

    def __missing__(self, rank: object) -> bytes:
        """Return for a rank that the engine lacks what its reader refuses to decode."""
        return b""


class HybridNixlScheduler(NixlPullConnectorScheduler):
    """vLLM's scheduler side, which follows no field of a request that it has not checked."""

    num_groups: int | None = None

    def __init__(self, vllm_config: "VllmConfig", engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        transfer: Any = vllm_config.kv_transfer_config
        self._recomputes = transfer.kv_load_failure_policy == "recompute"
        self._handshake_data = HandshakeData()

    def on_new_request(self, request: "Request") -> None:
        """Begin to know a request."""
        found = params.of_request(request.kv_transfer_params)
        if found is not None and params.names_source(found):
            found = self._checked(request.request_id, found)
        request.kv_transfer_params = found
        super().on_new_request(request)

    def _checked(self, request_id: str, found: dict[str, Any]) -> dict[str, Any]:
        is_prefilled = bool(found.get("do_remote_prefill"))
        if not is_prefilled and not self.is_bidirectional_kv_xfer_enabled:
            # vLLM would wait for a read that it never begins.
            return params.without_source(found)
        why = params.refusal(found, self.engine_id, self.num_groups)
        if why is None:
            return {name: value for name, value in found.items() if value is not None}
        is_computed = self._recomputes or not is_prefilled
        logger.warning(
            "hybrid_blocks: request %s reads no other engine and %s: %s; let a router alone set "
            "kv_transfer_params",
            request_id,
            "is computed" if is_computed else "fails",
            why,
        )
        return params.without_source(found) if is_computed else params.with_failing_read()


class SlabNixlScheduler(HybridNixlScheduler):
    """The side over slabs. A prompt for which there is no room is computed by its reader."""

    def __init__(self, vllm_config: "VllmConfig", engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.num_groups = len(kv_cache_config.transfer_groups)
        transfer: Any = vllm_config.kv_transfer_config
        self._held = Held(kv_cache_config, transfer.get_from_extra_config(SHARE, DEFAULT_SHARE))
        self._stalled: Stalled | None = None

    def bind(self, manager: Any) -> None:
        """Get the manager of the blocks, and show the figures of this side next to its own."""
        self._stalled = Stalled(manager)
        manager.add_samples(self.samples)

    def request_finished(
        self, request: "Request", block_ids: "BlockIds"
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether blocks wait for their reader, and what it needs to read them."""
        is_held, params = super().request_finished(request, self._computed(request, block_ids))
        if not is_held:
            return False, params
        if self._held.take(request.request_id, block_ids):
            assert params is not None
            # A reader that comes later must not read what lies there by then.
            params["remote_blocks_expiry_time"] = self._reqs_need_send[request.request_id]
            return True, params
        self._reqs_need_send.pop(request.request_id, None)
        self._reqs_not_processed.add(request.request_id)
        return False, None

    def _computed(self, request: "Request", block_ids: "BlockIds") -> tuple[list[int], ...]:
        """Leave out blocks behind the prompt: a reader takes the last ones for its own last."""
        known = min(request.num_computed_tokens, request.num_prompt_tokens)
        specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        return tuple(
            ids if is_state(spec) else ids[: ceil_div(known, spec.block_size)]
            for ids, spec in zip(block_ids, specs, strict=True)
        )

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Forget what was read, and what no reader came for in time; keep what may be written."""
        super().update_connector_output(connector_output)
        if self._stalled is not None:
            reads = connector_output.kv_connector_worker_meta
            if isinstance(reads, StalledReads):
                self._stalled.hear(reads)
            for request in connector_output.finished_recving or ():
                self._stalled.keep(request)
        for request in connector_output.finished_sending or ():
            self._held.give_back(request)

    def samples(self) -> list[Sample]:
        """Return what waits, how many prompts found no room, and reads that did not end in time."""
        stalled = self._stalled
        return [
            figures.HELD_SLABS.sample(self._held.num_slabs),
            figures.HELD_REFUSED.sample(self._held.num_refused),
            figures.STALLED_SLABS.sample(stalled.num_slabs if stalled else 0),
            figures.STALLED_READS.sample(stalled.num_given_up if stalled else 0),
        ]
