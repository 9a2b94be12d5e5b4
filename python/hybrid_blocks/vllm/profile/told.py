"""What a step tells workers and clients, as bytes to compare."""

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs


def of_schedule(scheduled: SchedulerOutput) -> bytes:
    """Return everything that a step decided on: requests, tokens, blocks."""
    new = [
        (one.req_id, one.block_ids, one.num_computed_tokens) for one in scheduled.scheduled_new_reqs
    ]
    cached = vars(scheduled.scheduled_cached_reqs)
    rest = vars(scheduled) | {"scheduled_new_reqs": new, "scheduled_cached_reqs": cached}
    return repr({name: _ordered(value) for name, value in rest.items()}).encode()


def _ordered(value: object) -> object:
    """Return sets as sorted lists: their order means nothing and differs between processes."""
    match value:
        case set():
            return sorted(value)
        case dict():
            return {key: _ordered(one) for key, one in value.items()}
        case _:
            return value


def of_outputs(outputs: dict[int, EngineCoreOutputs]) -> bytes:
    """Return what clients are told, without times."""
    said = []
    for client, of_client in outputs.items():
        stats = of_client.scheduler_stats
        counts = stats and (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage)
        cache = stats and stats.prefix_cache_stats
        ours = [
            (one.request_id, one.new_token_ids, one.finish_reason, one.prefill_stats)
            for one in of_client.outputs
        ]
        said.append((client, counts, cache, ours))
    return repr(said).encode()
