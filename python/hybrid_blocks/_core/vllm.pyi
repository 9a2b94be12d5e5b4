"""vLLM's side of the compiled core: typed here by hand, checked against the binary by stubtest."""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol, Self, SupportsIndex, final, overload, type_check_only

from typing_extensions import disjoint_base

__all__ = [
    "AllocatedBlocks",
    "Block",
    "Blocks",
    "DecodeBatch",
    "RequestAttribute",
    "RequestGetState",
    "RequestHasher",
    "RequestState",
    "RustKVCacheManager",
    "ScheduledDecodes",
    "SpecCounts",
    "TakenOutputs",
]

@final
class Block:
    """One block as vLLM's managers and connectors see it; ``isinstance`` takes it for vLLM's.

    It is a number and the pool it belongs to; the pool knows everything else. A block has one such
    object, made at its first use.
    """

    @property
    def block_id(self) -> int:
        """The block's number."""

    @property
    def is_null(self) -> bool:
        """Whether this is block 0, the placeholder."""

    @property
    def pool(self) -> Any:
        """The object that the blocks were bound to as their owner."""

    @property
    def ref_cnt(self) -> int:
        """Owners.

        Setting it adds or takes owners beside the first; ``ValueError`` if the block has none or
        would have none left.
        """

    @ref_cnt.setter
    def ref_cnt(self, count: int) -> None: ...
    @property
    def block_hash(self) -> bytes | None:
        """The first key under which the block's content is found: hash and group."""

    @property
    def block_hash_num_tokens(self) -> int | None:
        """Tokens from the start of the prompt that the first key stands for."""

    @property
    def _block_hash(self) -> bytes | None: ...
    @_block_hash.setter
    def _block_hash(self, block_hash: bytes | None) -> None: ...
    @property
    def _block_hash_num_tokens(self) -> int | None: ...
    @property
    def next_free_block(self) -> Any:
        """The block or queue end after it in the free queue, ``None`` if it is not in there."""

    @property
    def prev_free_block(self) -> Any:
        """The block or queue end before it in the free queue, ``None`` if it is not in there."""

    def set_block_hash(self, block_hash: bytes, num_tokens: int | None = None) -> None:
        """Let the content be found; ``AssertionError`` if it can be already."""

    def reset_hash(self) -> None:
        """Let the content be found no more."""

