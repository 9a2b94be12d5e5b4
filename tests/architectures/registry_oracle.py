"""vLLM's own word on a model's caches: its code builds the model on no device, and says."""

import json
import os
import select
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import absent_files
import class_defaults
import fake_gpu
import torch
from hybrid_blocks.model.decoder import SECTIONS

FIELDS = (
    *("block_size", "num_kv_heads", "head_size", "head_size_v", "sliding_window"),
    *("attention_chunk_size", "rswa_window", "sink_len", "extra_retained_tokens"),
    *("state_content_bytes", "tokens_per_state", "num_head_slots", "page_size_padded"),
    *("alignment", "model_version", "tp_replicated"),
)


BACKENDS = {
    "FlintForCausalLM": "FLASHINFER",
    "Rnj1ForCausalLM": "TRITON_ATTN",
    "Step1ForCausalLM": "TRITON_ATTN",
}
"""Attention backend that a server needs for models that the default backend cannot compute."""


OTHER_CLASS = ("molmo2",)
"""Types that vLLM's code reads by the fields of the publisher's class, not of transformers'."""


SECONDS = 300
"""A model that takes longer is given up."""


class Fields(dict[str, Any]):
    """An object of a configuration whose fields are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def inspect_in_this_process() -> list[str]:
    """Let vLLM load model classes here, not in a process for each; return the list of failures."""
    from vllm.model_executor.models import registry  # noqa: PLC0415

    absent_files.without_towers()
    causes: list[str] = []

    def inspect(model: Any) -> Any:
        try:
            return registry._ModelInfo.from_model_cls(model.load_model_cls())
        except Exception as error:
            causes.append(f"{type(error).__name__}: {error}"[:300])
            raise

    registry._LazyRegisteredModel.inspect_model_cls = inspect  # type: ignore[method-assign]
    return causes


def build(folder: Path, tp: int = 1, **options: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Build the model whose ``config.json`` lies in ``folder``, and its drafter.

    Return the engine's configuration, the specs of all layers, and the fields of the model.
    """
    from vllm.config import set_current_vllm_config  # noqa: PLC0415 - after `fake_gpu.pose`
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.model_executor.model_loader.utils import initialize_model  # noqa: PLC0415
    from vllm.utils.torch_utils import set_default_torch_dtype  # noqa: PLC0415
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec  # noqa: PLC0415

    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        language_model_only=True,
        config_format="hf",
        tensor_parallel_size=tp,
        **options,
    )
    with fake_gpu.no_device(tp):
        config: Any = arguments.create_engine_config()
        fields = written(config.model_config.hf_config.to_dict())  # a model may change them
        drafts = config.speculative_config
        with set_default_torch_dtype(config.model_config.dtype), set_current_vllm_config(config):
            initialize_model(config)
            if drafts is not None and drafts.method == "mtp":
                initialize_model(config, model_config=drafts.draft_model_config)
            fake_gpu.Card.update_block_size_for_backend(config)
            layers = get_kv_cache_spec(config)
    if not layers:
        raise RuntimeError("no layer keeps a cache")
    return config, layers, fields


def specs(folder: Path, backend: str | None, *, head: bool) -> dict[str, Any]:
    """Return the specs of all layers of the model whose ``config.json`` lies in ``folder``.

    With ``head`` they are those of its head for multi-token prediction alone.
    """
    if head:
        _, own, _ = build(folder, attention_backend=backend)
        drafts = {"method": "mtp", "num_speculative_tokens": 1}
        config, both, _ = build(folder, attention_backend=backend, speculative_config=drafts)
        of_head = {name: spec for name, spec in both.items() if name not in own}
        drafter = config.speculative_config.draft_model_config
        return {"class": drafter.architectures[0], **_described(of_head)}
    config, layers, fields = build(folder, attention_backend=backend)
    return {
        "dtype": _dtype(config.model_config.dtype),
        "max_model_len": config.model_config.max_model_len,
        "written": fields,
        "block_size": config.cache_config.block_size,
        **_described(layers),
    }


def _described(layers: dict[str, Any]) -> dict[str, Any]:
    """Distinct specs, and for each layer its depth and the number of its spec."""
    specs: list[dict[str, Any]] = []
    places: list[tuple[int | None, int]] = []
    for name, spec in layers.items():
        fields = _fields(spec)
        if fields not in specs:
            specs.append(fields)
        places.append((_depth(name), specs.index(fields)))
    return {"specs": specs, "layers": places}


