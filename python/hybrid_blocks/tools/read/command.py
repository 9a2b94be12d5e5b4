"""A pasted command as a model and its deployment."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.geometry.kernel_blocks import DENSE_BLOCK_TOKENS, LATENT_BLOCK_TOKENS
from hybrid_blocks.model import Model, PlanError, load_model
from hybrid_blocks.model.layer import (
    RUNNING,
    ChunkedAttention,
    LatentAttention,
    SlidingWindow,
    State,
    StateFormat,
)
from hybrid_blocks.model.weights import bits_of_name, with_bits
from hybrid_blocks.tools.doctor.features import Speculative
from hybrid_blocks.tools.plan.memory import Cards
from hybrid_blocks.tools.plan.natural_refusals import natural_refusals
from hybrid_blocks.tools.read import effects, speculative, vllm_variables
from hybrid_blocks.tools.read.arguments import Parsed, read_arguments
from hybrid_blocks.tools.read.level import Refusal, figures_of, level_of, refusal_of
from hybrid_blocks.tools.read.options import recorded, shown
from hybrid_blocks.tools.read.words import Words, find_server
from hybrid_blocks.variables import CHECKPOINTS, LEVEL

_DTYPES: Final = {"half": "float16", "float": "float32"}
_ASYNC_ON_FIRST: Final = ("mtp", "ngram_gpu")
"""Drafts beside which vLLM's first model runner schedules asynchronously."""
_SPARSE_BACKENDS: Final = ("FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "FLASH_ATTN_MLA_SPARSE")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a server, as far as a plan depends on it.

    ``memory_bytes`` is what the command itself gives the cache, if it does. With ``fits`` the
    maximum length is the longest that fits. ``level`` is that of ``HYBRID_BLOCKS``. ``shown`` is
    the command without the options and variables that change nothing in the plan.
    """

    model: Model
    deployment: Deployment
    memory_bytes: int | None
    fits: bool
    level: str | None
    options: dict[str, Any]
    shown: str = ""


def read_command(
    words: Sequence[str], source: str | None = None, cards: Cards | None = None
) -> Command:
    """Read a pasted command; ``source`` is a model's config beside it, which then counts.

    ``cards`` decide what vLLM takes for options that are left out.
    """
    found = find_server(words)
    return read_arguments(found.arguments, lambda parsed: of_server(found, parsed, source, cards))


def of_server(
    found: Words, parsed: Parsed, source: str | None = None, cards: Cards | None = None
) -> Command:
    """Make a command of the words that start a server, and of its options."""
    level = level_of(found.environment)
    command = of_options(parsed.values, parsed.model, found.environment, source, cards)
    reasons = natural_refusals(command.model, command.deployment)
    refusal = Refusal(reasons[0]) if reasons else refusal_of(parsed.values, found.environment)
    left_out = vllm_variables.leaves_plugin_out(found.environment)
    if left_out is None:
        notes = [figures_of(level, refusal)]
    else:
        level, notes = "off", [f"{left_out}; this command gets the figures of vLLM"]
    if found.env_file:
        notes.append("variables in --env-file are not read; write them as -e NAME=VALUE")
    model = msgspec.structs.replace(command.model, notes=(*command.model.notes, *notes))
    return msgspec.structs.replace(
        command, model=model, level=level, shown=_shown(parsed, found.environment)
    )


def _shown(parsed: Parsed, environment: Mapping[str, str]) -> str:
    """Return the command that the plan understood; of JSON, which may hold keys, only the name."""
    named = (LEVEL.name, *vllm_variables.SHOWN, *effects.VARIABLES)
    words = [f"{name}={environment[name]}" for name in named if name in environment]
    words += ["vllm", "serve", *([parsed.model] if parsed.model else [])]
    options = recorded().named()
    for name, value in parsed.values.items():
        option = options[name]
        if name not in effects.MAPPED:
            continue
        if option.kind == "switch":
            words += [option.flag] if value else option.off[:1]
        else:
            words += [option.flag, "…" if option.kind == "object" else str(value)]
    return shlex.join(words)


def find_model(name: str, overrides: Mapping[str, Any] | None = None) -> Model:
    """Return the model of a name, a file or a folder."""
    try:
        return load_model(name, overrides)
    except OSError as error:
        raise PlanError(f"{shown(name)}: {error.strerror or 'it cannot be read'}") from None
    except PlanError as error:
        model, at, revision = name.partition("@")
        if at:
            raise PlanError(
                f"{name}: vLLM takes no revision in the name; write {model} --revision {revision}"
            ) from None
        if "neither a file" not in str(error):
            raise
        hint = "its config.json or a name can stand before -- or --log"
        raise PlanError(f"{error} ({hint})") from None


def of_options(
    options: dict[str, Any],
    name: str | None,
    environment: Mapping[str, str],
    source: str | None = None,
    cards: Cards | None = None,
) -> Command:
    """Make a deployment of vLLM's options by their names; ``name`` is the model that it serves.

    ``cards`` are as in `read_command`.
    """
    _check_planned(options)
    source = source or options.get("hf_config_path") or name
    if source is None:
        raise PlanError("the command names no model: vllm serve MODEL …")
    overrides = _overrides(options)
    model = find_model(source, overrides)
    model = with_dtype(model, options.get("dtype", "auto"))
    model = with_weights(model, options.get("quantization"))
    drafts = speculative.read(options, model, name)
    if drafts is not None and drafts.method != "mtp":
        model = msgspec.structs.replace(model, draft_layers=())
    _check_model(model, options)
    is_strict = bool(options.get("fail_on_environ_validation"))
    vllm_variables.check(model, environment, is_strict=is_strict)
    deployment = _deployment(options, model, drafts, environment, cards)
    notes = [
        *_notes(options, model, deployment, environment, cards),
        *vllm_variables.notes(environment),
    ]
    return Command(
        model=msgspec.structs.replace(model, notes=(*model.notes, *notes)),
        deployment=deployment,
        memory_bytes=options.get("kv_cache_memory_bytes"),
        fits=options.get("max_model_len") == -1,
        level=None,
        options=options,
    )


def with_weights(model: Model, quantization: str | None) -> Model:
    """Store weights as ``--quantization`` says, where the checkpoint does not say it already."""
    if quantization is None or model.weights is None or model.weights.bits is not None:
        return model
    weights = with_bits(model.weights, bits_of_name(quantization))
    return msgspec.structs.replace(model, weights=weights)


def _check_planned(options: Mapping[str, Any]) -> None:
    named = recorded().named()
    for name, value in options.items():
        flag = named[name].flag
        if name in effects.REFUSED:
            harmless, why = effects.REFUSED[name]
            if value is not None and value not in harmless:
                raise PlanError(f"{flag}{_text(value)}: {why}")
        elif name not in effects.MAPPED and name not in effects.SILENT:
            raise PlanError(f"{flag}: it is not known whether it changes a plan; leave it out")
    utilization = options.get("gpu_memory_utilization", 1.0)
    if not 0 < utilization <= 1:
        raise PlanError(
            f"--gpu-memory-utilization {utilization}: vLLM takes a share above 0 and up to 1"
        )
    watermark = options.get("watermark", 0.0)
    if not 0 <= watermark < 1:
        raise PlanError(f"--watermark {watermark}: vLLM takes a share from 0 and below 1")


def _text(value: object) -> str:
    return f" {shown(value)}" if isinstance(value, int | float | str) and value is not True else ""


def _overrides(options: Mapping[str, Any]) -> dict[str, Any]:
    overrides = options.get("hf_overrides") or {}
    if not isinstance(overrides, dict):
        raise PlanError("--hf-overrides: give a JSON object of fields")
    is_longer = any("rope" in key for key in _keys(overrides))
    if is_longer and options.get("max_model_len") in {None, -1}:
        raise PlanError(
            "--hf-overrides sets the rotation, which decides the longest request: give "
            "--max-model-len"
        )
    return overrides


def _keys(fields: Mapping[str, Any]) -> set[str]:
    nested = [_keys(value) for value in fields.values() if isinstance(value, dict)]
    return set(fields).union(*nested)


def with_dtype(model: Model, name: str) -> Model:
    """Compute in the type of ``--dtype``."""
    return (
        model if name == "auto" else msgspec.structs.replace(model, dtype=_DTYPES.get(name, name))
    )


def _check_model(model: Model, options: Mapping[str, Any]) -> None:
    """Refuse options that change the caches of this model in ways that cannot be planned."""
    kinds = {layer.cache.kind for layer in model.layers}
    if options.get("disable_hybrid_kv_cache_manager") and len(kinds) > 1:
        raise PlanError(
            f"--disable-hybrid-kv-cache-manager: {model.name} without its windows or states cannot "
            "be planned"
        )
    if options.get("disable_sliding_window") and kinds & {
        SlidingWindow.kind,
        ChunkedAttention.kind,
    }:
        raise PlanError(
            f"--disable-sliding-window: {model.name} cut to its window cannot be planned"
        )
    if State.kind in kinds:
        conv = options.get("mamba_cache_dtype", "auto")
        if conv not in {"auto", model.dtype}:
            raise PlanError(
                f"--mamba-cache-dtype {conv}: convolution states that are not {model.dtype}, as the"
                " model is, cannot be planned"
            )
        if "mamba_block_size" in options and options.get("enable_prefix_caching") is False:
            raise PlanError("--mamba-block-size: vLLM refuses it without prefix caching")
    attention = options.get("attention_config") or {}
    if isinstance(attention, dict) and attention.get("hisparse_config"):
        raise PlanError("--attention-config hisparse_config: host pools cannot be planned")
    backend = _backend(options)
    size = options.get("block_size")
    tokens = {**LATENT_BLOCK_TOKENS, **DENSE_BLOCK_TOKENS}.get(backend or "")
    if size is not None and tokens is not None and size % tokens:
        raise PlanError(
            f"--block-size {size}: {backend} takes multiples of {tokens} tokens; give one, or none"
        )
    is_latent = LatentAttention.kind in kinds and size is None
    if is_latent and backend and backend not in {*LATENT_BLOCK_TOKENS, *_SPARSE_BACKENDS}:
        raise PlanError(
            f"--attention-backend {shown(backend)}: its blocks for latent attention are not known; "
            "give --block-size"
        )


def _backend(options: Mapping[str, Any]) -> str | None:
    """Return the name of the attention backend in the options; None leaves the choice to vLLM."""
    config = options.get("attention_config")
    of_config = config.get("backend") if isinstance(config, dict) else None
    name = str(options.get("attention_backend") or of_config or "auto").upper()
    return None if name == "AUTO" else name


def _deployment(
    options: Mapping[str, Any],
    model: Model,
    drafts: Speculative | None,
    environment: Mapping[str, str],
    cards: Cards | None,
) -> Deployment:
    refusal = refusal_of(options, environment)
    length = options.get("max_model_len")
    caching = options.get("enable_prefix_caching")
    kv_dtype = options.get("kv_cache_dtype", "auto")
    deployment = Deployment(
        tp=options.get("tensor_parallel_size", 1),
        pp=options.get("pipeline_parallel_size", 1),
        kv_cache_dtype=kv_dtype,
        mamba_ssm_dtype=options.get("mamba_ssm_cache_dtype", "auto"),
        max_model_len=None if length == -1 else length,
        max_num_seqs=_sequences(options, cards),
        num_speculative_tokens=0 if drafts is None else drafts.num_tokens,
        mamba_cache_mode="none" if caching is False else "align",
        block_size=options.get("block_size"),
        attention_backend=vllm_variables.invariant_backend(model, _backend(options), environment),
        gdn_prefill_backend=options.get("gdn_prefill_backend") or "auto",
        kda_prefill_backend=options.get("kda_prefill_backend") or "auto",
        in_flight_batches=_batches(options, drafts, environment),
        level_refusal=None if refusal is None or refusal.remedy else refusal.reason,
        pp_partition=vllm_variables.partition_of(environment),
        checkpoint_format=_checkpoint_format(options, environment, refusal),
    )
    return msgspec.structs.replace(
        deployment, max_num_batched_tokens=_batched_tokens(options, deployment.length(model), cards)
    )


def _checkpoint_format(
    options: Mapping[str, Any], environment: Mapping[str, str], refusal: Refusal | None
) -> StateFormat:
    """Return the format of the engine's checkpoints; it may serve none but `RUNNING`."""
    text = environment.get(CHECKPOINTS.name)
    if not text:
        return RUNNING
    from hybrid_blocks import CheckpointPolicy  # noqa: PLC0415 - imports numpy, which `plan` spares

    try:
        asked: StateFormat = CheckpointPolicy(text).options["format"]
    except InvalidArgumentError as error:
        raise PlanError(f"{CHECKPOINTS.name}={shown(text)}: {error}") from None
    is_whole = options.get("pipeline_parallel_size", 1) == 1
    has_cache = options.get("enable_prefix_caching") is not False
    return asked if is_whole and has_cache and refusal is None else RUNNING


def defaults_of(cards: Cards | None) -> tuple[int, int]:
    """Return the batched tokens and sequences of vLLM's server on these cards, else on an H100.

    Follows ``EngineArgs.get_batch_defaults``.
    """
    if cards is None:
        return 8192, 1024
    if cards.total_bytes >= 160 * 2**30:
        return 16_384, 1024
    is_a100 = (cards.kind or "").startswith("A100")
    return (8192, 1024) if cards.total_bytes >= 70 * 2**30 and not is_a100 else (2048, 256)


OF_BATCH: Final = ("max_num_seqs", "max_num_batched_tokens")
"""Options of a step's size, for which vLLM has defaults by the card."""


def with_defaults(
    model: Model, deployment: Deployment, options: Mapping[str, Any], cards: Cards
) -> tuple[Model, Deployment]:
    """Take the requests and tokens of a step that vLLM takes on these cards; a note says so.

    ``options`` are those of the two that are given.
    """
    deployment = msgspec.structs.replace(
        deployment,
        max_num_seqs=_sequences(options, cards),
        max_num_batched_tokens=_batched_tokens(options, deployment.length(model), cards),
    )
    notes = (*model.notes, *_assumed(options, deployment, cards))
    return msgspec.structs.replace(model, notes=notes), deployment


def _sequences(options: Mapping[str, Any], cards: Cards | None) -> int:
    given: int | None = options.get("max_num_seqs")
    if given is not None:
        return given
    tokens: int | None = options.get("max_num_batched_tokens")
    most = defaults_of(cards)[1] * _doubled(options)
    return most if tokens is None else min(most, tokens)


def _batched_tokens(options: Mapping[str, Any], length: int, cards: Cards | None) -> int:
    given: int | None = options.get("max_num_batched_tokens")
    if given is not None:
        return given
    tokens = defaults_of(cards)[0] * _doubled(options)
    if options.get("enable_chunked_prefill") is False:
        tokens = max(tokens, length)
    return min(tokens, _sequences(options, cards) * length)


def _doubled(options: Mapping[str, Any]) -> int:
    return 2 if options.get("performance_mode") == "throughput" else 1


def _batches(
    options: Mapping[str, Any], drafts: Speculative | None, environment: Mapping[str, str]
) -> int:
    """Batches under way at once: one more than pipeline stages if scheduled asynchronously."""
    stages: int = options.get("pipeline_parallel_size", 1)
    is_second = vllm_variables.is_on(environment, vllm_variables.RUNNER)
    method = None if drafts is None else drafts.method
    needs_first = drafts is not None and drafts.needs_first_runner
    if is_second and needs_first:
        raise PlanError(
            f"{vllm_variables.RUNNER}=1: vLLM's second model runner refuses {method} drafts; leave "
            "it out"
        )
    is_first = is_second is False or needs_first
    hinders = is_first and (stages > 1 or method not in (None, *_ASYNC_ON_FIRST))
    is_async = options.get("async_scheduling")
    if is_async and hinders:
        raise PlanError(
            "--async-scheduling: vLLM's first model runner refuses it beside pipeline stages and "
            f"these drafts; leave out {vllm_variables.RUNNER}=0, or --async-scheduling"
        )
    if is_async is None:
        backend = options.get("distributed_executor_backend")
        is_async = backend in {None, "mp", "uni"} and not hinders
    return stages + (1 if is_async else 0)


def _assumed(
    options: Mapping[str, Any], deployment: Deployment, cards: Cards | None
) -> Iterator[str]:
    assumed = {
        "--max-num-seqs": (options.get("max_num_seqs"), deployment.max_num_seqs),
        "--max-num-batched-tokens": (
            options.get("max_num_batched_tokens"),
            deployment.max_num_batched_tokens,
        ),
    }
    if missing := {flag: taken for flag, (given, taken) in assumed.items() if given is None}:
        taken = ", ".join(f"{flag} {value}" for flag, value in missing.items())
        others = (
            "a GPU of 70 to 160 GB (256 and 2,048 on smaller ones, 1,024 and 16,384 on larger ones)"
        )
        yield f"{taken} is assumed, as vLLM does on {others if cards is None else cards.name}"


def _notes(
    options: Mapping[str, Any],
    model: Model,
    deployment: Deployment,
    environment: Mapping[str, str],
    cards: Cards | None,
) -> list[str]:
    notes = [*_assumed(options, deployment, cards)]
    longest = model.max_model_len
    may_be_longer = environment.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") != "0"
    is_rotated = any("rope" in key for key in _keys(options.get("hf_overrides") or {}))
    if longest and deployment.length(model) > longest and not (may_be_longer or is_rotated):
        notes.append(
            f"vLLM refuses --max-model-len {deployment.length(model):,}: {model.name} has "
            f"{longest:,} (VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)"
        )
    if (replicas := options.get("data_parallel_size", 1)) > 1:
        notes.append(f"figures are of one of {replicas} data-parallel engines")
    return notes