@final
class Blocks:
    """All blocks of a pool, as a sequence, and calls for many of them at a time.

    ``num_blocks`` counts the null block, which is number 0. ``keep_evicted`` keeps the keys of
    evicted blocks for `take_evicted`. A key is vLLM's ``BlockHashWithGroupId``: a hash of 32, 16 or
    fewer bytes and the group as four big-endian bytes; ``InvalidArgumentError`` for others.
    """

    def __new__(cls, num_blocks: int, *, keep_evicted: bool = False) -> Self: ...
    @staticmethod
    def over_slabs(
        num_slabs: int, blocks_per_slab: Sequence[int], *, keep_evicted: bool = False
    ) -> list[Blocks]:
        """Return the blocks of several pools over one arena of slabs, the null slab included.

        ``blocks_per_slab`` has one entry a pool. ``InvalidConfigError`` for fewer than 2 slabs.
        """

    @property
    def num_slabs(self) -> int:
        """Slabs that can hold something; without slabs, each block counts as one here."""

    @property
    def num_whole_slabs(self) -> int:
        """Slabs of all pools in which no block has an owner."""

    @property
    def num_owned_slabs(self) -> int:
        """Slabs that belong to this pool."""

    @property
    def num_steals(self) -> int:
        """Slabs that pools took from each other so far."""

    @property
    def num_live(self) -> int:
        """Blocks that have an owner."""

    def bind(self, owner: object, head: object, tail: object, block_class: type) -> None:
        """Set the pool and the class that blocks show, and the ends of the free queue."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Block: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Block]: ...
    @property
    def num_free(self) -> int:
        """Blocks without owner. A write shifts all later reads."""

    @num_free.setter
    def num_free(self, count: int) -> None: ...
    @property
    def num_cached(self) -> int:
        """Blocks without owner at the warm end of the free queue: those whose content is kept."""

    @property
    def num_keys(self) -> int:
        """Distinct keys under which content is found."""

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take blocks out of the free queue, each with one owner; their content is evicted.

        Raises ``OutOfBlocksError`` if there are fewer; then none is taken.
        """

    def take_evicted(self) -> list[bytes]:
        """Return the keys evicted since the last call, in order."""

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add an owner to each but null blocks; ``TypeError`` for one of another pool."""

    def free(self, blocks: Iterable[object]) -> list[Any]:
        """Take an owner from each but null blocks; return blocks that are not of this pool.

        Blocks without owner go to the front of the free queue if they hold nothing, else to its
        end, in the order given. Raises ``BlockError`` if one has no owner; then none is freed.
        """

    def free_warm(self, blocks: Iterable[Block]) -> None:
        """Take an owner from each; all that have none left go to the end of the free queue."""

    def get(self, key: bytes) -> Block | None:
        """Return the block that has been found under a key longest."""

    def get_in_groups(self, block_hash: bytes, groups: Sequence[int]) -> list[Block] | None:
        """Return a hash's block in each group, or nothing if one group has none."""

    def get_all(self, key: bytes) -> list[Block]:
        """Return all blocks that are found under a key, the first one first."""

    def contains(self, key: bytes, block_id: int) -> bool:
        """Return whether this very block is found under the key."""

    def insert(self, key: bytes, block: Block, num_tokens: int | None = None) -> bool:
        """Let a block be found under a key; return whether it was not before."""

    def insert_full(
        self,
        blocks: list[Block],
        block_hashes: list[Any],
        hashes_per_block: int,
        start: int,
        end: int,
        block_size: int,
        group: int,
        mask: Sequence[bool] | None = None,
    ) -> None:
        """Let ``blocks[start:end]`` be found, each under the hash at its end.

        Null blocks and those that ``mask`` (one entry a new block) leaves out are passed over.
        Raises ``AssertionError`` for a block that is found under as many tokens already.
        """

    def remove(self, block: Block) -> list[bytes]:
        """Let a block be found no more; return its keys, the first one first."""

    def further_keys(self, block_id: int) -> list[bytes]:
        """Return a block's keys after its first."""

    def move_keys(self, source: Block, target: Block) -> None:
        """Move all keys of ``source`` to ``target``, which has none."""

    @property
    def first_free(self) -> Any:
        """The first block of the free queue, or its tail."""

    @property
    def last_free(self) -> Any:
        """The last block of the free queue, or its head."""

    def all_free(self) -> list[Block]:
        """Return the free queue, in order."""

    def reset(self) -> None:
        """Forget all content; ``BlockError`` while a block has an owner."""

    def memory_bytes(self) -> int:
        """Return the heap bytes held, without the objects made for single blocks."""

    def check_integrity(self) -> None:
        """Walk everything; ``IntegrityError`` says what is broken."""

@final
class AllocatedBlocks:
    """vLLM's ``KVCacheBlocks`` as block ids by group; ``isinstance`` takes it for one.

    Made by :class:`RustKVCacheManager` alone.
    """

    @property
    def blocks(self) -> tuple[Sequence[Block], ...]:
        """Block objects by group, made at their first use."""

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return ids by group, of the groups named if any are; ``None`` for none if allowed."""

    def get_unhashed_block_ids(self) -> list[int]:
        """Return the ids of the one group's blocks that cannot be hit.

        Raises:
            AssertionError: There are several groups.
        """

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """Return the ids of blocks that cannot be hit, by group, without null blocks."""

    def new_empty(self) -> AllocatedBlocks:
        """Return a result of as many groups without blocks."""

    def __add__(self, other: object, /) -> AllocatedBlocks:
        """Return the blocks of both, group by group."""

    def __radd__(self, other: object, /) -> AllocatedBlocks: ...
    def __eq__(self, other: object, /) -> bool: ...
    __hash__: ClassVar[None]  # type: ignore[assignment]

@type_check_only
class ManagerHooks(Protocol):
    """The methods of a manager's Python class that Rust calls. No lock is held meanwhile."""

    def _geometry(self) -> Any:
        """Return a :class:`hybrid_blocks.vllm.manager.geometry.Geometry`, at the first use."""

    def _note_events(self, request: Any, changes: list[tuple[Any, ...]]) -> None:
        """Pass on what a request's call changed in the prefix cache, if events are enabled."""

    def _note_residency(self, changes: list[tuple[str, int]]) -> None:
        """Pass on what became of blocks, by id and in order, if a collector wants it."""

    def _report_hit(self, request: Any, blocks: AllocatedBlocks, num_tokens: int) -> None:
        """Report a hit of ``num_tokens``, if events are enabled."""

    def _client_hints(self, request: Any) -> tuple[str | None, str | None]:
        """Return the session of a request and its hint, asked for over slabs alone."""

