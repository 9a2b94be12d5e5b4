"""Recurrent state between float32 and a smaller format, fused with the copy."""

from typing import TYPE_CHECKING, Literal, get_args

from hybrid_blocks.kernels import ids, launch
from hybrid_blocks.kernels.backend import Backend, implementation
from hybrid_blocks.kernels.convert_state.codec import StateCodec
from hybrid_blocks.kernels.ids import IdList
from hybrid_blocks.kernels.launch_queue import queue_of
from hybrid_blocks.kernels.upload import MAX_LIST

if TYPE_CHECKING:
    import torch

__all__ = ["Direction", "StateCodec", "convert_state"]

Direction = Literal["encode", "decode"]


def convert_state(
    codec: StateCodec,
    src: IdList,
    dst: IdList,
    *,
    direction: Direction,
    backend: Backend | None = None,
    stream: "torch.cuda.Stream | None" = None,
    max_sms: int | None = None,
) -> None:
    """Convert block ``src[i]`` into block ``dst[i]``, all layers and heads in one launch.

    ``"encode"`` reads ``codec.state`` and writes ``codec.packed`` (and ``codec.scales``),
    ``"decode"`` the reverse; ``src`` are ids of the side that is read. Both lists are int32
    ``[n]``, on the host or on the device, where a pair with an id out of bounds is skipped.
    ``max_sms`` bounds the SMs that the launch occupies.

    Raises ``TypeError`` for ids that are not int32, and ``IndexError`` for one out of bounds.
    Raises ``ValueError`` for lists that differ in length or name a destination twice.
    """
    if direction not in get_args(Direction):
        raise ValueError(f"direction is {direction!r}; it must be 'encode' or 'decode'")
    launch.check_max_sms(max_sms)
    source, target = codec.state, codec.packed
    if direction == "decode":
        source, target = target, source
    host_src, host_dst = ids.on_host("src", src), ids.on_host("dst", dst)
    if len(src) != len(dst):
        raise ValueError(f"src has {len(src)} ids, dst has {len(dst)}; they are pairs")
    run = implementation(__name__, source.device, backend)
    if host_src is None or host_dst is None:
        ids.same_place("src and dst", host_src, host_dst)
        ids.check_device("src and dst", source.device, src, dst)
    else:
        source.checks.bounds("src", host_src)
        target.checks.bounds("dst", host_dst)
        target.checks.unique("dst", host_dst)
        ids.check_apart("dst", host_dst, host_dst, target.reach)
    queue = queue_of(source.device, stream)
    if len(src) == 0:
        return
    convert = getattr(run, direction)
    if host_src is None or host_dst is None:
        convert(queue, codec, src, dst, max_sms)
        queue.guard(src, dst, own_stream=stream is not None)
        return
    queue.check_not_capturing()
    for at in range(0, len(host_src), MAX_LIST):
        part = slice(at, at + MAX_LIST)
        convert(queue, codec, host_src[part], host_dst[part], max_sms)
