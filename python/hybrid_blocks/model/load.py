"""Find a model by file, directory or name, and read its layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from hybrid_blocks.errors import PlanError
from hybrid_blocks.inputs import read_input
from hybrid_blocks.model import decoder, described, formats, mtp, table
from hybrid_blocks.model.architecture import READERS, common, linear
from hybrid_blocks.model.config import Config
from hybrid_blocks.model.layer import GatedDeltaNet, LatentIndex, Mamba2
from hybrid_blocks.model.model import Layer, Model, Verified
from hybrid_blocks.model.weights import bits_of_name, weights_of, with_bits, without_format

_SPARSE: Final = "qwen4_exp"
_ON_HOPPER: Final = (
    "sparse latents are planned as on Hopper; kernels of other cards may choose fp8 by themselves "
    "and keep it in another size"
)
_QUARTER_ROTATED: Final = ("qwen3_next", "qwen3_5", "qwen4_exp")


STATE_FORMAT_READ: Final = frozenset(
    (
        *("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM", "NemotronH_Nano_VL_V2"),
        *("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        *("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        *("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"),
    )
)
"""Architectures for which vLLM takes the format of recurrent states from the file."""

LENGTHS: Final = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("model_max_length", "max_target_positions", "max_sequence_length"),
    *("max_seq_length", "seq_len", "max_context"),
)
"""Fields that vLLM knows for the longest request."""


def load_model(source: str, overrides: Mapping[str, object] | None = None) -> Model:
    """Model of a ``config.json`` file, a directory that holds one, or a name of the table.

    An ending such as ``-FP8`` of a name chooses the format of the weights, with a note.
    ``overrides`` take the place of its fields, also within its sections.

    Raises:
        PlanError: nothing found, not JSON, an unknown architecture, or fields that are missing.
    """
    if not source.strip():
        raise PlanError("a model has a name: give a config.json, a directory or a built-in name")
    path = Path(source)
    if path.is_dir():
        path /= "config.json"
        if not path.is_file():
            raise PlanError(f"{source}: the directory holds no config.json")
    if path.is_file():
        fields, beside = _read_json(path), path.with_name(formats.HF_QUANT_CONFIG)
        if fields.get("quantization_config") is None and beside.is_file():
            fields["quantization_config"] = _read_json(beside)
        return from_config(_merged(fields, overrides), source)
    if path.suffix == ".json":
        raise PlanError(f"{source}: no such file")
    try:
        return built_in(source, overrides)
    except PlanError as error:
        return _with_other_weights(path.name, overrides, error)


def built_in(name: str, overrides: Mapping[str, object] | None = None) -> Model:
    """Model of a name of the table, by no file.

    Raises:
        PlanError: no such name.
    """
    name, entry = table.find(name)
    config, notes = table.fields(entry)
    return from_config(_merged(config, overrides), name, verified=entry.status, notes=notes)


def _with_other_weights(
    name: str, overrides: Mapping[str, object] | None, error: PlanError
) -> Model:
    """Return the built-in model of a quantized checkpoint's name."""
    base = without_format(name)
    if base == name:
        raise error
    try:
        model = built_in(base, overrides)
    except PlanError:
        raise error from None
    note = (
        f"{name} is planned as {model.name}: other weights over the same layers; give "
        "--kv-cache-dtype if its config.json chooses a type for the cache"
    )
    return msgspec.structs.replace(
        model,
        weights=with_bits(model.weights, bits_of_name(name.removeprefix(base))),
        notes=(*model.notes, note),
    )


def load_layers(source: str) -> Model:
    """Model of a hand-written layer file (``--layers``).

    Raises:
        PlanError: no such file, not JSON, or not of the documented form.
    """
    try:
        return described.decode(read_input(Path(source)), source)
    except FileNotFoundError:
        raise PlanError(f"{source}: no such file") from None
    except OSError as error:
        raise PlanError(f"{source}: {error.strerror or error}") from None


