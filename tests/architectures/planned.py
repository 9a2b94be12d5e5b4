"""vLLM's own plans of built-in models with states, on cards that are not there.

    python tests/architectures/planned.py CARD [NAME ...] --out tests/plan/planned_on_cards.json

The classes of vLLM's models build the layers, and vLLM's engine core plans their memory.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEMORY = 24 * 2**30
STEP_TOKENS = 8192

LAYOUTS = {
    "H100-80GB": ((1, 0, 16_384), (2, 1, 8192), (4, 2, 40_000), (8, 3, 16_384)),
    "B200": ((1, 0, 16_384), (2, 2, 16_384)),
    "RTX-PRO-6000": ((1, 1, 16_384),),
    "A100-80GB": ((1, 0, 16_384), (2, 3, 16_384)),
    "L40S": ((1, 0, 16_384),),
}
"""Ranks, draft tokens and the maximum length of the plans for each card.

Models besides `KINDS` are planned once, on an H100.
"""

KINDS = (
    *("Qwen3.5-27B", "Qwen3.5-35B-A3B", "Qwen3-Next-80B-A3B", "Qwen3.8-Flash-Next"),
    *("Olmo-Hybrid-7B", "Nemotron-3-Nano-30B-A3B", "Falcon-H1-7B", "Granite-4.0-H-Small"),
    *("Jamba-1.5-Mini", "Kimi-K3", "Kimi-Linear-48B-A3B", "LFM2-1.2B"),
)
"""A model for each class of vLLM's that keeps states."""

