"""``HybridMultiConnector``: asks all connectors, and loads from the one that is soonest."""

from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector as VllmMultiConnector,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorMetadata,
    MultiKVConnectorStats,
)

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.offload.multi import stats
from hybrid_blocks.offload.multi.child import Child, Load, Offer, soonest
from hybrid_blocks.offload.multi.options import Options
from hybrid_blocks.offload.tiers.rates import ComputeRate
from hybrid_blocks.vllm.log import logger
from hybrid_blocks.vllm.specs import is_state, window_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class LoadedBytes:
    """Bytes of a load: of attention for each token, of states the same for any length."""

    def __init__(self, kv_cache_config: Any) -> None:
        """Read the groups of an engine."""
        self._of_states = 0
        # Bytes of a token, and the tokens at the end that are loaded; None for all.
        self._of_attention: list[tuple[float, int | None]] = []
        for group in kv_cache_config.kv_cache_groups:
            spec = group.kv_cache_spec
            # A spec of several kinds of layers counts them itself.
            num_layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
            page = spec.page_size_bytes * num_layers
            if is_state(spec):
                self._of_states += page
            else:
                self._of_attention.append((page / spec.block_size, window_of(spec)))

    def of(self, num_tokens: int) -> int:
        """Return the bytes of a load of ``num_tokens`` tokens."""
        if not num_tokens:
            return 0
        attention = sum(
            size * (num_tokens if window is None else min(num_tokens, window))
            for size, window in self._of_attention
        )
        return self._of_states + int(attention)