def from_config(
    fields: dict[str, object],
    name: str,
    *,
    verified: Verified = "config",
    notes: tuple[str, ...] = (),
) -> Model:
    """Model of ``config.json`` fields.

    Raises:
        PlanError: an unknown architecture, or fields that are missing or of the wrong type.
    """
    config, types = decoder.find(fields, name, with_defaults=verified == "config")
    if (unread := next((known for known in types if known in common.UNREAD), None)) is not None:
        raise PlanError(
            f"{name}: {unread} is not read: {common.UNREAD[unread]}; --layers spec.json plans "
            "the other layers"
        )
    model_type = next((known for known in types if known in READERS), "")
    if not model_type:
        raise _unknown(config, types[0] if types else "")
    reader = READERS[model_type]
    layers = _with_state_formats(config.read(reader), fields.get("architectures"))
    if not layers:
        raise PlanError(f"{name}: no layer keeps a cache")
    index, convolutions = (
        linear.sparse_parts(config) if model_type.startswith(_SPARSE) else (None, ())
    )
    weights = weights_of(config, layers, model_type, fields, built_in=verified != "config")
    return Model(
        name=name,
        model_type=model_type,
        index=index,
        convolutions=convolutions,
        num_layers=config.num_layers,
        layers=layers,
        draft_layers=mtp.draft_layers(fields, config, layers),
        dtype=_dtype(config),
        kv_cache_dtype=formats.checkpoint_format(fields, name),
        rotary_share=_rotary_share(config, model_type),
        max_model_len=_max_model_len(config),
        architecture=_architecture(fields),
        verified=verified,
        notes=(*notes, _ON_HOPPER) if _is_sparse(layers) else notes,
        weights=None if isinstance(weights, str) else weights,
        weights_unknown=weights if isinstance(weights, str) else "",
    )


def _architecture(fields: Mapping[str, object]) -> str | None:
    named = fields.get("architectures")
    first = named[0] if isinstance(named, list) and named else None
    return first if isinstance(first, str) else None


def _is_sparse(layers: tuple[Layer, ...]) -> bool:
    return any(isinstance(layer.cache, LatentIndex) for layer in layers)


def _merged(fields: dict[str, object], overrides: Mapping[str, object] | None) -> dict[str, object]:
    merged = dict(fields)
    for key, value in (overrides or {}).items():
        inner = merged.get(key)
        is_section = isinstance(inner, dict) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if is_section else value  # type: ignore[arg-type]
    return merged


def _read_json(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(read_input(path), type=dict[str, object])
    except msgspec.DecodeError as error:
        raise PlanError(f"{path}: not a JSON object: {error}") from None
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None


def _with_state_formats(layers: tuple[Layer, ...], architectures: object) -> tuple[Layer, ...]:
    """Drop the file's format of states where vLLM does not read it for this architecture."""
    if not isinstance(architectures, list) or any(it in architectures for it in STATE_FORMAT_READ):
        return layers
    return tuple(
        msgspec.structs.replace(layer, cache=msgspec.structs.replace(layer.cache, ssm_dtype=None))
        if isinstance(layer.cache, GatedDeltaNet | Mamba2)
        else layer
        for layer in layers
    )


def _max_model_len(config: Config) -> int | None:
    """Smallest length that the decoder names, as vLLM takes it; else of what lies around it."""
    own = [field for field in LENGTHS if config.names(field)]
    lengths = [length for field in own or LENGTHS if (length := config.optional(field))]
    return min(lengths, default=None)


def _dtype(config: Config) -> str:
    name = formats.canonical_dtype(config.text("dtype") or config.text("torch_dtype") or "bfloat16")
    return "bfloat16" if name == "float32" else name


def _rotary_share(config: Config, model_type: str) -> float:
    """Part of a key that is rotated; a quarter in the Qwen hybrids where the file does not say."""
    share = config.get("partial_rotary_factor")
    parameters = config.get("rope_parameters")
    if share is None and isinstance(parameters, Mapping):
        share = parameters.get("partial_rotary_factor")
    if isinstance(share, int | float) and 0 < share <= 1:
        return float(share)
    return 0.25 if model_type.startswith(_QUARTER_ROTATED) else 1.0


def _unknown(config: Config, model_type: str) -> PlanError:
    basics = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    missing = [
        field
        for field in (("model_type",) if not model_type else ()) + basics
        if field not in config
    ]
    lacks = f"it lacks {', '.join(missing)} and " if missing else "it lacks "
    return PlanError(
        f"{config.name}: unknown architecture {model_type or '(no model_type)'!r}: {lacks}a layer "
        f"pattern that is known; describe the layers with --layers spec.json, for example "
        f"{described.EXAMPLE}"
    )
