"""vLLM's ``KVCacheManager`` at level ``manager``: every decision in one call into Rust."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, RequestStatus

from hybrid_blocks._core.vllm import AllocatedBlocks, Block, Blocks, RustKVCacheManager
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.manager import events
from hybrid_blocks.vllm.manager.geometry import Geometry, geometry, unsupported_reason
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.specs import is_state

_WAITING = [RequestStatus.WAITING, RequestStatus.PREEMPTED]


class NativeKVCacheManager(RustKVCacheManager, KVCacheManager):  # type: ignore[misc]
    """A drop-in for vLLM's manager: same decisions, block by block.

    vLLM's own classes are constructed once, for what they work out about the groups and for
    connectors to look at. No request passes through them: what they say of requests is a view.
    """

    hybrid_blocks_level = Level.MANAGER

    def __init__(
        self, kv_cache_config: KVCacheConfig, *args: Any, use_eagle: bool = False, **kwargs: Any
    ) -> None:
        KVCacheManager.__init__(self, kv_cache_config, *args, use_eagle=use_eagle, **kwargs)
        pools = self._pools_of_groups()
        self.empty_kv_cache_blocks = self._start(  # type: ignore[assignment]
            self.block_pool._blocks,  # type: ignore[attr-defined]
            pools,
            self._pools_of_hits(),
            _WAITING,
            KVCacheBlocks,
        )
        self._uses_eagle = use_eagle
        self._show_requests()

    @classmethod
    def unsupported_reason(cls, kv_cache_config: KVCacheConfig, **kwargs: Any) -> str | None:
        """Return why an engine needs vLLM's own managers, or ``None`` if it does not."""
        return unsupported_reason(kv_cache_config, **kwargs)

    def _pools_of_groups(self) -> list[Blocks]:
        """Return the blocks that each group draws from."""
        pool: Any = self.block_pool
        return [pool._blocks] * self.num_kv_cache_groups

    def _pools_of_hits(self) -> list[Blocks]:
        """Return the blocks that each group's keys name."""
        return self._pools_of_groups()

    def num_units(self, blocks: list[int]) -> list[int]:
        """Return how many units of the pool ``blocks`` of each group take, at most."""
        return blocks

    def _show_requests(self) -> None:
        """Let vLLM's coordinator and managers tell of the requests that the core holds."""
        coordinator: Any = self.coordinator
        coordinator.get_num_blocks_to_allocate = self._num_blocks_to_allocate
        coordinator.cache_blocks = self.cache_blocks
        coordinator.remove_skipped_blocks = self.remove_skipped_blocks
        coordinator.new_step_starts = self.new_step_starts
        coordinator.free = self._free
        coordinator.pop_blocks_for_free = self._pop
        manager: Any
        for group, manager in enumerate(coordinator.single_type_managers):
            holders = partial(self._holders, group)
            manager.req_to_blocks = Tables(partial(self._blocks_of, group=group), holders)
            manager.num_cached_block = View(partial(self._num_cached_blocks, group=group), holders)
            if is_state(manager.kv_cache_spec):
                manager._checkpoints = View(partial(self._checkpoint, group=group), holders)

    def _geometry(self) -> Geometry:
        return geometry(self, use_eagle=self._uses_eagle)

    def _num_blocks_to_allocate(  # noqa: PLR0917 - vLLM's signature
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: tuple[list[Block], ...],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool = False,
        prefill_end: int = 0,
    ) -> int:
        return self._demand(
            request_id,
            num_tokens,
            new_computed_blocks,
            total_computed_tokens,
            num_local_computed_tokens,
            num_tokens_main_model,
            apply_admission_cap,
            prefill_end,
            num_encoder_tokens,
        )

    def create_kv_cache_blocks(self, blocks: tuple[list[Block], ...]) -> Any:  # type: ignore[override]
        """Return the blocks as a result, the one empty result if there are none."""
        return KVCacheBlocks(blocks) if any(blocks) else self.empty_kv_cache_blocks  # type: ignore[arg-type]

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:  # noqa: ARG002
        """Return 0 for each group, as vLLM does since 0.32: no prefix is read once for all."""
        return [0] * self.num_kv_cache_groups

    def take_kv_cache_block_copies(self) -> Any:
        """Return the copies to make since the last call, and the blocks held until then."""
        pairs = self._take_copies()
        copies = [KVCacheBlockCopy(source.block_id, copy.block_id) for source, copy in pairs]
        return copies, [block for pair in pairs for block in pair]

    def _note_events(self, request: Request | None, changes: list[tuple[Any, ...]]) -> None:
        events.note(self.block_pool, self.coordinator.group_block_sizes, request, changes)

    def _note_residency(self, changes: list[tuple[str, int]]) -> None:
        tell_collector(self.block_pool, changes)

    def _report_hit(self, request: Request, blocks: AllocatedBlocks, num_tokens: int) -> None:
        if getattr(request, "kv_cache_report_mode", "incremental") == "full":
            self._emit_hit(request, blocks, num_tokens)

    def _client_hints(self, request: Request) -> tuple[str | None, str | None]:  # noqa: ARG002
        """Return no session and no hint: only slabs heed them, and Rust does not ask for others."""
        return None, None

    def _emit_hit(self, request: Request, blocks: AllocatedBlocks, num_tokens: int) -> None:  # noqa: ARG002
        """Append events of a hit's blocks, which another request stored."""
        self.coordinator.emit_cached_block_events(request, blocks.blocks)  # type: ignore[arg-type]


