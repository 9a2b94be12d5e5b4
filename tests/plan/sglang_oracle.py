"""SGLang's own arithmetic of its pools, run without a GPU.

Reads a JSON list of questions from standard input, and writes a list of answers. Needs torch,
transformers and the unpacked wheel on ``PYTHONPATH``.
"""

import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import Any
from unittest.mock import patch

import msgspec
import sglang_stand_ins  # noqa: F401 -- before anything of SGLang's
import torch
from sglang.srt.arg_groups import overrides
from sglang.srt.configs import hybrid_arch
from sglang.srt.configs.model_config import AttentionArch, ModelConfig
from sglang.srt.mem_cache import kv_cache_configurator as configurator

_GIB = 2**30
_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_Object = types.SimpleNamespace
_ASKED_OF_ITSELF = (
    *("_calculate_mamba_ratio", "_apply_token_constraints", "_unified_swa_head_geometry"),
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A model's ``config.json``, the memory of its pools, and options of the server.

    ``draft_tokens`` counts the token that is verified too.
    """

    config: dict[str, Any]
    memory_bytes: int
    max_running_requests: int
    tp: int = 1
    kv_cache_dtype: str = "auto"
    mamba_ssm_dtype: str | None = None
    disable_radix_cache: bool = False
    draft_tokens: int = 0
    draft_layers: int = 0


class Pools(msgspec.Struct, frozen=True, kw_only=True):
    """What SGLang makes of a memory; ``refusal`` is why it makes nothing of it."""

    strategy: str | None = None
    state_bytes: int | None = None
    state_slots: int | None = None
    slots_per_request: int | None = None
    tokens: int | None = None
    window_tokens: int | None = None
    max_running: int | None = None
    refusal: str | None = None


def answer(asked: Question) -> Pools:
    """Let SGLang split the memory."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(msgspec.json.encode(asked.config))
        model = ModelConfig(folder)
    schedule = _Object(
        max_mamba_cache_size=None,
        max_running_requests=asked.max_running_requests,
        mamba_full_memory_ratio=0.9,
        disable_overlap_schedule=False,
        max_total_tokens=None,
        page_size=1,
        swa_full_tokens_ratio=0.8,
    )
    strategy, states = _strategy(model), hybrid_arch.mambaish_config(model)
    with _runtime(schedule, strategy, asked):
        worker = _worker(model, states, asked)
        each = None
        rest: float = asked.memory_bytes / _GIB
        if states is not None:
            rest = configurator.KVCacheConfigurator._handle_max_mamba_cache(worker, rest)
            each = worker._calculate_mamba_ratio()
        budget = int(rest * _GIB)
        made = configurator.KVCacheConfigurator.config_from_budget(worker, budget)
        return Pools(
            strategy="off" if states is not None and asked.disable_radix_cache else strategy,
            state_bytes=0 if states is None else states.mamba2_cache_params.mamba_cache_per_req,
            state_slots=schedule.max_mamba_cache_size,
            slots_per_request=each,
            tokens=made.max_total_num_tokens,
            window_tokens=made.swa_max_total_num_tokens,
            max_running=configurator.KVCacheConfigurator.resolve_max_num_reqs(
                worker, made.max_total_num_tokens
            ),
        )


def main() -> None:
    """Answer all questions."""
    answers = []
    for asked in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Question]):
        try:
            answers.append(answer(asked))
        except Exception as error:  # noqa: BLE001 - SGLang refuses in many ways
            answers.append(Pools(refusal=repr(error)))
    sys.stdout.buffer.write(msgspec.json.encode(answers))


def _strategy(model: Any) -> str | None:
    view = _Object(
        disable_radix_cache=False,
        mamba_radix_cache_strategy="auto",
        disable_overlap_schedule=False,
        page_size=1,
        linear_attn_backend="triton",
    )
    with patch.object(overrides, "model_config_of", lambda _: model):
        found = overrides._mamba_radix_cache_resolution(view)
    strategy: str | None = found.get("mamba_radix_cache_strategy")
    return strategy


