"""CUDA C++ by CuPy: one warp a unit; pinned host memory is read and written in 512-byte rows."""

from hybrid_blocks.kernels import cuda, launch
from hybrid_blocks.kernels.blocks import BlockTensors
from hybrid_blocks.kernels.gather_scatter.records import Records
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import LaunchQueue


def gather_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Launch blocks to records."""
    _launch("gather_blocks", queue, group, (ids, places), records, max_sms)


def scatter_blocks(
    queue: LaunchQueue,
    group: BlockTensors,
    ids: IdList,
    records: Records,
    places: IdList,
    max_sms: int | None,
) -> None:
    """Launch records to blocks."""
    _launch("scatter_blocks", queue, group, (ids, places), records, max_sms)


def _launch(
    name: str,
    queue: LaunchQueue,
    group: BlockTensors,
    lists: tuple[IdList, IdList],
    records: Records,
    max_sms: int | None,
) -> None:
    run = cuda.prepared(group, queue, "gather_scatter", name, _parameters)
    count = len(lists[0])
    grid = launch.cuda_grid(run.num_units * count, max_sms)
    run(
        lists,
        grid,
        num_items=count,
        num_places=records.num_places,
        staging=records.staging.data_ptr(),
        granule=records.granule,
    )


def _parameters(group: BlockTensors) -> list[cuda.Parameter]:
    return [
        *cuda.tables_of(group),
        ("pairs", cuda.PAIRS, None),
        ("num_items", "i4", None),
        ("num_blocks", "i4", group.num_blocks),
        ("num_places", "i8", None),
        ("staging", "u8", None),
        ("granule", "i8", None),
    ]
