"""vLLM's engine core in this process, over a null card, under a load."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cases import LONGEST, MOST_RUNNING, OUTPUT_TOKENS, PROMPT_TOKENS, STEP_TOKENS, Cell
from clocks import CLOCKS, Clock
from hybrid_blocks.tools.replay.clock import Arrivals
from hybrid_blocks.tools.trace import Trace
from loads import generate
from null_worker import milliseconds
from planned import fields_of
from registry_oracle import register
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor import Executor

Row = dict[str, Any]

WARM_SECONDS = 15.0
"""Limit of a warm-up, which ends when an eighth of the requests have finished."""


def write_model(name: str, folder: Path) -> Path:
    """Write the ``config.json`` of a built-in model."""
    fields = fields_of(name)
    register(fields)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


class Engine:
    """An engine core, and what its clients see.

    Attributes:
        tokens: sampled since `measure` began.
        first: seconds to the first token of requests since then, from when each was due.
        each: seconds a token after that, of requests that have finished.
    """

    def __init__(
        self, folder: Path, *, longest: int = LONGEST, running: int = MOST_RUNNING
    ) -> None:
        arguments = EngineArgs(
            model=str(folder),
            skip_tokenizer_init=True,
            config_format="hf",
            language_model_only=True,
            load_format="dummy",
            enable_prefix_caching=True,
            distributed_executor_backend="uni",
            max_model_len=longest,
            max_num_seqs=running,
            max_num_batched_tokens=STEP_TOKENS,
        )
        config = arguments.create_engine_config()
        self.core = EngineCore(config, Executor.get_class(config), log_stats=True)
        self.worker: Any = self.core.model_executor.driver_worker.worker
        self._live: dict[str, list[float]] = {}
        """When each request was due, when it had its first token, and its tokens."""
        self._number = 0
        self._draw = Random(1)
        self._forget()

    @property
    def clock(self) -> Clock:
        """The time that the worker lives in."""
        clock: Clock = self.worker.clock
        return clock

    @property
    def about(self) -> Row:
        """The scheduler, its level, and how many batches are in flight."""
        scheduler = self.core.scheduler
        level = getattr(scheduler.kv_cache_manager, "hybrid_blocks_level", "off")
        kind = type(scheduler)
        return {
            "scheduler": f"{kind.__module__}.{kind.__qualname__}",
            "level": str(level),
            "in_flight": self.core.batch_queue_size,
        }

    def _forget(self) -> None:
        self.tokens = self.finished = 0
        self.first: list[float] = []
        self.each: list[float] = []

    def add(self, id_: str, prompt: list[int], outputs: int, due: float) -> None:
        """A request arrives that was due at some time."""
        request = EngineCoreRequest(
            request_id=id_,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=outputs, ignore_eos=True),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._live[id_] = [due, 0.0, 0]
        self.core.add_request(*self.core.preprocess_add_request(request))

    def _add_fresh(self, outputs: int, due: float) -> None:
        self._number += 1
        self.add(f"r{self._number}", list(self._draw.randbytes(PROMPT_TOKENS)), outputs, due)

    def step(self) -> list[str]:
        """Take a step of the engine core; return the requests that have finished."""
        outputs, executed = self.core.step_fn()
        self.core.post_step(executed)
        if not outputs:
            return []
        now, finished = self.clock.now(), []
        for of_client in outputs.values():
            for output in of_client.outputs:
                times = self._live[output.request_id]
                count = len(output.new_token_ids)
                self.tokens += count
                if not times[2] and count:
                    times[1] = now
                    self.first.append(now - times[0])
                times[2] += count
                if output.finish_reason is not None:
                    if times[2] > 1:
                        self.each.append((now - times[1]) / (times[2] - 1))
                    finished.append(output.request_id)
                    del self._live[output.request_id]
        self.finished += len(finished)
        return finished

    # --- loads --------------------------------------------------------------

    def closed(self, running: int, seconds: float) -> Row:
        """Keep ``running`` requests in the engine; measure once they are of all ages."""
        draw = Random(running)
        for _ in range(running):
            self._add_fresh(draw.randint(1, OUTPUT_TOKENS[1]), self.clock.now())

        def go_on(until: float, finished: float = float("inf")) -> None:
            while self.clock.now() < until and self.finished < finished:
                for _ in self.step():
                    self._add_fresh(draw.randint(*OUTPUT_TOKENS), self.clock.now())

        return self._measured(seconds, running / 8, go_on)

    def open(self, rate: float, seconds: float) -> Row:
        """Let ``rate`` requests arrive in a second, at random times; measure after a while."""
        draw, due = Random(int(rate)), self.clock.now()

        def go_on(until: float, finished: float = float("inf")) -> None:
            nonlocal due
            while self.clock.now() < until and self.finished < finished:
                while due <= self.clock.now():
                    self._add_fresh(draw.randint(*OUTPUT_TOKENS), due)
                    due += draw.expovariate(rate)
                if self._live:
                    self.step()
                else:
                    self.clock.wait(due)

        return self._measured(seconds, 2 * rate, go_on)

    def counted(self, requests: int) -> Row:
        """Serve requests of known lengths to their end; all arrive at once."""
        asked = {f"c{number}": 1 + number % OUTPUT_TOKENS[0] for number in range(requests)}
        for id_, count in asked.items():
            self.add(id_, list(self._draw.randbytes(PROMPT_TOKENS)), count, self.clock.now())
        steps = self.worker.steps
        while self._live:
            self.step()
        row = self.about | {
            "requests": self.finished,
            "tokens": self.tokens,
            "asked": sum(asked.values()),
            "first_tokens": len(self.first),
            "steps": self.worker.steps - steps,
        }
        self._drain()
        return row

    def _measured(self, seconds: float, warm: float, go_on: Any) -> Row:
        go_on(self.clock.now() + WARM_SECONDS, warm)
        self._forget()
        begin, cpu, busy = self.clock.now(), time.process_time(), self.worker.busy_s
        steps = self.worker.steps
        go_on(begin + seconds)
        took = self.clock.now() - begin
        row = self._row(took) | {
            "card_busy": min(1.0, (self.worker.busy_s - busy) / took),
            "core_cpu": (time.process_time() - cpu) / took,
            "step_ms": 1e3 * took / max(1, self.worker.steps - steps),
            "ran": len(self.core.scheduler.running),
            "waited": len(self.core.scheduler.waiting),
        }
        self._drain()
        return row

    def _row(self, took: float) -> Row:
        return {
            "tokens_s": self.tokens / took,
            "first_ms": _percentile(self.first, None),
            "first_p50_ms": _percentile(self.first, 50),
            "first_p95_ms": _percentile(self.first, 95),
            "token_p50_ms": _percentile(self.each, 50),
            "seconds": took,
        }

    def _drain(self) -> None:
        self.core.abort_requests(list(self._live))
        while self.core.scheduler.has_requests() or self.core.batch_queue:
            self.core.step_fn()
        self._live.clear()
        self._forget()

    def measure(self, cell: Cell) -> Row:
        """Measure a cell, or count what comes back of it."""
        self.worker.milliseconds = milliseconds(cell["step"])
        self.worker.clock, self.worker.free_at = CLOCKS[cell["clock"]](), 0.0
        if "count" in cell:
            return self.counted(cell["count"])
        if "load" in cell:
            requests = generate(cell["load"], num_requests=cell["requests"])
            at_once = cell.get("at_once")
            return self.serve(requests, at_once) if at_once else self.serve_arriving(requests)
        if "rate" in cell:
            return self.open(cell["rate"], cell["seconds"])
        return self.closed(cell["running"], cell["seconds"])

    def serve(self, requests: Trace, at_once: int) -> Row:
        """Serve a trace with ``at_once`` requests in the engine; its outputs are prescribed."""
        self.core.reset_prefix_cache()
        waiting, ended = list(range(len(requests))), {-1}
        begin = self.clock.now()
        while waiting or self._live:
            for number in waiting[: 4 * at_once]:
                if len(self._live) >= at_once:
                    break
                if int(requests.follows[number]) in ended:
                    self._add_of(requests, number, self.clock.now())
                    waiting.remove(number)
            assert self._live, f"{len(waiting)} requests wait, and none can run"
            ended |= set(map(int, self.step()))
        row = self._row(self.clock.now() - begin)
        self._drain()
        return row

    def serve_arriving(self, requests: Trace) -> Row:
        """Serve a trace whose requests come at their times; its outputs are prescribed."""
        self.core.reset_prefix_cache()
        arrivals, left, begin = Arrivals(requests), len(requests), self.clock.now()
        while left:
            for number in arrivals.pop_until(self.clock.now() - begin):
                self._add_of(requests, number, begin + float(arrivals.due[number]))
            if not self._live:
                self.clock.wait(begin + arrivals.next_time)
                continue
            for id_ in self.step():
                arrivals.finish(int(id_), self.clock.now() - begin)
                left -= 1
        row = self._row(self.clock.now() - begin)
        self._drain()
        return row

    def _add_of(self, requests: Trace, number: int, due: float) -> None:
        tokens, count = requests.token_ids(number).tolist(), int(requests.prompt_tokens[number])
        self.worker.outputs[str(number)] = iter(tokens[count:])
        self.add(str(number), tokens[:count], len(tokens) - count, due)


def _percentile(seconds: list[float], share: float | None) -> float | None:
    """Return a percentile in ms, or the mean; None of nothing."""
    if not seconds:
        return None
    return 1e3 * float(np.mean(seconds) if share is None else np.percentile(seconds, share))