class HybridMultiConnector(VllmMultiConnector):
    """vLLM's ``MultiConnector``, which stores to all and loads from the first that has tokens.

    This one weighs what the connectors offer. One of them loads, and the rest does not, as there.
    """

    def __init__(
        self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig"
    ) -> None:
        """Make one side of it and of all its connectors."""
        transfer: Any = vllm_config.kv_transfer_config
        options = Options.of(transfer.kv_connector_extra_config)
        if not vllm_config.scheduler_config.disable_hybrid_kv_cache_manager:
            for cls, _ in self._get_connector_classes_and_configs(vllm_config):
                if not supports_hma(cls):
                    raise InvalidArgumentError(
                        f"{cls.__name__} serves no hybrid models: take it out of the list, or set "
                        "--disable-hybrid-kv-cache-manager"
                    )
        super().__init__(vllm_config, role, kv_cache_config)
        self._options = options
        weighed = zip(self._connectors, options.weights, strict=True)
        self._children = [
            Child(connector, place, weight) for place, (connector, weight) in enumerate(weighed)
        ]
        self._bytes = LoadedBytes(kv_cache_config)
        self._computes = ComputeRate()
        self._known: set[str] = set()
        self._chosen: dict[str, tuple[int, bool]] = {}
        self._loads: dict[str, Load] = {}

    @classmethod
    def _get_connector_classes_and_configs(cls, vllm_config: "VllmConfig") -> list[tuple[Any, Any]]:
        """Return each connector's class and configuration.

        vLLM gives all of them one id, by which connectors name what their processes share. Further
        connectors of a class get an id of their own.
        """
        found = super()._get_connector_classes_and_configs(vllm_config)
        of_class: Counter[Any] = Counter()
        for kind, config in found:
            transfer: Any = config.kv_transfer_config
            if number := of_class[kind]:
                transfer.engine_id = f"{transfer.engine_id}-{number}"
            of_class[kind] += 1
        return found

    def on_new_request(self, request: "Request") -> None:
        """Begin to know a request."""
        self._known.add(request.request_id)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return what the chosen connector loads; ``None`` while one is worth waiting for."""
        now, req_id = monotonic(), request.request_id
        self._requests_to_connector.pop(req_id, None)
        self._chosen.pop(req_id, None)
        num_missing = request.num_tokens - num_computed_tokens
        offers: list[Offer] = []
        asynchronous: dict[int, bool] = {}
        waits: list[tuple[Child, float]] = []
        for child in self._children:
            answer = self._ask(child, request, num_computed_tokens, now)
            if answer is None:
                continue
            num_tokens, is_async = answer
            waited = child.note_answer(req_id, is_later=num_tokens is None, now=now)
            if not child.weight:
                continue
            if num_tokens is None:
                waits.append((child, waited))
            elif num_tokens:
                num_bytes = self._bytes.of(num_tokens)
                offers.append(child.offer(num_tokens, num_bytes, now))
                asynchronous[child.place] = is_async
        chosen = soonest(offers, num_missing, self._computes.seconds_per_token)
        if self._is_worth_waiting(waits, chosen, num_missing):
            return None, False
        for child, _ in waits:
            child.counts["not_awaited"] += 1
        for offer in offers:
            if offer is not chosen:
                self._children[offer.child].counts["passed_by"] += 1
        if chosen is None:
            return 0, False
        is_async = asynchronous[chosen.child]
        self._requests_to_connector[req_id] = chosen.child
        self._chosen[req_id] = (chosen.child, is_async)
        return chosen.num_tokens, is_async

    def _ask(
        self, child: Child, request: "Request", num_computed: int, now: float
    ) -> tuple[int | None, bool] | None:
        """Return a connector's answer; ``None`` for an error, or for one that cannot be."""
        if not child.is_asked(now):
            return None
        try:
            num_tokens, is_async = child.connector.get_num_new_matched_tokens(request, num_computed)
        except Exception:
            logger.exception("hybrid_blocks: %s cannot be asked", child.label)
            child.note_error(now)
            return None
        if num_tokens is not None and not 0 <= num_tokens <= request.num_tokens - num_computed:
            logger.warning_once(
                "hybrid_blocks: %s offers %s tokens where a request of %s has %s: not taken",
                *(child.label, num_tokens, request.num_tokens, num_computed),
            )
            child.counts["wrong_answers"] += 1
            return 0, False
        return num_tokens, bool(is_async and num_tokens)

    def _is_worth_waiting(
        self, waits: list[tuple[Child, float]], chosen: Offer | None, num_missing: int
    ) -> bool:
        """Whether a connector that wants to be asked again may still bring more."""
        if chosen is not None:
            if chosen.num_tokens >= num_missing - 1 and not chosen.seconds:
                return False
            longest = self._options.wait
        else:
            computes = self._computes.seconds_per_token
            longest = self._options.patience
            if computes is not None:
                longest = min(longest, max(self._options.wait, num_missing * computes))
        return any(waited < longest for _, waited in waits)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Let the chosen connector load, and the others not."""
        req_id, now = request.request_id, monotonic()
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        for child in self._children:
            child.forget(req_id)
        place, is_async = self._chosen.pop(req_id, (0, False))
        if not num_external_tokens:
            return
        self._end(req_id, now, is_whole=True)
        num_bytes = self._bytes.of(num_external_tokens)
        load = self._children[place].begin(num_external_tokens, num_bytes, now, is_async=is_async)
        load.block_ids = frozenset(number for table in blocks.get_block_ids() for number in table)
        self._loads[req_id] = load

    def _end(self, req_id: str, now: float, *, is_whole: bool) -> None:
        if (load := self._loads.pop(req_id, None)) is not None:
            load.end(now, is_whole=is_whole)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Take in what workers report, and note which loads ended and which failed."""
        super().update_connector_output(connector_output)
        if not self._loads:
            return
        now = monotonic()
        invalid = connector_output.invalid_block_ids
        failed = set(connector_output.failed_recving or ())
        if invalid:
            failed |= {it for it, load in self._loads.items() if load.block_ids & invalid}
        for req_id in failed:
            self._end(req_id, now, is_whole=False)
        for req_id in connector_output.finished_recving or ():
            self._end(req_id, now, is_whole=True)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> MultiKVConnectorMetadata:
        """Return what all workers' connectors do in this step."""
        scheduled = scheduler_output.num_scheduled_tokens
        if scheduler_output.total_num_scheduled_tokens > len(scheduled):
            cached = scheduler_output.scheduled_cached_reqs
            computing = [new.req_id for new in scheduler_output.scheduled_new_reqs]
            computing += [it for it in cached.req_ids if cached.is_context_phase(it)]
            for req_id in computing:
                self._computes.advance(req_id, scheduled[req_id])
        self._computes.end_step(monotonic(), self._known)
        return super().build_connector_meta(scheduler_output)

    def _aggregate_request_finished(
        self, request: "Request", *arguments: Any
    ) -> tuple[bool, dict[str, Any] | None]:
        req_id = request.request_id
        self._known.discard(req_id)
        self._chosen.pop(req_id, None)
        for child in self._children:
            child.forget(req_id)
        load = self._loads.get(req_id)
        if load is not None and load.read is None:
            # Workers report the end of asynchronous loads, also of requests that have ended.
            self._end(req_id, monotonic(), is_whole=True)
        return super()._aggregate_request_finished(request, *arguments)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Return each connector's figures, and what was chosen since the last call."""
        found: dict[str, KVConnectorStats] = {}
        for child in self._children:
            if (own := child.connector.get_kv_connector_stats()) is not None:
                found[stats.key_of(child)] = own
        chosen = stats.ChoiceStats.of(self._children)
        if not chosen.is_empty():
            found[stats.CHOICE] = chosen
        return MultiKVConnectorStats(data=found) if found else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """Read figures that another process sent."""
        return stats.read(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: "VllmConfig", *arguments: Any, **options: Any
    ) -> KVConnectorPromMetrics:
        """Declare the metrics of all connectors; those of one kind share them."""
        children: dict[int, KVConnectorPromMetrics] = {}
        declared: dict[Any, KVConnectorPromMetrics | None] = {}
        for place, (child, config) in enumerate(
            cls._get_connector_classes_and_configs(vllm_config)
        ):
            declare: Any = child.build_prom_metrics
            kind = declare.__func__
            if kind not in declared:
                declared[kind] = declare(config, *arguments, **options)
            if (metrics := declared[kind]) is not None:
                children[place] = metrics
        return stats.SeveralPromMetrics(children, vllm_config, *arguments, **options)


MultiConnector = HybridMultiConnector
"""By vLLM's name, for which vLLM also looks at the connectors in the list, such as NIXL."""
