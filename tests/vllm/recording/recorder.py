"""vLLM's manager instead of a pair: every call and its answer is written down."""

from collections.abc import Callable
from random import Random
from typing import Any

from oracle.twin import RefusedError
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

from . import answers

Step = dict[str, Any]
SKIPS_ZEROING = "skip_zeroing_group_ids" in KVCacheManager.allocate_slots.__code__.co_varnames
"""Whether a caller may say which groups' blocks others write: since 0.32."""


class Recorder:
    """Stands where the oracle's ``Twin`` does. ``steps`` holds what was called and answered.

    Calls that a life does not make are added as ``random`` draws: demands before an allocation,
    look-ups with other limits, feigned shortages, groups that are not zeroed.
    """

    def __init__(self, manager: KVCacheManager, random: Random) -> None:
        self.managers = (manager,)
        self.steps: list[Step] = []
        self.request_ids: set[str] = set()
        self._manager = manager
        self._random = random
        self._digests = answers.Digests()
        self._num_digests: dict[str, int] = {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Make the call, write it down and return the answer twice."""
        args = tuple(_first(argument) for argument in args)
        kwargs = {key: _first(argument) for key, argument in kwargs.items()}
        try:
            # A call that the core does not know is vLLM's alone.
            act = getattr(self, f"_{name}", None) or getattr(self._manager, name)
            answer = act(*args, **kwargs)
        except Exception as error:
            # No promise holds for the state after an error, so the life ends here.
            raise RefusedError(repr(error)) from error
        return answer, answer

    def run(
        self, name: str, act: Callable[..., Any], args: tuple[Any, ...] = ()
    ) -> tuple[Any, Any]:
        assert name in ("free_blocks", "pop_blocks_for_free")
        try:
            answer = getattr(self, f"_{name}")(lambda: act(self._manager, list(args), {}), *args)
        except Exception as error:
            raise RefusedError(repr(error)) from error
        return answer, answer

    def _write(self, call: str, request: Request | str | None = None, **what: Any) -> None:
        """Add a step: fields that are empty, zero or ``None`` are left out."""
        step: Step = {"call": {call: _told(what)}}
        if isinstance(request, str):
            step["request"] = answers.request_number(request)
        elif request is not None:
            step["request"] = answers.request_number(request.request_id)
            step["facts"] = answers.facts(request)
            step["digests"] = self._new_digests(request)
        pool = self._manager.block_pool
        step["events"] = answers.events(pool.kv_event_queue, self._digests)
        pool.kv_event_queue.clear()
        step["free"] = pool.get_num_free_blocks()
        self.steps.append(_told(step))

    def _new_digests(self, request: Request) -> list[int]:
        """Return numbers of the digests that no earlier step of the request told."""
        known = self._num_digests.get(request.request_id, 0)
        self._num_digests[request.request_id] = len(request.block_hashes)
        return [self._digests.number(digest) for digest in request.block_hashes[known:]]

    # --- what a life calls, by vLLM's names ---------------------------------

    def _get_computed_blocks(self, request: Request) -> Any:
        if self._manager.prefix_cache_lookup_enabled(request):
            self._write_hit(request, request.num_tokens - 1)
            for _ in range(self._random.choice((0, 0, 0, 1, 2))):
                self._write_hit(request, self._random.randint(0, request.num_tokens))
            if self._random.random() < 0.3:
                self._write_hits_per_group(request, self._random.randint(0, request.num_tokens))
        return self._manager.get_computed_blocks(request)

    def _write_hit(self, request: Request, limit: int) -> None:
        hit = self._manager.coordinator.find_longest_cache_hit(request.block_hashes, limit)
        ids = answers.ids(hit[0])
        self._write("hit", request, limit=limit, blocks=ids, tokens=hit[1], uncached=hit[2])

    def _write_hits_per_group(self, request: Request, limit: int) -> None:
        coordinator = self._manager.coordinator
        if isinstance(coordinator, HybridKVCacheCoordinator):
            hits = coordinator.find_longest_cache_hit_per_group
            blocks, lengths = hits(request.block_hashes, limit)
            ids = answers.ids(blocks)
            self._write("hits", request, limit=limit, blocks=ids, lengths=list(lengths))

    def _get_computed_blocks_for_connector(self, request: Request) -> Any:
        if self._manager.prefix_cache_lookup_enabled(request):
            self._write_hits_per_group(request, request.num_tokens - 1)
        return self._manager.get_computed_blocks_for_connector(request)

    def _allocate_slots(self, request: Request, num_new_tokens: int, **kwargs: Any) -> Any:
        manager = self._manager
        num_external = kwargs.get("num_external_computed_tokens", 0)
        if num_external and SKIPS_ZEROING:
            groups = range(manager.num_kv_cache_groups)
            kwargs["skip_zeroing_group_ids"] = tuple(
                g for g in groups if self._random.random() < 0.3
            )
        hit = kwargs.get("new_computed_blocks")
        computed = None if hit is None or hit is manager.empty_kv_cache_blocks else hit.blocks
        if self._random.random() < 0.3:
            self._ask_demand(request, num_new_tokens, computed, kwargs)
        queue = manager.block_pool.free_block_queue
        shortage = self._random.choice((1, 4, 12)) if self._random.random() < 0.03 else 0
        offset = -min(shortage, queue.num_free_blocks)
        asked = {
            "new": num_new_tokens,
            "hit_tokens": kwargs.get("num_new_computed_tokens", 0),
            "hit": None if computed is None else answers.ids(computed),
            "lookahead": kwargs.get("num_lookahead_tokens", 0),
            "external": num_external,
            "delayed": kwargs.get("delay_cache_blocks", False),
            "must_fit": kwargs.get("full_sequence_must_fit", False),
            "reserved": kwargs.get("reserved_blocks", 0),
            "offset": offset,
            "alone": not kwargs.get("has_scheduled_reqs", True),
            "unzeroed": list(kwargs.get("skip_zeroing_group_ids", ())),
        }
        queue.num_free_blocks += offset
        try:
            answer = manager.allocate_slots(request, num_new_tokens, **kwargs)
        except Exception:
            self._write("allocate", request, **asked, raised=True)
            raise
        finally:
            queue.num_free_blocks -= offset
        blocks = None if answer is None else answers.ids(answer.blocks)
        self._write("allocate", request, **asked, blocks=blocks)
        return answer

    def _ask_demand(
        self, request: Request, num_new: int, computed: Any, kwargs: dict[str, Any]
    ) -> None:
        """Ask for the blocks that the allocation is about to need, for the step and in all."""
        manager = self._manager
        num_local = request.num_computed_tokens + kwargs.get("num_new_computed_tokens", 0)
        num_computed = num_local + kwargs.get("num_external_computed_tokens", 0)
        num_main = num_computed + num_new
        num_slots = min(num_main + kwargs.get("num_lookahead_tokens", 0), manager.max_model_len)
        for is_admission in (True, False):
            num_tokens = request.num_tokens if is_admission else num_slots
            span = {
                "num_tokens": num_tokens,
                "num_main": num_tokens if is_admission else num_main,
                "num_computed": num_computed,
                "num_local": num_local,
                "prefill_end": max(request.num_prompt_tokens, request.num_tokens - 1),
                "is_admission": is_admission,
            }
            demand = manager.coordinator.get_num_blocks_to_allocate(
                request_id=request.request_id,
                num_tokens=num_tokens,
                new_computed_blocks=computed or manager.empty_kv_cache_blocks.blocks,
                num_encoder_tokens=0,
                total_computed_tokens=num_computed,
                num_local_computed_tokens=num_local,
                num_tokens_main_model=span["num_main"],
                apply_admission_cap=is_admission,
                prefill_end=span["prefill_end"],
            )
            hit = None if computed is None else answers.ids(computed)
            self._write("demand", request.request_id, span=span, hit=hit, blocks=demand)

    def _cache_blocks(self, request: Request, num_computed: int) -> None:
        self._manager.cache_blocks(request, num_computed)
        if self._manager.enable_caching:
            self._write("commit", request, tokens=num_computed)

    def _remove_skipped_blocks(self, request_id: str, processed: int, **kwargs: Any) -> None:
        self._manager.remove_skipped_blocks(request_id, processed, **kwargs)
        self._write("recede", request_id, tokens=processed)

    def _free(self, request: Request) -> None:
        self._manager.free(request)
        self._write("free", request.request_id)

    def _pop_blocks_for_free(self, act: Callable[[], Any], request: Request) -> Any:
        answer = act()
        blocks = [block.block_id for block in answer]
        self._write("pop", request.request_id, blocks=blocks)
        return answer

    def _free_blocks(self, act: Callable[[], Any]) -> None:
        pool = self._manager.block_pool
        freed: list[int] = []
        own = pool.free_blocks

        def free(ordered: Any) -> None:
            blocks = list(ordered)
            freed.extend(block.block_id for block in blocks)
            own(blocks)

        pool.free_blocks = free  # type: ignore[method-assign, assignment]
        try:
            act()
        finally:
            del pool.free_blocks
        self._write("free_blocks", blocks=freed)

    def _touch(self, blocks: list[Any]) -> None:
        self._manager.block_pool.touch(blocks)
        self._write("touch", blocks=[block.block_id for block in blocks])

    def _evict_blocks(self, blocks: set[int]) -> None:
        self._manager.evict_blocks(blocks)
        self._write("evict", blocks=list(blocks))

    def _reset_prefix_cache(self) -> bool:
        answer = self._manager.reset_prefix_cache()
        self._write("reset", refused=not answer)
        return answer

    def _new_step_starts(self) -> None:
        self._manager.new_step_starts()
        self._write("step")

    def _estimate_cached_tokens(self, request: Request) -> int:
        answer = self._manager.estimate_cached_tokens(request)
        self._write("cached_tokens", request.request_id, tokens=answer)
        return answer

    def _take_new_block_ids(self) -> list[int]:
        answer = self._manager.take_new_block_ids()
        self._write("take_new", blocks=answer)
        return answer

    def _record_blocks_for_zeroing(self, request_id: str, start: int) -> None:
        self._manager.record_blocks_for_zeroing(request_id, start)
        self._write("zero_again", request_id, tokens=start)

    def _take_kv_cache_block_copies(self) -> Any:
        answer = self._manager.take_kv_cache_block_copies()
        pairs = [[copy.src_block_id, copy.dst_block_id] for copy in answer[0]]
        self._write("take_copies", pairs=pairs)
        return answer

    def _take_boundary_state_offloads(self) -> Any:
        answer = self._manager.take_boundary_state_offloads()
        numbered = [(answers.request_number(name), states) for name, states in answer.items()]
        states = [[number, list(state)] for number, states in numbered for state in states]
        self._write("take_states", states=states)
        return answer

    def _finalize_partial_tail_offloads(self, request: Request) -> Any:
        answer = self._manager.finalize_partial_tail_offloads(request)
        self._write("take_final_states", request, states=[list(state) for state in answer])
        return answer

    def _get_block_ids_for_computed_tokens(self, request_id: str, num_computed: int) -> Any:
        self._write("blocks", request_id, blocks=self._manager.get_block_ids(request_id))
        return self._manager.get_block_ids_for_computed_tokens(request_id, num_computed)

    def look(self) -> None:
        """Write down all that can be seen, hashed."""
        manager = self._manager
        requests = sorted(answers.request_number(id_) for id_ in self.request_ids)
        self._write(
            "look",
            queue=answers.queue(manager),
            contents=answers.contents(manager, self._digests),
            tables=[[number, answers.table(manager, f"request{number}")] for number in requests],
            holders=answers.holders(manager),
        )


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value not in (0, [], None)}


def _first(argument: Any) -> Any:
    is_pair = isinstance(argument, tuple) and len(argument) == 2
    return argument[0] if is_pair and hasattr(argument[0], "get_block_ids") else argument
