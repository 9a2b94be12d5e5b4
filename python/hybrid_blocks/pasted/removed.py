"""Options of older releases that vLLM no longer has, and that change nothing in a plan."""

from collections.abc import Mapping
from types import MappingProxyType

REMOVED: Mapping[str, bool] = MappingProxyType(
    dict.fromkeys(
        (
            *("--use-v2-block-manager", "--enable-reasoning"),
            *("--disable-async-output-proc", "--engine-use-ray"),
            *("--worker-use-ray", "--disable-frontend-multiprocessing"),
            *("--disable-mm-preprocessor-cache", "--multi-step-stream-outputs"),
            *("--guided-decoding-disable-fallback", "--calculate-kv-scales"),
            *("--guided-decoding-disable-any-whitespace", "--eplb-log-balancedness"),
            "--enable-multimodal-encoder-data-parallel",
        ),
        False,
    )
    | dict.fromkeys(
        (
            *(
                "--swap-space",
                "--num-scheduler-steps",
                "--preemption-mode",
                "--max-seq-len-to-capture",
            ),
            *("--guided-decoding-backend", "--device"),
            *("--scheduler-delay-factor", "--num-lookahead-slots", "--qlora-adapter-name-or-path"),
            *("--max-num-partial-prefills", "--max-long-partial-prefills"),
            *("--long-lora-scaling-factors", "--lora-extra-vocab-size", "--cuda-graph-sizes"),
            *("--prompt-adapter-max-tokens", "--task", "--override-neuron-config"),
            *("--num-redundant-experts", "--eplb-window-size", "--eplb-step-interval"),
            *("--logits-processor-pattern", "--override-pooler-config"),
        ),
        True,
    )
)
"""Flags, and whether a value follows, or several numbers."""

REPLACED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(("--rope-scaling", "--rope-theta"), "--hf-overrides")
    | {
        "--tp": "--tensor-parallel-size",
        "--tp-size": "--tensor-parallel-size",
        "--pp": "--pipeline-parallel-size",
        "--dp": "--data-parallel-size",
        "--context-length": "--max-model-len",
        "--ctx-size": "--max-model-len",
        "--mem-fraction-static": "--gpu-memory-utilization",
        "--max-running-requests": "--max-num-seqs",
        "--chunked-prefill-size": "--max-num-batched-tokens",
        "--disable-radix-cache": "--no-enable-prefix-caching",
    }
    | dict.fromkeys(
        (
            *("--speculative-model", "--num-speculative-tokens", "--ngram-prompt-lookup-max"),
            *("--ngram-prompt-lookup-min", "--speculative-draft-tensor-parallel-size"),
            *("--speculative-max-model-len", "--speculative-disable-by-batch-size"),
        ),
        "--speculative-config",
    )
)
"""Flags of older releases and of other servers, and the option that takes their place."""
