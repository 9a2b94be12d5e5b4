"""The life of requests: a scheduler in small, which asks both managers the same."""

from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.request import Request, RequestStatus

from .engines import Engine
from .twin import Twin, plain


@dataclass
class Scheduled:
    request: Request
    num_tokens: int
    num_drafts: int
    epoch: int


@dataclass
class Life:
    """Requests over a pair of managers. Every decision is drawn from ``random``."""

    engine: Engine
    twin: Twin
    random: Random
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    in_flight: deque[list[Scheduled]] = field(default_factory=deque)
    deferred: list[Any] = field(default_factory=list)
    num_requests: int = 0
    num_hits: int = 0
    is_async: bool = False

    def __post_init__(self) -> None:
        self.hasher = get_request_block_hasher(
            self.engine.hash_block_size, sha256, **self.engine.hash_lookahead()
        )

    def arrive(self) -> None:
        """A request arrives; it may share a prefix, and a salt or other keys, with others."""
        draw = self.random
        family = draw.randrange(2)
        shared = Random(family).choices(range(100), k=120)[
            : draw.choice((0, 16, 31, 48, 48, 64, 90))
        ]
        tail = draw.choices(range(100), k=draw.choice((0, 1, 2, 5, 16, 17, 40)))
        prompt = (shared + tail or [1])[: self.engine.max_model_len - 8]
        features = []
        if draw.random() < 0.1 and len(prompt) > 12:
            features = [
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=f"image{draw.randrange(2)}",
                    mm_position=PlaceholderRange(offset=draw.randrange(8), length=4),
                )
            ]
        lora = LoRARequest("adapter", 1, "/none") if draw.random() < 0.05 else None
        sampling = SamplingParams(max_tokens=draw.choice((1, 2, 6, 12, 30)))
        if draw.random() < 0.1:
            sampling.skip_reading_prefix_cache = True
        if draw.random() < 0.2:
            sampling.extra_args = {"kv_cache_report_mode": "full"}
        self.num_requests += 1
        request = Request(
            request_id=f"request{self.num_requests}",
            prompt_token_ids=prompt,
            sampling_params=sampling,
            pooling_params=None,
            mm_features=features or None,
            lora_request=lora,
            cache_salt="salt" if draw.random() < 0.05 else None,
            block_hasher=self.hasher,
        )
        self.waiting.append(request)

    def step(self, budget: int) -> None:
        """Schedule running requests, then waiting ones; take in the outputs of an earlier step."""
        self.twin.call("new_step_starts")
        step: list[Scheduled] = []
        for request in list(self.running):
            if request not in self.running or budget <= 0:
                continue
            budget -= self._continue(request, budget, step)
        preempted = any(request.status is RequestStatus.PREEMPTED for request in self.waiting)
        while self.waiting and budget > 0 and not preempted and len(self.running) < 6:
            taken = self._admit(self.waiting[0], budget, step)
            if not taken:
                break
            budget -= taken
        self._hand_over()
        for entry in step:
            entry.request.num_computed_tokens += entry.num_tokens
            entry.request.num_in_flight_tokens += entry.num_tokens
            if entry.request.num_computed_tokens >= entry.request.num_tokens:
                entry.request.num_output_placeholders += 1 + entry.num_drafts
        self.in_flight.append(step)
        while len(self.in_flight) > int(self.is_async):
            self._take_outputs(self.in_flight.popleft())

    def _continue(self, request: Request, budget: int, step: list[Scheduled]) -> int:
        num_drafts = 0
        known = request.num_tokens + request.num_output_placeholders
        num_new = known - request.num_computed_tokens
        if num_new <= 1 and self.engine.num_spec_tokens and not self.is_async:
            num_drafts = self.random.randint(0, self.engine.num_spec_tokens)
        if self.is_async and request.num_output_placeholders:
            num_new = 1
        num_new = min(num_new + num_drafts, budget)
        num_new = min(num_new, self.engine.max_model_len - 1 - request.num_computed_tokens)
        num_new = self._split(request, num_new, request.num_computed_tokens)
        if num_new <= 0:
            return 0
        while True:
            new, _ = self.twin.call(
                "allocate_slots", request, num_new, num_lookahead_tokens=self.engine.lookahead
            )
            if new is not None:
                break
            victim = self.running.pop()
            self._preempt(victim, step)
            if victim is request:
                return 0
        step.append(
            Scheduled(
                request, num_new, max(0, min(num_drafts, num_new - 1)), request.num_preemptions
            )
        )
        return num_new

    def _admit(self, request: Request, budget: int, step: list[Scheduled]) -> int:
        twin, draw = self.twin, self.random
        hit = twin.call("get_computed_blocks", request)
        computed = (hit[0][0], hit[1][0])
        assert _looks(computed[1]) == _looks(computed[0])
        num_local = hit[0][1]
        self.num_hits += num_local > 0
        request.shared_prefix_boundary = hit[0][2]
        num_external = self._external(request, num_local)
        start = num_local + num_external
        num_new = min(request.num_tokens - start, budget)
        delayed = num_external > 0 and draw.random() < 0.3
        if delayed:
            num_new = 0
        else:
            num_new = self._split(request, num_new, start)
            if num_new <= 0:
                return 0
        new, _ = twin.call(
            "allocate_slots",
            request,
            num_new,
            num_new_computed_tokens=num_local,
            new_computed_blocks=computed,
            num_lookahead_tokens=self.engine.lookahead,
            num_external_computed_tokens=num_external,
            delay_cache_blocks=delayed,
            # The encoder's tokens; a step after the first asks for none.
            num_encoder_tokens=self.random.randrange(1, 40) if self.engine.has_encoder else 0,
            full_sequence_must_fit=draw.random() < 0.5,
            reserved_blocks=draw.choice((0, 0, 0, 2)),
            has_scheduled_reqs=bool(self.running),
        )
        if new is None:
            return 0
        twin.request_ids.add(request.request_id)
        twin.call("record_prefix_cache_stats", request, num_local)
        twin.call("get_blocks", request.request_id)
        self.waiting.popleft()
        self.running.append(request)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = start
        if delayed:
            twin.call("cache_blocks", request, start)
            return 1
        step.append(Scheduled(request, num_new, 0, request.num_preemptions))
        return num_new

    def _external(self, request: Request, num_local: int) -> int:
        """Tokens that a connector has; none where states are kept at block borders."""
        never = self.engine.has_aligned_state or self.engine.has_encoder
        if self.random.random() >= 0.1 or never:
            return 0
        return self._external_blocks(request, num_local)

    def _external_blocks(self, request: Request, num_local: int) -> int:
        unit = self.engine.scheduler_block_size
        room = (request.num_tokens - 1) // unit * unit - num_local
        if room > 0 and num_local % unit == 0:
            return self.random.randrange(0, room + 1, unit)
        return 0

    def _split(self, request: Request, num_new: int, start: int) -> int:
        """Where states are kept at block borders, chunks end there, as in vLLM's scheduler."""
        end = start + num_new
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not self.engine.has_aligned_state or start >= prefill_end:
            return num_new
        block = self.engine.scheduler_block_size
        if end < prefill_end:
            end = max(end // block * block, start)
        stops = [(start // block + 1) * block] if start % block else []
        tokens = request.num_tokens if self.engine.use_eagle else request.num_tokens - 1
        drop = block if self.engine.use_eagle else 0
        if self.random.random() < 0.9:
            stops.append(tokens // block * block - drop)
        if self.random.random() < 0.7:
            unit = self.engine.hash_block_size
            prompt = request.num_prompt_tokens - (not self.engine.use_eagle)
            stops.append(prompt // unit * unit - (unit if self.engine.use_eagle else 0))
        if request.shared_prefix_boundary:
            stops.append(request.shared_prefix_boundary)
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def _hand_over(self) -> None:
        twin = self.twin
        twin.call("take_boundary_state_offloads")
        answers = twin.call("take_kv_cache_block_copies")
        if answers[0][1]:
            self.deferred.append([retained for _, retained in answers])
        twin.call("take_new_block_ids")
        if self.deferred and (not self.is_async or self.random.random() < 0.7):
            held = self.deferred.pop(0)
            twin.run(
                "free_blocks",
                lambda manager, _args, _kwargs: manager.block_pool.free_blocks(
                    held[twin.managers.index(manager)]
                ),
            )

    def _take_outputs(self, step: list[Scheduled]) -> None:
        draw = self.random
        for entry in step:
            request = entry.request
            request.num_in_flight_tokens -= entry.num_tokens
            if request.status is not RequestStatus.RUNNING or (
                entry.epoch != request.num_preemptions
            ):
                continue
            if not request.num_output_placeholders or (
                request.num_computed_tokens < request.num_tokens
            ):
                continue
            if request.num_computed_tokens - request.num_in_flight_tokens < request.num_tokens:
                continue
            rejected = draw.randint(0, entry.num_drafts)
            request.num_computed_tokens -= rejected
            request.num_output_placeholders = max(
                0, request.num_output_placeholders - 1 - entry.num_drafts
            )
            for _ in range(1 + entry.num_drafts - rejected):
                request.append_output_token_ids(draw.randrange(100))
            if self.is_async or entry.num_drafts:
                self.twin.call(
                    "cache_blocks",
                    request,
                    request.num_computed_tokens - request.num_in_flight_tokens,
                )
            self.twin.call("estimate_cached_tokens", request)
            if (
                request.num_output_tokens >= request.max_tokens
                or request.num_tokens >= self.engine.max_model_len - 6
            ):
                self._finish(request)

    def _preempt(self, request: Request, step: list[Scheduled]) -> None:
        self.twin.call("free", request)
        step[:] = [entry for entry in step if entry.request is not request]
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: Request) -> None:
        twin = self.twin
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED_STOPPED
        processed = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        if self.random.random() < 0.3:
            twin.call("finalize_partial_tail_offloads", request)
            twin.call(
                "remove_skipped_blocks",
                request.request_id,
                processed,
                num_prompt_tokens=request.num_prompt_tokens,
            )
            twin.call(
                "get_block_ids_for_computed_tokens", request.request_id, request.num_computed_tokens
            )
        if self.random.random() < 0.3:
            # vLLM 0.32 returns null blocks too, which are never freed.
            popped = twin.run(
                "pop_blocks_for_free",
                lambda manager, args, _kwargs: [
                    block for block in manager.pop_blocks_for_free(*args) if not block.is_null
                ],
                (request,),
            )
            twin.run(
                "free_blocks",
                lambda manager, _args, _kwargs: manager.block_pool.free_blocks(
                    reversed(popped[twin.managers.index(manager)])
                ),
            )
        else:
            twin.call("free", request)
        twin.request_ids.discard(request.request_id)

    def abort(self) -> None:
        """A client goes away."""
        requests = [*self.running, *self.waiting]
        if requests:
            self._finish(self.random.choice(requests))

    def preempt(self) -> None:
        """The last request makes room."""
        if self.running:
            self._preempt(self.running.pop(), [])

    def evict(self) -> None:
        """A connector reports blocks that it could not fill."""
        count = self.random.randint(1, 4)
        blocks = set(self.random.choices(range(1, self.engine.num_blocks), k=count))
        self.twin.call("evict_blocks", blocks)

    def reset(self) -> None:
        """The prefix cache is dropped, if nothing runs."""
        self.twin.call("reset_prefix_cache")

    def look(self) -> None:
        """Questions between steps."""
        self.twin.call("take_events")
        self.twin.call("make_prefix_cache_stats")
        for request in self.running:
            start = request.num_computed_tokens // self.engine.scheduler_block_size
            self.twin.call(
                "record_blocks_for_zeroing",
                request.request_id,
                start * self.engine.scheduler_block_size,
            )
            self.twin.call(
                "get_block_ids_for_computed_tokens", request.request_id, request.num_computed_tokens
            )
        if self.waiting:
            hit = self.twin.call("get_computed_blocks_for_connector", self.waiting[0])
            assert hit[0][1:] == hit[1][1:]

    def run(self, actions: list[tuple[str, int]]) -> None:
        """Act as told; the number is the budget of a step."""
        for action, number in actions:
            if action == "step":
                self.step(number)
            else:
                getattr(self, action)()


def _looks(blocks: KVCacheBlocks) -> list[Any]:
    """Return the answers of a result to all its methods."""
    looks: list[Any] = plain(
        [
            blocks.get_block_ids(allow_none=True),
            blocks.get_block_ids(group_ids=[0]),
            blocks.get_unhashed_block_ids_all_groups(),
            blocks.get_unhashed_block_ids() if len(blocks.blocks) == 1 else None,
            blocks + blocks,
            blocks.new_empty(),
            [[block.block_hash for block in group] for group in blocks.blocks],
        ]
    )
    return looks
