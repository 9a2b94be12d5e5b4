"""Logs as vLLM and SGLang write them, made from the facts of one start."""

from typing import Any

import sglang_figures
from hybrid_blocks.model import Model
from hybrid_blocks.plan.sglang.costs import Costs

HYBRID = "Setting attention block size to {} tokens to ensure that attention page size is >= mamba"


def write_log(row: dict[str, Any]) -> list[str]:
    """Lines of a start; each release's own form of the figures."""
    options = row["deployment"]
    is_old = row.get("counts") == "blocks"
    version = "0.20.1" if is_old else "0.25.1"
    drafts = options.get("num_speculative_tokens")
    method = row.get("method", "mtp")
    speculative = (
        f"SpeculativeConfig(method='{method}', model='{row['model']}', num_spec_tokens={drafts})"
        if drafts
        else None
    )
    length = options.get("max_model_len", 262144)
    caching = options.get("mamba_cache_mode") != "none"
    given = {
        "model_tag": row["model"],
        "api_key": "***",
        "served_model_name": ["a, 'b'", "c}"],
        "max_num_seqs": options.get("max_num_seqs", 256),
    }
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


def write_sglang(case: sglang_figures.Case, model: Model, each: Costs) -> list[str]:
    """Lines of SGLang's start, as 0.5.23 writes them, with the figures of its own functions."""
    given, figures = sglang_figures.CASES[case.case], case.figures
    assert figures is not None
    ranks, drafts = given.get("tp", 1), given.get("draft_tokens", 0)
    options = {
        "model_path": case.model,
        "tokenizer_path": case.model,
        "context_length": None,
        "tp_size": ranks,
        "pp_size": 1,
        "kv_cache_dtype": given.get("kv_cache_dtype", "auto"),
        "max_running_requests": sglang_figures.MAX_RUNNING,
        "speculative_num_steps": 1 if drafts else None,
        "speculative_num_draft_tokens": drafts or None,
        "mamba_ssm_dtype": given.get("mamba_ssm_dtype"),
        "mamba_full_memory_ratio": given.get("mamba_full_memory_ratio", 0.9),
        "mamba_radix_cache_strategy": given.get("mamba_radix_cache_strategy", "auto"),
        "disable_radix_cache": given.get("disable_radix_cache", False),
    }
    lines = [f"[2026-11-20 10:00:00] server_args={options}\n"]
    for rank in range(ranks):
        name = f" TP{rank}" if ranks > 1 else ""
        lines += [f"[2026-11-20 10:00:0{rank}{name}] {line}\n" for line in _pools(case, each)]
    first = " TP0" if ranks > 1 else ""
    running, slots = figures["max_running"], figures["state_slots"]
    if slots is not None and running < sglang_figures.MAX_RUNNING:
        lines.append(
            f"[2026-11-20 10:00:10{first}] max_running_requests is capped to {running} by the mamba"
            f" state cache (max_mamba_cache_size={slots}, {figures['slots_per_request']} state "
            "slots per request). To raise it: increase --mamba-full-memory-ratio\n"
        )
    lines.append(
        f"[2026-11-20 10:00:11{first}] max_total_num_tokens={figures['tokens']}, "
        f"chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests={running}, "
        f"context_len={model.max_model_len or 32768}, available_gpu_mem=3.10 GB\n"
    )
    return lines


def _pools(case: sglang_figures.Case, each: Costs) -> list[str]:
    figures = case.figures
    assert figures is not None
    tokens, slots = figures["tokens"], figures["state_slots"]
    lines = []
    if slots is not None:
        states = f"{slots * each.state_bytes / 2**30:.2f}"
        lines.append(
            f"Mamba Cache is allocated. max_mamba_cache_size: {slots}, conv_state size: 0.00GB, "
            f"ssm_state size: {states}GB "
        )
    label = "" if figures["window_tokens"] is None else "Full "
    size = tokens * each.token_bytes / 2**30
    lines.append(_pool(label, tokens, size))
    if (windows := figures["window_tokens"]) is not None:
        windows_size = windows * each.window_bytes / 2**30
        lines.append(_pool("SWA ", windows, windows_size))
        lines.append(
            f"SWAKVPool mem usage: {size + windows_size:.2f} GB, swa size: {windows}, "
            f"full size: {tokens}"
        )
    if sglang_figures.CASES[case.case].get("draft_tokens"):
        lines.append(_pool("", tokens, size / 50))
    return lines


def _pool(label: str, tokens: int, gib: float) -> str:
    return (
        f"{label}KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, "
        f"KV size: {gib:.2f} GB"
    )
