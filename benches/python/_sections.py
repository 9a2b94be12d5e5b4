"""The parts of `make bench`, in the order of its tables."""

import _criterion
import bench_decode
import bench_hashing
import bench_offload
import bench_replay
import bench_vllm

SECTIONS = {
    "core, Rust": _criterion.run,
    "block hashing": bench_hashing.run,
    "decode step": bench_decode.run,
    "replay": bench_replay.run,
    "inside vLLM": bench_vllm.run,
    "offload": bench_offload.run,
}
