"""First tokens of a small hybrid with random weights, at the level that the environment names.

Conversations take turns, a few at a time. A prompt repeats all earlier turns and answers.
"""

import json
import os
import sys
from pathlib import Path
from statistics import mean, quantiles
from tempfile import TemporaryDirectory
from typing import Any

IS_DRY = "--dry" in sys.argv
CONVERSATIONS, TURNS, TOGETHER = (2, 2, 2) if IS_DRY else (24, 3, 8)
OPENING, NEWS, ANSWER = (100, 40, 4) if IS_DRY else (2800, 700, 32)
"""Tokens that a conversation begins with, and those of a later turn and of an answer."""

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "bfloat16",
    "vocab_size": 1024,
    "hidden_size": 256 if IS_DRY else 2048,
    "intermediate_size": 256,
    "num_hidden_layers": 4 if IS_DRY else 16,
    "full_attention_interval": 4,
    "num_attention_heads": 4 if IS_DRY else 16,
    "num_key_value_heads": 2,
    "head_dim": 64 if IS_DRY else 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64 if IS_DRY else 128,
    "linear_value_head_dim": 64 if IS_DRY else 128,
    "linear_num_key_heads": 1 if IS_DRY else 16,
    "linear_num_value_heads": 2 if IS_DRY else 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 64 if IS_DRY else 512,
    "shared_expert_intermediate_size": 64 if IS_DRY else 512,
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}


def serve(folder: Path) -> dict[str, Any]:
    """Return what a served model finds of its prompts, and how soon it answers."""
    from hybrid_blocks.vllm.attach import register  # noqa: PLC0415 - vLLM is slow to import
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    # A checkout is no installed distribution, whose entry point vLLM would find.
    register()
    options: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 28}
    if not IS_DRY:
        options = {"gpu_memory_utilization": 0.5, "max_num_seqs": 64}
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        enforce_eager=True,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=16384 if not IS_DRY else 1024,
        enable_prefix_caching=True,
        disable_log_stats=False,
        **options,
    )
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    said = [tokens(number, OPENING) for number in range(CONVERSATIONS)]
    latencies, found, asked = [], 0, 0
    for turn in range(TURNS):
        for first in range(0, CONVERSATIONS, TOGETHER):
            some = range(first, min(first + TOGETHER, CONVERSATIONS))
            for number in some:
                if turn:
                    said[number] += tokens(1000 * turn + number, NEWS)
            outputs = llm.generate(
                [TokensPrompt(prompt_token_ids=said[number]) for number in some],
                sampling,
                use_tqdm=False,
            )
            for number, output in zip(some, outputs, strict=True):
                latencies.append(output.metrics.first_token_latency)
                found += output.num_cached_tokens or 0
                asked += len(said[number])
                said[number] += output.outputs[0].token_ids
    return {
        "first_token_mean_s": mean(latencies),
        "first_token_p95_s": quantiles(latencies, n=20)[-1],
        "found": found / asked,
        "prompts": len(latencies),
    }


def tokens(seed: int, count: int) -> list[int]:
    """Return tokens that follow from a number."""
    return [(seed * 7919 + at * at * 31 + at) % 1000 for at in range(count)]


def main() -> None:
    """Write a configuration, serve it, and print the figures."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(CONFIG))
        print(json.dumps({"level": os.environ["HYBRID_BLOCKS"], **serve(folder)}), flush=True)


if __name__ == "__main__":
    main()
