"""Convert recurrent states between running states and checkpoints in another format."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.convert_states.pools import StatePools
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.upload import MAX_LIST

if TYPE_CHECKING:
    import torch


def convert_states(
    pools: StatePools,
    src: IdList,
    dst: IdList,
    *,
    keeps: bool,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
) -> None:
    """Write state ``src[i]``, all layers, to block ``dst[i]`` of the other pool, in one launch.

    With ``keeps`` the sources are running states and the destinations checkpoints, else the
    reverse. The bytes are those of the Rust codec of offload; only the bits of a NaN may differ.
    No block that is read may share bytes with one that is written, which nothing checks.

    ``src`` and ``dst`` are int32 ``[n]``, both on the host or both on the pools' device. There a
    pair with an id outside its pool is skipped, and no id may be twice in ``dst``.

    Raises ``TypeError`` for ids that are not int32, and ``IndexError`` for one of the host out of
    bounds. Raises ``ValueError`` for lists that differ in length or lie apart, and for a
    destination named twice.
    """
    host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
    if len(src) != len(dst):
        raise ValueError(f"src has {len(src)} ids, dst has {len(dst)}; they are pairs")
    ids.same_place("src and dst", host_src, host_dst)
    if host_src is None or host_dst is None:
        ids.check_device("src and dst", pools.device, src, dst)
    else:
        sources, targets = (pools.running, pools.kept) if keeps else (pools.kept, pools.running)
        sources.bounds("src", host_src)
        targets.bounds("dst", host_dst)
        targets.unique("dst", host_dst)
    run = implementation(__name__, pools.device, backend)
    queue = queue_of(pools.device, stream)
    if not len(src):
        return
    if host_src is None or host_dst is None:
        run.convert_states(queue, pools, src, dst, keeps)
        queue.guard(src, dst, own_stream=stream is not None)
        return
    queue.check_not_capturing()
    for at in range(0, len(host_src), MAX_LIST):
        part = slice(at, at + MAX_LIST)
        run.convert_states(queue, pools, host_src[part], host_dst[part], keeps)