@type_check_only
class HasherHooks(Protocol):
    """The method of a hasher's Python class that Rust calls. No lock is held meanwhile."""

    def _extra_keys(
        self, request: Any, start: int, num_blocks: int
    ) -> list[tuple[Any, ...] | None]:
        """Return the extra keys of ``num_blocks`` blocks, from token ``start`` on.

        Rust asks for requests with images, LoRA, a salt or embedded prompts.
        """

@type_check_only
class SchedulerHooks(Protocol):
    """The methods of a scheduler's Python class that Rust calls. No lock is held meanwhile."""

    def _accepts(self, request: Any, token_ids: list[int]) -> bool:
        """Tell a request's grammar of its tokens. Return ``False`` if that ends the request."""

    def _end(self, request: Any, output: Any) -> None:
        """Free a request that is done, and complete its last output."""

    def _free_inputs(self, request: Any) -> bool:
        """Free inputs of the encoder that are computed. Return whether a request has others."""

@disjoint_base
class RustKVCacheManager:
    """The calls of vLLM's ``KVCacheManager`` for requests, with equal decisions.

    The base of :class:`hybrid_blocks.vllm.manager.native.NativeKVCacheManager`. Arguments are
    vLLM's; it is empty until :meth:`_start` is called. Requests are vLLM's ``Request`` objects. The
    manager reads their counts, status and block hashes, and writes ``_hybrid_blocks`` alone.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self: ...
    def _start(
        self: ManagerHooks,
        blocks: Blocks,
        pools: Sequence[Blocks],
        kept_pools: Sequence[Blocks],
        waiting: Sequence[object],
        class_: type,
    ) -> AllocatedBlocks:
        """Begin over an engine's blocks and return the one result that stands for no blocks.

        ``pools`` are the blocks that each group draws from; ``blocks`` are those of the first pool.
        ``kept_pools`` are the blocks that each group's hits name.
        ``waiting`` are the states of requests that are to be admitted, ``class_`` is the class that
        results show. The first other call asks for the geometry, and raises
        ``InvalidArgumentError`` for sizes that do not fit each other.

        Raises:
            IntegrityError: It has begun already.
        """

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: Sequence[int] = ...,
    ) -> AllocatedBlocks | None:
        """Make room for tokens of a request; ``None`` if there are too few blocks.

        Raises:
            ValueError: No token is new and none is computed already.
            InvalidArgumentError: A hit that the request cannot adopt.
        """

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[AllocatedBlocks, int, int]:
        """Return the longest cached prefix: blocks, tokens, and where others diverged from it."""

    def free(self, request: Any) -> None:
        """Forget a request and give its blocks back, the last ones first to go."""

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        """Forget a request and return its blocks, still owned."""

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Enter the blocks that ``num_computed_tokens`` tokens complete into the prefix cache."""

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Give back the blocks that a request need not keep after its processed tokens."""

    def get_blocks(self, request_id: str) -> AllocatedBlocks:
        """Return a request's blocks."""

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the ids of a request's blocks by group."""

    def estimate_cached_tokens(self, request: Any) -> int:
        """Return the tokens of a request that every group has cached, at least."""

    def take_new_block_ids(self) -> list[int]:
        """Return the blocks to be zeroed since the last call.

        Over slabs: the slabs that attention started on, or their blocks where those are zeroed.
        """

    def next_boundary(self, request: Any, start: int, end: int) -> int:
        """Return where a prefill's chunk ends that may end at ``end``; counts are tokens."""

    def waits_for_checkpoint(self, request: Any) -> bool:
        """Return whether a waiting request can hit more once another one's prompt is computed.

        That prompt is computed in this step, and this request would compute no less itself.
        """

    def num_uncached(self, request: Any) -> int:
        """Return how many tokens a waiting request would compute if it were admitted now."""

    def is_stuck(self, request: Any) -> bool:
        """Return whether a request holds blocks, no other does, and it cannot grow with them."""

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        """Let a request's blocks be zeroed again, from a token on that starts a block.

        Raises:
            InvalidArgumentError: It does not.
        """

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        """Return states that a connector may save: ``(group, block, tokens)`` by request."""

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        """Return the states at the end of a finished request: ``(group, block, tokens)``."""

    def new_step_starts(self) -> None:
        """Note that the results of the last step are there."""

    def _free(self, request_id: str) -> None: ...
    def _pause(self, request_id: str) -> None: ...
    def _pop(self, request_id: str) -> list[Block]: ...
    def _take_copies(self) -> list[list[Block]]: ...
    def _take_disjoint_copies(
        self,
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, bool]], list[list[Block]]]: ...
    def _take_prefill_checkpoints(
        self,
    ) -> tuple[list[tuple[str, int, int, int, int]], list[list[Block]]]: ...
    def _give_up_copies(self) -> None: ...
    def _counts(self) -> list[tuple[str, int]]: ...
    def _reserved_bytes(
        self, slab_bytes: int, block_bytes: list[int], num_computed: dict[str, int]
    ) -> list[tuple[str, int]]: ...
    def _hit_limits(self) -> list[tuple[str, int]]: ...
    def _attention_found(self, request_id: str) -> int | None: ...
    def _demand(
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: object,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        apply_admission_cap: bool,
        prefill_end: int,
        num_encoder_tokens: int,
    ) -> int: ...
    def _blocks_of(self, request_id: str, group: int) -> list[Block] | None: ...
    def _num_cached_blocks(self, request_id: str, group: int) -> int | None: ...
    def _checkpoint(self, request_id: str, group: int) -> tuple[int, int] | None: ...
    def _holders(self, group: int) -> list[str]: ...

