"""Lists of (source, destination) ids: checked on the host, cut into waves, launched in order."""

from typing import TYPE_CHECKING

from hybrid_blocks.kernels import ids, launch
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.upload import upload
from hybrid_blocks.kernels.waves import ordered_waves

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def run_pairs(
    src: IdList,
    dst: IdList,
    move: "Callable[[torch.Tensor, torch.Tensor], None]",
    *,
    what: str,
    num_ids: int,
    device: "torch.device",
    stream: "torch.cuda.Stream | None",
    reach: int = 1,
) -> None:
    """Call ``move`` with lists on ``device`` that together mean ``src[i]`` to ``dst[i]`` in order.

    ``src`` and ``dst`` are int32 ``[n]`` of ids in ``[0, num_ids)``, called ``what`` in errors.
    Lists on the device are handed on as they are. Ids closer than ``reach`` overlap in memory.

    Raises ``TypeError`` for ids that are not int32, ``IndexError`` for one out of bounds,
    ``ValueError`` for lists that differ in length, lie apart, or overlap.
    """
    host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
    if len(src) != len(dst):
        raise ValueError(f"src has {len(src)} {what}, dst has {len(dst)}; they are pairs")
    if host_src is None or host_dst is None:
        ids.same_place("src and dst", host_src, host_dst)
        ids.check_device("src and dst", device, src, dst)
        with launch.on_device(device, stream):
            move(src, dst)  # type: ignore[arg-type]
        return
    ids.check_bounds("src", host_src, num_ids)
    ids.check_bounds("dst", host_dst, num_ids)
    ids.check_apart("src and dst", host_src, host_dst, reach)
    ids.check_apart("dst", host_dst, host_dst, reach)
    waves = ordered_waves(host_src, host_dst)
    if not waves:
        return
    with launch.on_device(device, stream):
        lists = upload(device, [part for wave in waves for part in wave])
        for wave_src, wave_dst in zip(lists[::2], lists[1::2], strict=True):
            move(wave_src, wave_dst)