V = TypeVar("V")


class View(Mapping[str, V], Generic[V]):
    """A mapping by request id over one group.

    ``read`` returns ``None`` for a request that the group knows nothing of.
    """

    def __init__(self, read: Callable[[str], V | None], request_ids: Callable[[], list[str]]):
        self._read = read
        self._request_ids = request_ids

    def __getitem__(self, request_id: str) -> V:
        value = self._read(request_id)
        if value is None:
            raise KeyError(request_id)
        return value

    def __iter__(self) -> Iterator[str]:
        return (request_id for request_id in self._request_ids() if request_id in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Table(Sequence[Block]):
    """A request's blocks as they are whenever it is looked at, like the list that vLLM extends.

    ``read`` returns ``None`` once the request is freed; its blocks are then what they were when
    last looked at.
    """

    def __init__(self, read: Callable[[], list[Block] | None]) -> None:
        self._read = read
        self._seen = read() or []

    def _blocks(self) -> list[Block]:
        self._seen = self._read() or self._seen
        return self._seen

    def __getitem__(self, index: Any) -> Any:
        return self._blocks()[index]

    def __len__(self) -> int:
        return len(self._blocks())

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks())

    def __eq__(self, other: object) -> bool:
        return self._blocks() == (other._blocks() if isinstance(other, Table) else other)

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Sequence[Block]) -> list[Block]:
        return [*self, *other]

    def __repr__(self) -> str:
        return repr(self._blocks())


class Tables(View[Any]):
    """Block tables; that of an unknown request is empty, as in vLLM's ``defaultdict``."""

    def __getitem__(self, request_id: str) -> Table:
        return Table(partial(self._read, request_id))

    def __contains__(self, request_id: object) -> bool:
        return isinstance(request_id, str) and self._read(request_id) is not None


def tell_collector(pool: BlockPool, residency: Iterable[tuple[str, int]]) -> None:
    """Tell the pool's collector what became of blocks, by id and in order."""
    collector = pool.metrics_collector
    if collector is None:
        return
    tell = {
        "allocated": collector.on_block_allocated,
        "accessed": collector.on_block_accessed,
        "evicted": collector.on_block_evicted,
    }
    for what, block_id in residency:
        tell[what](pool.blocks[block_id])