@final
class DecodeBatch:
    """The running requests of vLLM's scheduler that decode, all in one call.

    Requests are vLLM's ``Request`` objects; their counts, tokens, drafts and status are read and
    written as vLLM's scheduler does. It reads a request's limits, stop tokens, client, grammar and
    images when the request begins to decode. It reads them again after other code changed a count
    of it.
    """

    def __new__(
        cls,
        manager: RustKVCacheManager,
        *,
        request_class: type,
        output_class: type,
        check_stop: Callable[[Any, int], bool],
        ensure_encoded: Callable[[Any, int], bool] | None,
        states: tuple[object, object, object, object],
        rules: Any,
    ) -> Self:
        """Begin over a block manager.

        ``request_class`` is vLLM's ``Request``, whose three counts and status are a
        :class:`RequestAttribute` from now on. ``output_class`` is vLLM's ``EngineCoreOutput`` and
        ``check_stop`` its function; ``ensure_encoded`` is ``ensure_cache_available`` of its encoder
        cache connector, if any; ``states`` are its states of requests that run, are preempted,
        ended by a token, and ended by their length. ``rules`` is a
        :class:`hybrid_blocks.vllm.scheduler.batching.Rules`.
        """

    def schedule(
        self,
        running: list[Any],
        token_budget: int,
        input_budget: int,
        step_number: int,
        previous: set[str] | None,
        leaves_last: bool,
    ) -> ScheduledDecodes:
        """Make room for a token of each of the first running requests, and for its drafts.

        It ends before the first that does more than decode, or that finds no room. With
        ``leaves_last`` it ends before the last that decodes. It also ends before more than
        ``token_budget`` tokens, or than ``input_budget`` tokens and slots of a drafter. Those that
        wait for outputs of the encoder have nothing to do. ``step_number`` counts calls of the
        scheduler. ``previous`` are the ids of the requests of the step before, or ``None`` if no
        worker wants the tokens of others. Drafts are taken off the requests; their counts change
        with :meth:`advance`.
        """

    def advance(self, drafts: list[int], step_number: int, fence: int | None) -> None:
        """Count the scheduled tokens as computed, and as in flight.

        ``drafts`` stand for those of the next step where steps are scheduled ahead. ``fence`` is
        noted on requests whose blocks may not be freed before that step has ended.
        """

    def take_outputs(
        self,
        scheduler: SchedulerHooks,
        requests: dict[str, Any],
        num_scheduled_tokens: dict[str, int],
        index_of: dict[str, int],
        sampled: list[list[int]],
        extras: Any,
    ) -> TakenOutputs:
        """Append a step's sampled tokens, and end the requests that got their last one.

        It ends before the first request that got more than tokens. ``index_of`` gives a request's
        position in ``sampled``; ``extras`` is a
        :class:`hybrid_blocks.vllm.scheduler.batching.Extras`.
        ``scheduler`` frees requests that end. It also gets the tokens under a grammar and the
        images that are computed.

        Raises:
            AssertionError: More drafts were accepted than the engine has.
        """

    def forget(self) -> None:
        """Forget all state of requests between steps, because other code schedules them now."""

