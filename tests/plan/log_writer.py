"""Logs as vLLM writes them, made from the facts of one start."""

from typing import Any

HYBRID = "Setting attention block size to {} tokens to ensure that attention page size is >= mamba"


def write_log(row: dict[str, Any]) -> list[str]:
    """Lines of a start; each release's own form of the figures."""
    options = row["deployment"]
    is_old = row.get("counts") == "blocks"
    version = "0.20.1rc1" if is_old else "0.25.1"
    drafts = options.get("num_speculative_tokens")
    method = row.get("method", "mtp")
    speculative = (
        f"SpeculativeConfig(method='{method}', model='{row['model']}', num_spec_tokens={drafts})"
        if drafts
        else None
    )
    length = options.get("max_model_len", 262144)
    caching = options.get("mamba_cache_mode") != "none"
    given = {"model_tag": row["model"], "api_key": "***", "served_model_name": ["a, 'b'", "c}"]}
    given |= {"max_num_seqs": options.get("max_num_seqs", 256)}
    lines = [
        f"vLLM API server version {version}",
        f"non-default args: {given}",
        f"Initializing a V1 LLM engine (v{version}) with config: model='{row['model']}', "
        f"speculative_config={speculative}, tokenizer='{row['model']}', dtype=torch.bfloat16, "
        f"max_seq_len={length}, tensor_parallel_size={options.get('tp', 1)}, "
        f"pipeline_parallel_size=1, kv_cache_dtype={options.get('kv_cache_dtype', 'auto')}, "
        f"seed=0, enable_prefix_caching={caching}, enable_chunked_prefill=True, pooler_config=None",
        "Chunked prefill is enabled with max_num_batched_tokens="
        f"{options.get('max_num_batched_tokens', 8192)}.",
        "Loading safetensors checkpoint shards: 100% Completed",
    ]
    if row.get("block", 16) > 16:
        lines.append(HYBRID.format(row["block"]))
    if "gib" in row:
        lines.append(f"Available KV cache memory: {row['gib']} GiB")
    if "blocks" in row:
        lines.append(f"# GPU blocks: {row['blocks']}, # CPU blocks: 0")
    lines += _figures(row, length, joined=not is_old)
    if "state_blocks" in row:
        lines.append(
            f"ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks "
            f"({row['state_blocks']}). Each decode sequence requires one Mamba cache block"
        )
    return [f"(EngineCore pid=1) INFO 11-20 10:00:00 [a.py:1] {line}\n" for line in lines]


def _figures(row: dict[str, Any], length: int, *, joined: bool) -> list[str]:
    found = []
    if "tokens" in row:
        found.append(f"GPU KV cache size: {row['tokens']:,} tokens")
    if "concurrency" in row:
        each = f"Maximum concurrency for {length:,} tokens per request"
        found.append(f"{each}: {row['concurrency']:.2f}x")
    return [", ".join(found)] if joined and found else found
