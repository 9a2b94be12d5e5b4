"""Chunks a prompt where a step's budget holds the prompt: states leave chunks, or chunks end there.

All memory that a load needs is there, so no prompt is computed twice.
"""

from collections.abc import Iterator
from functools import partial

from _record import Row
from _served_first_token import LOADS, MODELS, everything, load_of
from _served_hits import serve
from _served_model import Case, Side, serving
from _served_rows import GIB, TOKENS, Cases, Chosen, deployment
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.trace import Trace
from vllm.v1.core.sched.output import SchedulerOutput

RUNNING, REQUESTS = 8, 120
MOST = 1.1
"""Chunks a prompt where states leave chunks."""


def cases(chosen: Chosen) -> Cases:
    """Yield level ``natural`` with states inside chunks, and with chunks that end there.

    A load of longer prompts alone is left out.
    """
    for load in chosen.loads or LOADS:
        trace = load_of(load, REQUESTS, chosen.data)
        if not (trace.prompt_tokens <= TOKENS).any():
            continue
        deployed = deployment(int(trace.total_tokens.max()) + 1)
        for name in chosen.models or MODELS[:1]:
            model = load_model(name)
            memory = everything(model, load, REQUESTS, chosen.data) + GIB
            for inside in (False, True):
                about = {"load": load, "model": model.name, "side": Side.NATURAL, "inside": inside}
                case = Case(model, memory, deployed, RUNNING, inside=inside, fast=True)
                yield about | {"running": RUNNING}, partial(measure, case, trace)


def measure(case: Case, trace: Trace) -> Row:
    """Serve a trace; count chunks of prompts no longer than a step's budget."""
    num_chunks = 0
    with serving(Side.NATURAL, case) as served:

        def count(scheduled: SchedulerOutput) -> None:
            nonlocal num_chunks
            for id_, num_tokens in scheduled.num_scheduled_tokens.items():
                request = served.scheduler.requests[id_]
                start = request.num_computed_tokens - num_tokens
                fits = request.num_prompt_tokens <= TOKENS
                num_chunks += fits and start + 1 < request.num_prompt_tokens

        serve(served, trace, case.num_requests, count)
        found = sum(served.num_hit_tokens.values())
    num_prompts = int((trace.prompt_tokens <= TOKENS).sum())
    return {
        "requests": len(trace),
        "prompts": num_prompts,
        "chunks": num_chunks,
        "chunks_a_prompt": num_chunks / num_prompts,
        "hit_rate": found / int(trace.prompt_tokens.sum()),
    }


def check(rows: list[Row]) -> Iterator[str]:
    """Name the loads whose prompts take more chunks than they should."""
    for row in rows:
        if row["inside"] and row["chunks_a_prompt"] > MOST:
            yield f"{row['load']}, {row['model']}: {row['chunks_a_prompt']:.2f} chunks a prompt"