@final
class ScheduledDecodes:
    """A step's output for the requests that decode; lists are in their order."""

    @property
    def num_seen(self) -> int:
        """Running requests dealt with, those that have nothing to do in this step included."""
    @property
    def num_tokens(self) -> int:
        """Tokens of all requests, drafts included."""
    @property
    def num_scheduled_tokens(self) -> dict[str, int]:
        """Tokens by request: one, and its drafts."""
    @property
    def spec_tokens(self) -> dict[str, list[int]]:
        """Drafts by request, of those that have any."""
    @property
    def req_ids(self) -> list[str]:
        """Ids of the requests that decode."""
    @property
    def new_block_ids(self) -> list[tuple[list[int], ...] | None]:
        """New blocks by group, or ``None``."""
    @property
    def num_computed_tokens(self) -> list[int]:
        """Tokens computed before this step."""
    @property
    def num_output_tokens(self) -> list[int]:
        """Tokens sampled before this step, those in flight included."""
    @property
    def new_token_ids(self) -> list[list[int]]:
        """Tokens that workers of other stages sampled, where they are sent; else empty."""
    @property
    def all_token_ids(self) -> dict[str, list[int]]:
        """All tokens of requests that the step before had not scheduled."""
    @property
    def has_structured_output(self) -> bool:
        """Whether a grammar constrains any of them."""
    @property
    def pending_structured_output(self) -> bool:
        """Whether one of those waits for tokens in flight."""
    @property
    def drafts_unused(self) -> bool:
        """Whether each of them is sure to end before drafts of this step would be verified."""

@final
class TakenOutputs:
    """Outputs of the requests that got tokens."""

    @property
    def num_seen(self) -> int:
        """Requests of the step dealt with."""
    @property
    def outputs(self) -> dict[int, list[Any]]:
        """Objects of vLLM's ``EngineCoreOutput`` by client."""
    @property
    def stopped(self) -> list[Any]:
        """Requests that ended; they are freed but still among the running ones."""
    @property
    def spec_counts(self) -> SpecCounts:
        """How many of their drafts were accepted."""

@final
class SpecCounts:
    """The counts of vLLM's ``SpecDecodingStats``, of the requests that one call dealt with."""

    @property
    def num_drafts(self) -> int:
        """Requests with drafts."""
    @property
    def num_draft_tokens(self) -> int:
        """Their drafts, without those that a grammar ruled out."""
    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that were accepted."""
    @property
    def num_accepted_tokens_per_pos(self) -> list[int]:
        """Accepted drafts by position."""
    @property
    def num_draft_tokens_per_pos(self) -> list[int]:
        """Drafts by position."""

@disjoint_base
class RequestHasher:
    """Hashes the blocks of requests that became full.

    The base of :class:`hybrid_blocks.vllm.manager.hasher.RequestHasher`, which knows extra keys.
    """

    def __new__(
        cls,
        block_size: int,
        num_lookahead_tokens: int,
        algorithm: str,
        fallback: Callable[[Any], bytes],
        utils: ModuleType,
        max_known_bytes: int,
    ) -> Self:
        """Hash blocks of ``block_size`` tokens with one of vLLM's algorithms.

        Prompts without extra keys are kept in ``max_known_bytes`` of memory. One that begins with
        the same tokens takes its hashes from there.

        ``fallback`` is that algorithm in Python, for extra keys that only Python can serialize;
        ``utils`` is vLLM's module with its ``NONE_HASH``.
        """

    def __call__(self: HasherHooks, request: Any) -> list[Any]:
        """Return the hashes of the blocks that became full since the last call."""

@final
class RequestGetState:
    """``__getstate__`` of vLLM's ``Request``: the content of a copy or a pickle.

    It has the counts as they are at that time, and nothing of this package.
    """

    def __get__(self, request: Any, owner: type | None = None, /) -> Any: ...

@final
class RequestState:
    """The state of a request between calls, in its attribute ``_hybrid_blocks``.

    It holds the request's three counts, once :class:`RequestAttribute` shows them, and its block
    manager's name for it. It also holds digests on their way from a hasher to a manager. A copy
    takes over the counts alone.
    """

    def __new__(cls, counts: tuple[int, int, int] | None = None) -> Self:
        """Begin with the tokens computed, in flight, and standing for outputs, if known."""

@final
class RequestAttribute:
    """An attribute of vLLM's ``Request`` that its :class:`RequestState` knows of.

    ``num_computed_tokens``, ``num_in_flight_tokens`` and ``num_output_placeholders``, in tokens,
    are kept there. For ``status`` it counts how often it was set.
    """

    def __get__(self, request: Any, _class: type | None = None, /) -> Any: ...
    def __set__(self, request: Any, value: Any, /) -> None: ...
    def __delete__(self, request: Any, /) -> None: ...
