"""A continuous-batching engine in virtual time."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from hybrid_blocks.arithmetic import needs_more, prompts_outweigh, tokens_of_short
from hybrid_blocks.tools.replay.cache import Cache, LiveBytes
from hybrid_blocks.tools.replay.clock import Arrivals, Timeline
from hybrid_blocks.tools.replay.config import EngineConfig, RefusedRequestError
from hybrid_blocks.tools.replay.counters import Counters, FullLoad, Latencies, Meter, flops_of
from hybrid_blocks.tools.replay.limits import Refusal, RequestLimit, find_too_large
from hybrid_blocks.tools.replay.manager import Counts, Handles, ReplayManager
from hybrid_blocks.tools.replay.requests import Batch, Int64s, Pending, Requests
from hybrid_blocks.tools.trace import Trace

_MAX_STRETCH_TOKENS = 65_536


class VirtualEngine:
    """Runs a trace through a manager.

    A step serves the running requests in the order of their admission, up to the token budget. Each
    gets the tokens that it has not computed yet. If the manager has no room, the engine preempts
    the request admitted last. Otherwise it admits waiting requests into the rest of the budget. It
    computes prompts in chunks, which end where the manager wants to keep a state. A request whose
    known tokens are all computed samples one.

    Requests wait in the order of their arrival; a preempted one waits before all others. A request
    is admitted if all its known tokens have room beside the watermark. A refused request keeps all
    behind it waiting, and is tried again once blocks were given back. A request that waits for
    another's checkpoint is passed over, and keeps its place.

    While the whole batch decodes and no request can join, steps are alike, and the engine keeps its
    schedule. The schedule is made again when a request finishes, when one arrives that could join,
    or when memory runs out. Each step calls the manager.

    ``on_hit`` gets each request that runs for the first time, and the number of prompt tokens that
    it found in the cache.

    Attributes:
        now: virtual time in seconds.
        full_load: how well memory is used while a request waits for it.
        latencies: when each request arrived, had its first token, and was finished.
        too_large: the requests that are left out: those over any of ``limits``, by default the
            manager's own, and those that a manager ``refused`` when it tried.
    """

    def __init__(
        self,
        trace: Trace,
        manager: ReplayManager,
        cache: Cache,
        config: EngineConfig,
        *,
        limits: Sequence[RequestLimit] = (),
        refused: Sequence[Refusal] = (),
        on_hit: Callable[[int, int], None] = lambda *_: None,
        on_sample: Callable[[float, Handles], None] = lambda *_: None,
    ) -> None:
        self.now = self._last_begin = 0.0
        self.counters = Counters()
        self.meter = Meter()
        self.timeline = Timeline()
        self.full_load = FullLoad()
        self._live = LiveBytes(cache.geometry)
        self._manager = manager
        self._on_sample = on_sample
        self.config = config
        self._num_speculative_tokens = cache.num_speculative_tokens
        self._has_idled = False
        self._limits = limits or (RequestLimit.of("the manager", manager),)
        self._read(trace, refused)
        self._batch = Batch(config.max_num_seqs)
        self._on_hit = on_hit
        self._waiting: deque[int] = deque()
        self._block_size = cache.geometry.hash_block_size
        self._flops = flops_of(cache.model) if cache.model else None
        self._is_refused = False
        self._live_when_refused: tuple[int, ...] = ()

    def _read(self, trace: Trace, refused: Sequence[Refusal] = ()) -> None:
        self.too_large = find_too_large(
            trace,
            self._limits,
            num_speculative_tokens=self._num_speculative_tokens,
            reject=self.config.reject_too_large,
            refused=refused,
        )
        self._arrivals = Arrivals(trace)
        self.latencies = Latencies(trace.output_tokens)
        self._requests = Requests(trace, self._manager, self.meter)

    def run(self, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Serve every request; ``on_progress`` gets the number of finished ones when it changes."""
        done = 0
        while self._is_busy or self._arrivals.next_time < float("inf"):
            self._advance()
            if self.counters.done > done:
                done = self.counters.done
                on_progress(done)

    @property
    def _is_busy(self) -> bool:
        return bool(self._batch or self._waiting)

    def _advance(self) -> None:
        """Run a step, or a stretch of equal ones; if no request is there, go to the next."""
        self._arrive()
        if self._is_busy:
            self._step()
        elif self._arrivals.next_time < float("inf"):
            self.now = self._arrivals.next_time
            self._sample()

    def _arrive(self) -> None:
        for request in self._arrivals.pop_until(self._scheduled_at):
            if request in self.too_large.requests:
                self.counters.rejected += 1
                self._arrivals.finish(request, self.now)
            else:
                self.latencies.arrived[request] = self._arrivals.due[request]
                self._waiting.append(request)

    @property
    def _scheduled_at(self) -> float:
        """When the coming step is scheduled; without a request there is none in flight."""
        in_flight = self.config.async_scheduling and len(self._batch) > 0
        return self._last_begin if in_flight else self.now

    def _step(self) -> None:
        served, admitted = None, None
        if self._is_steady():
            served, admitted = self._decode_on()
            if served == len(self._batch):
                self._sample()
                self._finish()
                return
        if served is None:
            self.meter.call(self._manager.begin_step)
        preemptions, running = self.counters.preemptions, len(self._batch) - len(admitted or ())
        if admitted:
            rows, chunks = np.arange(running), np.ones(running, dtype=np.int32)
        else:
            rows, chunks = self._make_room(*self._schedule(served or 0))
        if self.counters.preemptions == preemptions:
            if not admitted:
                running = len(self._batch)
                admitted = self._admit(self._budget_beside(chunks))
            rows = np.concatenate((rows, np.arange(running, len(self._batch))))
            chunks = np.concatenate((chunks, np.array(admitted, dtype=np.int32)))
        scheduled = self._batch.computed.copy()
        scheduled[rows] += chunks
        needless = self._waits_needlessly(scheduled)
        self._compute(rows, chunks)
        has_preempted = self.counters.preemptions > preemptions
        if has_preempted or self._is_short_of_memory:
            self._sample_memory(len(self._batch), 1, needless=needless)
        self._sample()
        self._finish()
        self.meter.end_step()

    def _budget_beside(self, chunks: Counts) -> int:
        return self.config.max_num_batched_tokens - int(chunks.sum())

    def _schedule(self, served: int) -> tuple[Int64s, Counts, int]:
        """Return which requests compute how many tokens, as far as the budget goes.

        The third is how many of them have room: the first ``served``, or those before a prompt that
        the budget cuts. What these leave in the cache makes others short.
        """
        batch, budget = self._batch, self.config.max_num_batched_tokens
        chunks = batch.known - batch.computed
        for row in np.flatnonzero(chunks > 1).tolist():
            left = budget - int(chunks[:row].sum())
            if left <= 0 or row >= len(batch):
                break
            most = min(int(chunks[row]), left)
            if most < chunks[row] and self._manager.weighs_prompts:
                ready = np.flatnonzero(chunks[:row] > 0)
                ready, room = self._make_room(ready, chunks[ready].astype(np.int32), served)
                chunks[:row], served = 0, len(ready)
                chunks[ready] = room
                chunks = chunks[: len(batch)]
                if row >= len(batch):
                    break
                most -= self._left_to_short(most, chunks[row + 1 :].tolist())
            handle, start = int(batch.handle[row]), int(batch.computed[row])
            chunks[row] = self.meter.call(self._manager.chunk, handle, start, most)
        before = np.cumsum(chunks) - chunks
        chunks = np.minimum(chunks, budget - before)
        rows = np.flatnonzero(chunks > 0)
        return rows, chunks[rows].astype(np.int32), served

    def _make_room(self, rows: Int64s, chunks: Counts, served: int) -> tuple[Int64s, Counts]:
        """Allocate for the scheduled requests from ``served`` on; return those that are left.

        None are where a request that runs alone has no room, once: what is held for copies comes
        free in the next step.
        """
        if not len(rows):
            return rows, chunks
        while served < len(rows):
            handles = self._batch.handle[rows[served:]]
            served += self.meter.call(self._manager.allocate, handles, chunks[served:])
            if served == len(rows):
                break
            if self._cut_chunk(int(rows[served]), chunks, served):
                continue
            if len(self._batch) == 1:
                if not self._has_idled:
                    self._has_idled = True
                    return rows[:0], chunks[:0]
                raise RefusedRequestError(
                    int(self._batch.request[0]),
                    f"request {self._batch.request[0]} runs alone and has no room for token "
                    f"{self._batch.known[0]} in {self._manager.num_blocks:,} "
                    f"{self._manager.unit.name}s",
                )
            self._preempt_last()
            kept = int(np.searchsorted(rows, len(self._batch)))
            rows, chunks = rows[:kept], chunks[:kept]
        self._has_idled = False
        return rows, chunks

    def _cut_chunk(self, row: int, chunks: Counts, at: int) -> bool:
        """Make a chunk that has no room as small as the manager asks; return whether it did."""
        handle, start = int(self._batch.handle[row]), int(self._batch.computed[row])
        chunk = int(chunks[at])
        if chunk > 1:
            # vLLM cuts to nothing a chunk that ends below a block's border already.
            chunks[at] = self.meter.call(self._manager.chunk, handle, start, chunk) or chunk
        return int(chunks[at]) < chunk

    def _compute(self, rows: Int64s, chunks: Counts) -> None:
        """Spend the time of one step, in which the requests in ``rows`` advance."""
        batch = self._batch
        before, is_prompt = batch.computed[rows], chunks > 1
        batch.computed[rows] += chunks
        self._last_begin = self.now
        self.now += self._manager.take_load_seconds()
        milliseconds = self.config.step_time.milliseconds(
            prompt_tokens=int(chunks[is_prompt].sum()),
            decodes=len(chunks) - int(is_prompt.sum()),
            context_tokens=int(before[~is_prompt].sum()),
            pairs=float((chunks * (before + chunks / 2))[is_prompt].sum()),
        )
        self.now += milliseconds / 1e3
        self.meter.call(self._manager.advance, batch.handle[rows], chunks)
        sampling = rows[batch.computed[rows] == batch.known[rows]]
        if len(sampling):
            tokens = self._requests.outputs[batch.next_token[sampling]]
            self.meter.call(self._manager.append_tokens, batch.handle[sampling], tokens)
            batch.known[sampling] += 1
            batch.next_token[sampling] += 1
            self.counters.output_tokens += len(sampling)
            self._note_first_tokens(batch.request[sampling], self.now)

    def _note_first_tokens(self, sampled: Int64s, now: float) -> None:
        """Note the time of requests that have sampled their first token."""
        first = self.latencies.first_token
        first[sampled[np.isnan(first[sampled])]] = now

    def _sample_memory(self, size: int, steps: int, *, needless: bool) -> None:
        """Compare what the first ``size`` requests reserve with what they need, for full steps."""
        live = self._live.of(self._batch.computed[:size])
        manager = self._manager
        self.full_load.add(live, manager.used_bytes, size, steps, manager.reserved_bytes())
        self.full_load.needless_waits += steps * needless

    def _finish(self) -> None:
        finished = self._batch.known == self._batch.final
        if finished.any():
            self.meter.call(self._manager.free, self._batch.handle[finished])
            self.latencies.finished[self._batch.request[finished]] = self.now
            for request in self._batch.request[finished].tolist():
                self._arrivals.finish(request, self.now)
            self.counters.finished += int(finished.sum())
            self._batch.keep(~finished)
            self._is_refused = False

    def _sample(self) -> None:
        used = self._manager.num_blocks - self._manager.num_free_blocks
        self.timeline.add(self.now, used, len(self._batch), len(self._waiting))
        self._on_sample(self.now, self._batch.handle)

    # --- the waiting queue ------------------------------------------------

    @property
    def _is_short_of_memory(self) -> bool:
        """Whether the first that waits was refused for want of memory."""
        return self._is_refused and bool(self._waiting)

    def _waits_needlessly(self, computed: Int64s) -> bool:
        """Return whether the first that waits was refused though its known tokens have room.

        ``computed`` tokens of each running request are computed or have room already; to be asked
        before the step in which they are computed gives anything back.
        """
        if not self._is_short_of_memory:
            return False
        known = self._requests.register(self._waiting[0]).known
        total = self._batch.known
        rows = np.flatnonzero(total - computed > 1)
        under_way = list(zip(computed[rows].tolist(), total[rows].tolist(), strict=True))
        return self._manager.could_hold(known, under_way) is True

    @property
    def _is_awaited(self) -> bool:
        """Whether a request waits and was not refused."""
        return bool(self._waiting) and not self._is_refused and self._is_open

    @property
    def _is_open(self) -> bool:
        """Whether a request that arrives now, or waits already, could join the batch."""
        return not self._is_full and len(self._batch) < self.config.max_num_seqs

    @property
    def _is_full(self) -> bool:
        """Whether the first was refused and would be again, as far as that is known without a try.

        No pool has fewer live blocks than then, and no blocks were promised to prompts under way.
        Such prompts may need fewer than were promised.
        """
        if self._manager.looks_again or not self._is_refused or not self._live_when_refused:
            return False
        live = self._manager.num_live_blocks
        return all(now >= then for now, then in zip(live, self._live_when_refused, strict=True))

    def _preempt_last(self) -> None:
        """Take the request admitted last out of the batch and queue it before all others."""
        row = self._batch.pop()
        self.meter.call(self._manager.preempt, np.array([row["handle"]]))
        self._requests.preempt(row["request"], row["handle"], row["known"], row["computed"])
        self._waiting.appendleft(row["request"])
        self.counters.preemptions += 1
        self._is_refused = False

    def _admit(self, budget: int) -> list[int]:
        """Admit what fits into ``budget`` tokens; return the first chunk of each request."""
        chunks: list[int] = []
        passed_over: list[int] = []
        while self._waiting and budget > 0 and self._is_open:
            self._is_refused = False
            request = self._waiting[0]
            state = self._requests.register(request)
            if self.meter.call(self._manager.waits_for_checkpoint, state.handle):
                passed_over.append(self._waiting.popleft())
                continue
            matched = self.meter.call(self._manager.match_prefix, state.handle)
            chunk = self._first_chunk(state, matched, budget)
            if chunk == 0:
                break
            if not self._allocate(state, chunk):
                if self._batch:
                    self._refuse()
                    break
                # Alone it may fit without holding what was hit beside its own state.
                matched, chunk = 0, self._first_chunk(state, 0, budget)
                if not self._allocate(state, chunk):
                    raise self._hopeless(request, state)
            self._waiting.popleft()
            self._start(request, state, matched)
            chunks.append(chunk)
            budget -= chunk
        self._waiting.extendleft(reversed(passed_over))
        self.counters.peak_running = max(self.counters.peak_running, len(self._batch))
        return chunks

    def _refuse(self) -> None:
        self._is_refused = True
        self._live_when_refused = () if self._num_computing() else self._manager.num_live_blocks

    def _num_computing(self) -> int:
        """Count running requests that have more to compute than their next token."""
        return int((self._batch.known - self._batch.computed > 1).sum())

    def _first_chunk(self, state: Pending, matched: int, budget: int) -> int:
        left = state.known - matched
        most = min(left, budget)
        if most < left and self._manager.weighs_prompts:
            if self._starts_later(left, budget):
                return 0
            most -= self._left_to_short(most, joining=1)
        return self.meter.call(self._manager.chunk, state.handle, matched, most)

    def _starts_later(self, left: int, budget: int) -> bool:
        """Return whether a prompt leaves the rest of the budget, which cuts it, to those before."""
        most = self.config.max_num_batched_tokens
        budgets = self._manager.step_tokens / most
        return needs_more(left, budget, most) and prompts_outweigh(
            self._num_computing(), len(self._waiting), len(self._batch), budgets
        )

    def _left_to_short(self, chunk: int, running: Sequence[int] = (), joining: int = 0) -> int:
        """Return the tokens of a step that a prompt, which the budget cuts, leaves to short ones.

        Behind it are ``running`` requests, by the tokens that they have to compute, and those that
        wait behind ``joining`` ones.
        """
        seats = self.config.max_num_seqs - len(self._batch) - joining
        waiting = islice(self._waiting, joining, joining + max(seats, 0))
        budget = self.config.max_num_batched_tokens
        return tokens_of_short(chunk, running, map(self._num_uncached, waiting), budget)

    def _num_uncached(self, request: int) -> int:
        handle = self._requests.register(request).handle
        return self.meter.call(self._manager.num_uncached, handle)

    def _allocate(self, state: Pending, chunk: int) -> bool:
        handles, chunks = np.array([state.handle]), np.array([chunk], dtype=np.int32)
        return self.meter.call(self._manager.allocate, handles, chunks) == 1

    def _hopeless(self, request: int, state: Pending) -> RefusedRequestError:
        return RefusedRequestError(
            request,
            f"request {request} of {state.known} known tokens cannot be admitted into "
            f"{self._manager.num_free_blocks} free blocks though nothing runs",
        )

    def _start(self, request: int, state: Pending, matched: int) -> None:
        requests, counters = self._requests, self.counters
        if state.admitted:
            counters.recomputed_tokens += max(state.computed - matched, 0)
        else:
            counters.prompt_tokens += state.known
            counters.prompt_blocks += -(-state.known // self._block_size)
            counters.hit_tokens += matched
            counters.hit_blocks += matched // self._block_size
            self.timeline.admit(request, matched)
            self._on_hit(request, matched)
            if self._flops is not None:
                counters.saved_flops += self._flops.of(matched)
        requests.start(request)
        self._batch.append(
            request=request,
            handle=state.handle,
            computed=matched,
            known=state.known,
            final=requests.final[request],
            next_token=requests.output_start[request] + state.known - requests.prompt[request],
        )

    # --- stretches of equal steps -----------------------------------------

    def _is_steady(self) -> bool:
        """Whether the whole batch decodes and none of those that wait can join it."""
        batch = self._batch
        if not 0 < len(batch) <= self.config.max_num_batched_tokens:
            return False
        if self._is_awaited:
            return False
        return bool((batch.computed + 1 == batch.known).all())

    def _decode_on(self) -> tuple[int, list[int]]:
        """Decode whole steps until something changes.

        Returns the size of the batch. When memory runs out within a step, it returns how many
        requests that step has served so far; when a request that was refused joins the batch in a
        step, how many were in it before, and the new one's first chunk.
        """
        batch, manager = self._batch, self._manager
        size = len(batch)
        handles, ones = batch.handle, np.ones(size, dtype=np.int32)
        ends = self._step_ends(
            min(_MAX_STRETCH_TOKENS // size + 1, (batch.final - batch.known).min())
        )
        steps = np.arange(len(ends))[:, np.newaxis]
        done, served = 0, size
        admitted: list[int] = []
        is_short = self._is_short_of_memory
        needless = self._waits_needlessly(batch.computed)
        for tokens in self._requests.outputs[batch.next_token + steps]:
            start = perf_counter_ns()
            manager.begin_step()
            served = manager.allocate(handles, ones)
            self.meter.add(perf_counter_ns() - start)
            if served < size:
                break
            if self._waiting and self._is_open:
                admitted = self._admit(self._budget_beside(ones))
                if admitted:
                    break
            start = perf_counter_ns()
            manager.advance(handles, ones)
            manager.append_tokens(handles, tokens)
            self.meter.add(perf_counter_ns() - start)
            self.meter.end_step()
            done += 1
        if done:
            # The last chunk of a prompt may be a single token, as those of a decode step.
            self._note_first_tokens(batch.request[:size], float(ends[0]))
            self._last_begin = float(ends[done - 2]) if done > 1 else self.now
            self.now = float(ends[done - 1])
            batch.computed[:size] += done
            batch.known[:size] += done
            batch.next_token[:size] += done
            self.counters.output_tokens += done * size
            if is_short:
                self._sample_memory(size, done, needless=needless)
        return served, admitted

    def _step_ends(self, max_steps: int) -> npt.NDArray[np.float64]:
        """Return when each of the coming steps ends: those that no arriving request could join."""
        size, step_time = len(self._batch), self.config.step_time
        context = int(self._batch.computed.sum()) + size * np.arange(max_steps)
        empty = step_time.milliseconds(0, size, 0, 0)
        ends = self.now + np.cumsum(empty + step_time.context * context) / 1e3
        if self._waiting or not self._is_open:
            return ends
        scheduled = [self._scheduled_at, *([self.now] * self.config.async_scheduling)]
        begun = np.concatenate((scheduled, ends))
        return ends[: int(np.searchsorted(begun, self._arrivals.next_time))]
