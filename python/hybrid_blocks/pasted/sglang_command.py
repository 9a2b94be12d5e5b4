"""A pasted command of SGLang's server as a model and its deployment."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from hybrid_blocks.model import Model, PlanError
from hybrid_blocks.pasted import values
from hybrid_blocks.pasted.command import SEQUENCES, Command, with_dtype, with_weights
from hybrid_blocks.pasted.model import find_model
from hybrid_blocks.pasted.options import Option, near, recorded
from hybrid_blocks.plan.deployment import Deployment, SglangOptions
from hybrid_blocks.plan.sglang.strategy import SERVED, strategies

REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = MappingProxyType(
    {
        "max_total_tokens": ((None,), "it cuts the pool of tokens; leave it out"),
        "max_mamba_cache_size": (
            (None,),
            "it sets the state slots; leave it out, or give --mamba-full-memory-ratio",
        ),
        "swa_full_tokens_ratio": ((None, 0.8), "only 0.8, SGLang's default, is planned"),
        "disable_hybrid_swa_memory": ((False,), "windows that keep all tokens are not planned"),
        "prefill_only_disable_kv_cache": ((False,), "an engine without a cache is not planned"),
        "enable_int8_mamba_checkpoint": ((False,), "states in 8 bits are not planned"),
        "enable_linear_replayssm": ((False,), "the recent inputs that it keeps are not planned"),
        "enable_linear_replayssm_spec": ((False,), "the recent inputs it keeps are not planned"),
        "enable_hisparse": ((False,), "its pools on the host are not planned"),
        "enable_kv_cache_sharding": ((False,), "a cache that ranks share is not planned"),
        "enable_dp_attention": (
            (False,),
            "attention of several data-parallel ranks is not planned",
        ),
        "attn_dp_size": ((1,), "attention of several data-parallel ranks is not planned"),
        "attn_cp_size": ((1,), "context parallelism is not planned"),
        "dcp_size": ((1,), "context parallelism is not planned"),
        "pp_size": ((1,), "pipeline stages are not planned for SGLang"),
        "dllm_algorithm": ((None,), "the blocks of a diffusion model are not planned"),
        "is_embedding": ((False,), "a model that generates no text is not planned"),
        "disaggregation_mode": (("null",), "prefill and decode apart are not planned"),
        "config": ((None,), "options in a file are not read; write them out"),
    }
)
"""Values that change nothing, and why another value is refused."""

MAPPED: Final = frozenset(
    {
        *("model_path", "context_length", "tp_size", "dp_size", "dtype", "quantization"),
        *("kv_cache_dtype", "json_model_override_args", "mem_fraction_static"),
        *("max_running_requests", "chunked_prefill_size", "page_size", "disable_radix_cache"),
        *("mamba_ssm_dtype", "mamba_full_memory_ratio", "mamba_radix_cache_strategy"),
        *("enable_unified_memory", "speculative_algorithm", "speculative_draft_model_path"),
        *("speculative_num_steps", "speculative_num_draft_tokens", "speculative_eagle_topk"),
    }
)
"""Options that a deployment is made of; all others change nothing in a plan."""

_OLD: Final = MappingProxyType(
    {
        "--mamba-scheduler-strategy": "--mamba-radix-cache-strategy",
        "--tp": "--tp-size",
        "--dp": "--dp-size",
        "--pp": "--pp-size",
        "--ep": "--ep-size",
        "--cuda-graph-max-bs": "--cuda-graph-max-bs-decode",
        "--cuda-graph-bs": "--cuda-graph-bs-decode",
    }
)
"""Short and earlier names."""

_HEADS: Final = ("NEXTN", "EAGLE")
_SPECULATING: Final = 48
"""Requests that SGLang runs at once while it drafts, where none are given."""
_DTYPES: Final = {"bf16": "bfloat16", "auto": "auto"}


def read_sglang(arguments: Sequence[str], source: str | None) -> Command:
    """Read arguments of SGLang's server; ``source`` is a model's config beside it.

    Raises:
        PlanError: an option that SGLang does not know, or that cannot be planned; names it.

    """
    options = _parse(arguments)
    name = source or options.get("model_path")
    if name is None:
        raise PlanError("the command names no model: --model-path MODEL")
    model = find_model(name, _overrides(options))
    model = with_dtype(model, options.get("dtype", "auto"))
    model = with_weights(model, options.get("quantization"))
    algorithm, drafts = _drafts(options, model)
    if algorithm == "NGRAM":
        model = msgspec.structs.replace(model, draft_layers=())
    strategy = options.get("mamba_radix_cache_strategy", "auto")
    known = ("auto", *strategies(model.model_type))
    if model.model_type in SERVED and strategy not in known:
        raise PlanError(
            f"--mamba-radix-cache-strategy {strategy}: SGLang has {', '.join(known)} for "
            f"{model.name}"
        )
    chunk = options.get("chunked_prefill_size") or 0
    most = options.get("max_running_requests") or (_SPECULATING if drafts else None)
    kv_dtype = options.get("kv_cache_dtype") or "auto"
    deployment = Deployment(
        tp=options.get("tp_size", 1),
        kv_cache_dtype=_DTYPES.get(kv_dtype, kv_dtype),
        mamba_ssm_dtype=options.get("mamba_ssm_dtype") or "auto",
        max_model_len=options.get("context_length"),
        max_num_batched_tokens=chunk if chunk > 0 else 8192,
        max_num_seqs=options.get("max_running_requests") or SEQUENCES,
        num_speculative_tokens=drafts,
        mamba_cache_mode="none" if options.get("disable_radix_cache") else "align",
        sglang=SglangOptions(
            strategy=None if strategy == "auto" else strategy,
            ratio=options.get("mamba_full_memory_ratio"),
            max_running=most,
        ),
    )
    notes = tuple(_notes(options, most))
    return Command(
        model=msgspec.structs.replace(model, notes=(*model.notes, *notes)),
        deployment=deployment,
        memory_bytes=None,
        fits=False,
        level=None,
        options={"gpu_memory_utilization": options.get("mem_fraction_static")},
        engine="SGLang",
    )


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Options by name. Each word that is no option is a value: SGLang takes no other words."""
    found: dict[str, Any] = {}
    flags = [index for index, word in enumerate(arguments) if word.startswith("--")]
    if stray := arguments[: flags[0] if flags else len(arguments)]:
        raise PlanError(f"{stray[0]}: SGLang takes options alone; write --model-path {stray[0]}")
    for index, following in zip(flags, [*flags[1:], len(arguments)], strict=True):
        name, equals, attached = arguments[index].partition("=")
        option, flag = _find(name.replace("_", "-"))
        given = [*([attached] if equals else []), *arguments[index + 1 : following]]
        if option.takes == "one" and len(given) > 1:
            raise PlanError(f"{flag} takes one value: {' '.join(given)}")
        value = values.read(option, flag, given, engine="SGLang")
        harmless, why = REFUSED.get(option.name, ((value,), ""))
        if value not in harmless:
            raise PlanError(f"{flag}{'' if value is True else f' {value}'}: {why}")
        found[option.name] = value
    return found


