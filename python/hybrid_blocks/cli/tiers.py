"""``hybrid-blocks replay --host``: tiers below the device."""

from collections.abc import Sequence

from rich.progress import TaskID

from hybrid_blocks.cli.progress import make_progress
from hybrid_blocks.cli.without_gpu import allow_no_gpu
from hybrid_blocks.replay import Cache, EngineConfig, ReplayError
from hybrid_blocks.replay.tiers.result import TieredResult
from hybrid_blocks.replay.tiers.side import Side
from hybrid_blocks.replay.tiers.sizes import TierBytes
from hybrid_blocks.trace import Trace


def compare_tiers(
    trace: Trace,
    cache: Cache,
    tiers: TierBytes,
    sides: Sequence[Side],
    config: EngineConfig,
    *,
    retention: int | None,
) -> list[TieredResult]:
    """Replay a trace with each manager over tiers of the same bytes.

    Raises:
        ReplayError: vLLM is not installed, or as `replay_tiers`.

    """
    allow_no_gpu()
    try:
        from hybrid_blocks.replay.tiers.run import replay_tiers  # noqa: PLC0415 - imports vLLM
    except ImportError as error:
        raise ReplayError(f"--host needs vLLM 0.33: {error}") from error
    results = []
    with make_progress() as progress:
        for side in sides:
            task = progress.add_task(f"replay ({side.label})", total=len(trace))

            def show(done: int, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            result = replay_tiers(
                trace,
                cache,
                tiers,
                side,
                config,
                retention=retention,
                beside=sides,
                on_progress=show,
            )
            results.append(result)
    return results
