"""A continuous-batching engine in virtual time."""

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from hybrid_blocks.manager import Counts, Manager
from hybrid_blocks.replay.admission import Admission
from hybrid_blocks.replay.arrivals import Arrivals
from hybrid_blocks.replay.batch import Batch
from hybrid_blocks.replay.config import EngineConfig
from hybrid_blocks.replay.counters import Counters
from hybrid_blocks.replay.errors import ReplayError
from hybrid_blocks.replay.meter import Meter
from hybrid_blocks.replay.requests import Requests
from hybrid_blocks.replay.timeline import Timeline
from hybrid_blocks.trace import Trace

_MAX_STRETCH_TOKENS = 65_536


class Engine:
    """Runs a trace through a manager.

    A step serves the running requests in the order of their admission, each with the tokens that
    it has not computed yet, as far as the token budget goes. Where the manager has no room, the
    request admitted last is preempted. If none was, waiting requests are admitted into the rest
    of the budget, and their prompts computed in chunks. A request whose known tokens are all
    computed samples one.

    While the whole batch decodes and nobody can join, steps differ in nothing but their number:
    they follow each other without another look at the schedule, but not without the manager,
    until a request finishes, one arrives that could join, or memory runs out.

    Attributes:
        now: virtual time in seconds.
        counters: totals so far.
        meter: the manager's time, step by step.
        timeline: samples over virtual time.
    """

    def __init__(self, trace: Trace, manager: Manager, config: EngineConfig) -> None:
        self.now = 0.0
        self.counters = Counters()
        self.meter = Meter()
        self.timeline = Timeline()
        self._manager = manager
        self._config = config
        self._num_requests = len(trace)
        self._too_large = _find_too_large(trace, manager, config)
        self._arrivals = Arrivals(trace)
        self._requests = Requests(trace, manager, self.meter)
        self._batch = Batch(config.max_num_seqs)
        self._admission = Admission(
            manager=manager,
            config=config,
            requests=self._requests,
            batch=self._batch,
            counters=self.counters,
            meter=self.meter,
        )

    def run(self, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Serve every request; ``on_progress`` is told how many are done whenever that changes."""
        done = 0
        while done < self._num_requests:
            self._arrive()
            if self._batch or self._admission:
                self._step()
            elif self._arrivals.next_time < float("inf"):
                self.now = self._arrivals.next_time
                self._sample()
            if self.counters.done > done:
                done = self.counters.done
                on_progress(done)

    def _arrive(self) -> None:
        for request in self._arrivals.pop_until(self.now):
            if request in self._too_large:
                self.counters.rejected += 1
                self._arrivals.finish(request, self.now)
            else:
                self._admission.arrive(request)

    def _step(self) -> None:
        served = 0
        if self._is_steady():
            served = self._decode_on()
            if served == len(self._batch):
                self._sample()
                self._finish()
                return
        preemptions = self.counters.preemptions
        chunks = self._make_room(self._schedule(), served)
        if self.counters.preemptions == preemptions:
            admitted = self._admission.admit(self._config.max_num_batched_tokens - chunks.sum())
            chunks = np.concatenate((chunks, np.array(admitted, dtype=np.int32)))
        self._compute(chunks)
        self._sample()
        self._finish()
        self.meter.end_step()

    def _schedule(self) -> Counts:
        """Return how many tokens each request computes; those past the budget are left off."""
        need = self._batch.known - self._batch.computed
        before = np.cumsum(need) - need
        chunks = np.minimum(need, self._config.max_num_batched_tokens - before)
        positive: Counts = chunks[chunks > 0].astype(np.int32)
        return positive

    def _make_room(self, chunks: Counts, served: int) -> Counts:
        """Allocate for the requests from ``served`` on; return the chunks that are left."""
        while served < len(chunks):
            handles = self._batch.handle[served : len(chunks)]
            served += self.meter.call(self._manager.allocate, handles, chunks[served:])
            if served == len(chunks):
                break
            if len(self._batch) == 1:
                raise ReplayError(
                    f"request {self._batch.request[0]} runs alone and has no room for token "
                    f"{self._batch.known[0]} in {self._manager.num_blocks} blocks"
                )
            self._admission.preempt_last()
            chunks = chunks[: len(self._batch)]
        return chunks

    def _compute(self, chunks: Counts) -> None:
        """Spend the time of one step; the first ``len(chunks)`` requests advance."""
        batch, rows = self._batch, slice(len(chunks))
        batch.computed[rows] += chunks
        self.now += self._config.step_time.seconds(
            prefill_tokens=int(chunks.sum()) - len(chunks),
            sequences=len(chunks),
            context_tokens=int(batch.computed[rows].sum()),
        )
        self.meter.call(self._manager.advance, batch.handle[rows], chunks)
        sampling = np.flatnonzero(batch.computed[rows] == batch.known[rows])
        if len(sampling):
            tokens = self._requests.outputs[batch.next_token[sampling]]
            self.meter.call(self._manager.append_tokens, batch.handle[sampling], tokens)
            batch.known[sampling] += 1
            batch.next_token[sampling] += 1
            self.counters.output_tokens += len(sampling)

    def _finish(self) -> None:
        finished = self._batch.known == self._batch.final
        if finished.any():
            self.meter.call(self._manager.free, self._batch.handle[finished])
            for request in self._batch.request[finished].tolist():
                self._arrivals.finish(request, self.now)
            self.counters.finished += int(finished.sum())
            self._batch.keep(~finished)
            self._admission.retry()

    def _sample(self) -> None:
        used = self._manager.num_blocks - self._manager.num_free_blocks
        self.timeline.add(self.now, used, len(self._batch), len(self._admission))

    # --- stretches of equal steps -----------------------------------------

    def _is_steady(self) -> bool:
        """Whether the whole batch decodes and none of those that wait can join it."""
        batch = self._batch
        if not 0 < len(batch) <= self._config.max_num_batched_tokens:
            return False
        if self._admission and self._admission.is_open:
            return False
        return bool((batch.computed + 1 == batch.known).all())

    def _decode_on(self) -> int:
        """Decode whole steps until something changes.

        Returns the size of the batch, or, when memory runs out within a step, how many requests
        that step has served so far.
        """
        batch, manager, log = self._batch, self._manager, self.meter.steps
        size = len(batch)
        handles, ones = batch.handle, np.ones(size, dtype=np.int32)
        ends = self._step_ends(
            min(_MAX_STRETCH_TOKENS // size + 1, (batch.final - batch.known).min())
        )
        steps = np.arange(len(ends))[:, np.newaxis]
        done, served = 0, size
        for tokens in self._requests.outputs[batch.next_token + steps]:
            start = perf_counter_ns()
            served = manager.allocate(handles, ones)
            if served < size:
                self.meter.add(perf_counter_ns() - start)
                break
            manager.advance(handles, ones)
            manager.append_tokens(handles, tokens)
            log.append(perf_counter_ns() - start)
            done += 1
        if done:
            self.now = float(ends[done - 1])
            batch.computed += done
            batch.known += done
            batch.next_token += done
            self.counters.output_tokens += done * size
        return served

    def _step_ends(self, max_steps: int) -> npt.NDArray[np.float64]:
        """Return when each of the coming steps ends: those that begin before anyone could join."""
        size, step_time = len(self._batch), self._config.step_time
        context = int(self._batch.computed.sum()) + size * np.arange(1, max_steps + 1)
        fixed = step_time.seconds(prefill_tokens=0, sequences=size, context_tokens=0)
        ends = self.now + np.cumsum(fixed + step_time.per_context_token * context)
        if not self._admission.is_open:
            return ends
        return ends[: 1 + int(np.searchsorted(ends, self._arrivals.next_time))]


def _find_too_large(trace: Trace, manager: Manager, config: EngineConfig) -> frozenset[int]:
    """Return the requests that the empty pool cannot hold; the last token is never computed."""
    room = manager.num_blocks * config.block_size
    computed = trace.total_tokens - 1
    found = np.flatnonzero(computed > room)
    if len(found) and not config.reject_too_large:
        worst = int(np.argmax(computed))
        raise ReplayError(
            f"{len(found)} of {len(trace)} requests do not fit into {manager.num_blocks:,} blocks "
            f"({room:,} tokens); the largest, request {worst}, needs {computed[worst]:,} tokens, "
            f"{config.blocks(int(computed[worst])):,} blocks. Give more memory, or leave them out "
            "with --on-error skip"
        )
    return frozenset(found.tolist())