SWEEP: tuple[dict[str, Any], ...] = (
    {"kv_cache_dtype": "fp8"},
    {"kv_cache_dtype": "fp8_e5m2"},
    {"kv_cache_dtype": "int8_per_token_head"},
    {"kv_cache_dtype": "turboquant_k8v4"},
    {"block_size": 32},
    {"block_size": 64},
    {"dtype": "float16"},
    {"mamba_ssm_cache_dtype": "float32"},
    {"mamba_ssm_cache_dtype": "bfloat16"},
    {"mamba_cache_dtype": "float32"},
    {"enable_prefix_caching": False},
    {"async_scheduling": False},
    {"max_num_batched_tokens": 2048},
    {"gdn_prefill_backend": "triton"},
    {"kda_prefill_backend": "triton"},
    {"attention_backend": "TRITON_ATTN"},
    {"attention_backend": "TRITON_MLA"},
    {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8"},
)
"""Options of vLLM that may change a plan; a sweep sets one at a time."""

LEFT_OUT = (
    *("Bamba-9B", "MiniMax-Text-01", "PLaMo-2-1B", "PLaMo-2-8B", "RecurrentGemma-9B"),
    *("Ling-3.0-Flash", "Ring-2.5-1T"),
)
"""Built-in models without a class in vLLM 0.31 and later, and two of a type that transformers reads
in another way."""

WITHOUT: dict[str, dict[str, object]] = {"Qwen3.8-Flash-Next": {"ple_layer_ids": []}}
"""Fields of models that are built without a part: a table over n-grams wants pinned memory."""

ARCHITECTURES = {
    "falcon_h1": "FalconH1ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi_k3": "KimiK3ForConditionalGeneration",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen4_exp_text": "Qwen4ExpForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
}


def cases(card: str) -> list[tuple[str, int, int, int]]:
    """Return the models of a card, with ranks, draft tokens and the maximum length."""
    from hybrid_blocks.model import load_model, table  # noqa: PLC0415 - after arguments are read

    found = [(name, *layout) for name in KINDS for layout in LAYOUTS[card]]
    if card == "H100-80GB":
        found += [
            (name, *LAYOUTS[card][0])
            for name, entry in table.entries().items()
            if entry.like is None and name not in (*KINDS, *LEFT_OUT)
            if load_model(name).is_hybrid
        ]
    return found


def fields_of(name: str) -> dict[str, Any]:
    """Return a ``config.json`` for vLLM: the built-in fields, and what else a class asks for."""
    from hybrid_blocks.model import load_model, table  # noqa: PLC0415

    fields, _ = table.fields(table.find(name)[1])
    model, model_type = load_model(name), str(fields["model_type"])
    architecture = ARCHITECTURES[model_type]
    published = json.loads((HERE / "published.json").read_bytes()).get(architecture, {})
    states = {layer.depth for layer in model.layers if layer.cache.kind == "state"}
    attending = {layer.depth for layer in model.layers if layer.cache.kind != "state"}
    depths = range(model.num_layers)

    def types(state: str, attention: str) -> list[str]:
        return [attention if depth in attending else state for depth in depths]

    asked: dict[str, Any] = {"architectures": [architecture], **WITHOUT.get(name, {})}
    match model_type:
        case "granitemoehybrid":
            asked["layer_types"] = types("mamba", "attention")
        case "lfm2" | "lfm2_moe":
            asked["layer_types"] = types("conv", "full_attention")
            asked["conv_dim"] = asked["block_dim"] = fields["hidden_size"]
        case "zamba2":
            asked["layers_block_type"] = types("mamba", "hybrid")
        case "qwen4_exp_text":
            asked |= {"indexer_kv_heads": 1, "indexer_budget": 2048}
            asked |= {"partial_rotary_factor": 0.25, "eos_token_id": 0}
        case "kimi_k3" | "kimi_linear":
            linear = fields["linear_attn_config"]
            assert isinstance(linear, dict)
            fields["linear_attn_config"] = {**linear, "kda_layers": [n + 1 for n in sorted(states)]}
    if "text_config" in published:
        text = {**published["text_config"], **fields, **asked}
        text["model_type"] = published["text_config"]["model_type"]
        return {**published, "text_config": text, "architectures": [architecture]}
    return {**published, **fields, **asked}


def plan(
    name: str, tp: int, drafts: int, length: int, asked: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return what vLLM plans and logs for a model with options of its engine."""
    import registry_oracle  # noqa: PLC0415 - after `fake_gpu.pose`
    import vllm_planning  # noqa: PLC0415
    from hybrid_blocks.model import load_model  # noqa: PLC0415
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends  # noqa: PLC0415
    from vllm.v1.attention.backends import utils  # noqa: PLC0415
    from vllm.v1.core.kv_cache_utils import (  # noqa: PLC0415
        generate_scheduler_kv_cache_config,
        get_kv_cache_capacity,
    )

    model, fields = load_model(name), fields_of(name)
    options: dict[str, Any] = {"max_model_len": length, "max_num_batched_tokens": STEP_TOKENS}
    options |= {"distributed_executor_backend": "uni" if tp == 1 else "mp"}
    options |= {"enable_prefix_caching": True}
    if drafts:
        method = {"method": "mtp"} if model.draft_layers else {"method": "ngram"}
        options["speculative_config"] = {**method, "num_speculative_tokens": drafts}
    options |= asked or {}
    tp = options.pop("tensor_parallel_size", tp)
    registry_oracle.register(fields)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(fields))
        config, layers, _ = registry_oracle.build(Path(folder), tp, **options)
    supported = utils.get_supported_kv_cache_layouts(get_current_attn_backends(config))
    utils.resolve_kv_cache_layout(config, [[layout.name for layout in supported]], layers.values())
    groups, configs = vllm_planning.plan(config, [layers], [MEMORY])
    tokens, concurrency = get_kv_cache_capacity(config, generate_scheduler_kv_cache_config(configs))
    return {
        "block_tokens": config.cache_config.block_size,
        "num_blocks": configs[0].num_blocks,
        "tokens": tokens,
        "concurrency": concurrency,
        "groups": [len(group.layer_names) for group in groups],
        "in_flight_batches": config.max_in_flight_tokens // STEP_TOKENS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("card", choices=LAYOUTS)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sweep", action="store_true", help="plan by options, one layout a model")
    options = parser.parse_args()
    sys.path += [str(HERE.parent / "plan")]
    os.environ["OMP_NUM_THREADS"] = "1"  # as in `__main__`
    os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
    import fake_gpu  # noqa: PLC0415 - imports vLLM

    fake_gpu.pose(options.card)
    import registry_oracle  # noqa: PLC0415

    causes = registry_oracle.inspect_in_this_process()
    asked: list[tuple[Any, ...]] = [
        (*case, {}) for case in cases(options.card) if case[0] in (options.names or case)
    ]
    models = {case[0] for case in asked}
    if options.sweep:
        layouts = {name: (name, 1, 0, LAYOUTS[options.card][0][2]) for name in models}
        asked = [(*layout, one) for layout in layouts.values() for one in SWEEP]
    rows = json.loads(options.out.read_bytes()) if options.out.exists() else []
    rows = [it for it in rows if it["card"] != options.card or it["model"] not in models]
    for case in asked:
        about = dict(zip(("model", "tp", "drafts", "length", "options"), case, strict=True))
        if not about["options"]:
            del about["options"]
        answer = registry_oracle.in_child(partial(plan, *case), causes)
        rows.append({**about, "card": options.card, **answer})
        print(rows[-1], flush=True)
        rows.sort(key=lambda row: (row["card"], row["model"], row["tp"]))
        lines = ",\n".join(map(json.dumps, rows))
        options.out.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