def _find(flag: str) -> tuple[Option, str]:
    options = recorded("SGLang")
    by_flag = options.by_flag()
    flag = _OLD.get(flag, flag)
    if flag in by_flag:
        return by_flag[flag], flag
    # Any beginning of a name does, if only one option has it.
    begun = [known for known in by_flag if known.startswith(flag)]
    if len({by_flag[known].name for known in begun}) == 1:
        return by_flag[begun[0]], begun[0]
    if begun:
        raise PlanError(f"{flag} may be {', '.join(sorted(begun)[:4])}; write it out")
    raise PlanError(f"{flag}: SGLang {options.release} has no such option{near(flag, options)}")


def _overrides(options: Mapping[str, Any]) -> dict[str, Any] | None:
    text = options.get("json_model_override_args") or "{}"
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanError(f"--json-model-override-args {text}: no JSON: {error}") from None
    if not isinstance(overrides, dict):
        raise PlanError(f"--json-model-override-args {text}: give a JSON object of fields")
    return overrides or None


def _drafts(options: Mapping[str, Any], model: Model) -> tuple[str | None, int]:
    """Algorithm of the drafts, and the draft tokens of a step.

    Raises:
        PlanError: drafts that cannot be planned.

    """
    given = options.get("speculative_algorithm")
    if given is None:
        return None, 0
    algorithm, drafter = given.upper(), options.get("speculative_draft_model_path")
    is_own = algorithm in _HEADS and drafter in {None, options.get("model_path")}
    if not is_own and algorithm != "NGRAM":
        raise PlanError(
            f"--speculative-algorithm {given}: the layers of its drafter cannot be planned; NEXTN "
            "with the model's own head and NGRAM can"
        )
    if is_own and not model.draft_layers:
        raise PlanError(
            f"--speculative-algorithm {given}: {model.name} has no draft head of its own"
        )
    verified, steps = (options.get(f"speculative_num_{name}") for name in ("draft_tokens", "steps"))
    is_chain = options.get("speculative_eagle_topk") in {None, 1}
    drafts = verified - 1 if verified else (steps if is_chain else None)
    if not drafts:
        raise PlanError(
            f"--speculative-algorithm {given} lacks --speculative-num-draft-tokens: SGLang chooses "
            "it by the model; give the number from its log"
        )
    return algorithm, drafts


def _notes(options: Mapping[str, Any], most: int | None) -> list[str]:
    notes = [
        "the command is SGLang's, and the column SGLang is its own; vLLM and natural are what they "
        "hold of the same bytes"
    ]
    if options.get("max_running_requests") is None:
        assumed = f"SGLang's own {most}" if most else f"{SEQUENCES}, vLLM's,"
        notes.append(f"--max-running-requests {assumed} is assumed for the column SGLang")
    if options.get("enable_unified_memory"):
        notes.append(
            "--enable-unified-memory: the row 'in unified memory' of --all holds; the other rows "
            "are of pools that are split"
        )
    if (page := options.get("page_size") or 1) > 1:
        notes.append(
            f"--page-size {page}: SGLang gives each request whole pages of {page} tokens; its "
            "figures here count tokens"
        )
    if (replicas := options.get("dp_size", 1)) > 1:
        notes.append(f"figures are of one of {replicas} data-parallel engines")
    return notes