def _worker(model: Any, states: Any, options: Question) -> Any:
    layers = model.num_hidden_layers
    text = model.hf_text_config
    drafts = options.draft_tokens > 0
    worker = _Object(
        mambaish_config=states,
        hybrid_gdn_config=None,
        hybrid_kda_config=None,
        model_config=model,
        pp_size=1,
        attn_dp_size=1,
        is_draft_worker=False,
        is_hybrid_swa=model.is_hybrid_swa,
        extra_mamba_cache_bytes_per_req=0,
        fused_entry_bytes=lambda _: None,
        kv_cache_dtype=_DTYPES[options.kv_cache_dtype],
        kv_cache_dtype_str=options.kv_cache_dtype,
        use_mla_backend=model.attention_arch == AttentionArch.MLA,
        server_args=_Object(enable_hisparse=False),
        device="cuda",
        page_size=1,
        forward_stream=None,
        post_capture_kv_active=False,
        is_hybrid_swa_compress=False,
        # Without a drafter nothing is fused, and the pool of requests has no part in the bytes.
        _fused_draft_for_mamba_factory=lambda: None,
        _fused_draft_for_swa_factory=lambda: None,
        _build_req_to_token_pool=lambda **_: None,
        sliding_window_size=getattr(text, "sliding_window", None),
        spec_algorithm=_Object(
            is_none=lambda: not drafts,
            is_eagle=lambda: drafts,
            is_standalone=lambda: False,
            is_dflash_family=lambda: False,
        ),
        spec_aux_config=_Object(
            eagle_draft_num_layers=options.draft_layers, eagle_draft_swa_num_layers=None
        ),
        layer_info=_Object(
            start_layer=0,
            end_layer=layers,
            num_effective_layers=layers,
            swa_attention_layer_ids=model.swa_attention_layer_ids,
            full_attention_layer_ids=model.full_attention_layer_ids,
        ),
    )
    for name in _ASKED_OF_ITSELF:
        setattr(worker, name, MethodType(getattr(configurator.KVCacheConfigurator, name), worker))
    return worker


@contextmanager
def _runtime(schedule: Any, strategy: str | None, options: Question) -> Iterator[None]:
    """Put the options where SGLang's functions look for them."""
    bags = {
        "get_schedule": schedule,
        "get_context": _Object(override=lambda _, **found: vars(schedule).update(found)),
        "get_memory": _Object(
            disable_radix_cache=options.disable_radix_cache,
            enable_unified_memory=False,
            enable_hisparse=False,
        ),
        "get_exec": _Object(
            mamba=_Object(
                enable_mamba_extra_buffer=strategy in {"extra_buffer", "extra_buffer_lazy"},
                enable_mamba_extra_buffer_lazy=strategy == "extra_buffer_lazy",
                enable_linear_replayssm_spec=False,
            ),
            features=_Object(enable_memory_saver=False),
        ),
        "get_spec": _Object(speculative_num_draft_tokens=options.draft_tokens or None),
        "get_disagg": _Object(disaggregation_mode="null", enable_pd_role_switch=False),
        "get_parallel": _Object(
            attn_tp_size=options.tp,
            tp_size=options.tp,
            pp_size=1,
            attn_dcp_size=1,
            enable_dsa_cache_layer_split=False,
        ),
        "linear_attn_tp_size": options.tp,
        "compute_page_shard_scratch_bytes": 0,
    }
    started = [
        patch.object(module, name, lambda *_, bag=bag, **__: bag)
        for path, module in list(sys.modules.items())
        for name, bag in bags.items()
        if path.startswith("sglang.") and name in vars(module)
    ]
    formats = (
        {}
        if options.mamba_ssm_dtype is None
        else {"SGLANG_MAMBA_SSM_DTYPE": options.mamba_ssm_dtype}
    )
    with patch.dict("os.environ", formats):
        for one in started:
            one.start()
        try:
            yield
        finally:
            for one in started:
                one.stop()


if __name__ == "__main__":
    main()