def _depth(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _fields(spec: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": type(spec).__name__}
    for field in FIELDS:
        if (value := getattr(spec, field, None)) is not None:
            found[field] = value if isinstance(value, int | bool | str) else str(value)
    if hasattr(spec, "shapes"):
        found["shapes"] = [list(shape) for shape in spec.shapes]
        found["dtypes"] = [_dtype(dtype) for dtype in spec.dtypes]
    elif hasattr(spec, "dtype"):
        found["dtype"] = _dtype(spec.dtype)
    found["page_size_bytes"] = spec.page_size_bytes
    return found


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def say(fields: dict[str, Any], *, head: bool = False) -> dict[str, Any]:
    """Return what vLLM says of the model with these fields of ``config.json``, or of its head."""
    register(fields)
    backend = BACKENDS.get(fields["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(fields))
        try:
            return specs(Path(folder), backend, head=head)
        except (NotImplementedError, ValueError) as error:
            if "Model Runner V1" not in str(error) and "V2 model runner" not in str(error):
                raise
            os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
            return specs(Path(folder), backend, head=head)


def written(fields: Any) -> Any:
    """Return what the class writes into a ``config.json``, as far as a reader may ask for it."""
    wanted = class_defaults.fields_of_readers() | {"architectures", "model_type", *SECTIONS}
    if not isinstance(fields, dict):
        return fields
    return {
        name: written(value) if name in SECTIONS else value
        for name, value in fields.items()
        if name in wanted and isinstance(value, int | str | list | dict | None)
    }


def register(fields: dict[str, Any]) -> None:
    """Let transformers read a type whose class only its publisher's code has."""
    from transformers import AutoConfig, PreTrainedConfig  # noqa: PLC0415
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    from vllm.transformers_utils.config import _CONFIG_REGISTRY  # noqa: PLC0415

    def section(value: Any) -> Any:
        if isinstance(value, list):
            return [section(item) for item in value]
        if not isinstance(value, dict):
            return value
        if (model_type := value.get("model_type")) in _CONFIG_REGISTRY:
            return _CONFIG_REGISTRY[model_type](**value)
        return CONFIG_MAPPING[model_type](**value) if model_type in CONFIG_MAPPING else value  # type: ignore[index]

    own = fields["model_type"]

    def known(model_type: str) -> bool:
        return model_type in CONFIG_MAPPING or model_type in _CONFIG_REGISTRY

    class Section(PreTrainedConfig):  # type: ignore[no-untyped-call]
        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)

        def to_dict(self) -> dict[str, Any]:
            return {**super().to_dict(), "model_type": vars(self).get("model_type", "")}

    class Published(PreTrainedConfig):  # type: ignore[no-untyped-call]
        def __init__(self, **fields: Any) -> None:
            for name, value in fields.items():
                found = section(value)
                if name == "per_layer_config":
                    found = value
                elif isinstance(found, dict) and name.endswith(("_config", "coder")):
                    found = Section(**found)
                if isinstance(found, list) and name.endswith(("_configs", "_config")):
                    found = [nested(item) for item in found]
                if own in OTHER_CLASS and isinstance(value, dict):
                    for field in value.keys() - vars(found).keys():
                        setattr(found, field, value[field])  # transformers dropped it
                fields[name] = found
            super().__init__(**fields)

    def nested(value: Any) -> Any:
        if isinstance(value, dict):
            return Fields({name: nested(item) for name, item in value.items()})
        return value

    if not known(own) or own in OTHER_CLASS:
        Published.model_type = own
        AutoConfig.register(own, Published, exist_ok=True)


def in_child(function: Any, causes: list[str]) -> dict[str, Any]:
    """Call ``function`` in a fork of this process; its answer, or the error that it ended with."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            answer = function()
        except BaseException as error:  # noqa: BLE001 - the row says what it was
            if "TRACE" in os.environ:
                traceback.print_exc()
            answer = {"error": causes[-1] if causes else f"{type(error).__name__}: {error}"[:300]}
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(answer, default=str))
        os._exit(0)
    os.close(write)
    data, deadline = b"", time.monotonic() + SECONDS
    while select.select([read], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(read, 65536)
        if not part:
            break
        data += part
    else:
        os.kill(child, signal.SIGKILL)
        data = json.dumps({"error": f"not built in {SECONDS} s"}).encode()
    os.close(read)
    _, status = os.waitpid(child, 0)
    said: dict[str, Any] = json.loads(data) if data else {"error": f"ended with status {status}"}
    return said
