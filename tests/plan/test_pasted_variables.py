"""Variables before a pasted command: which of them change its figures."""

import re
from importlib import metadata
from importlib.metadata import EntryPoint
from unittest.mock import MagicMock

import pytest
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.doctor.features import check_model
from hybrid_blocks.tools.plan import plan_natural
from hybrid_blocks.tools.plan.memory import parse_cards
from hybrid_blocks.tools.plan.vllm import VllmPlan, plan_vllm
from hybrid_blocks.tools.read.command import defaults_of, read_command
from hybrid_blocks.tools.read.features import read_features
from hybrid_blocks.tools.read.level import connector_of
from hybrid_blocks.tools.read.vllm_variables import is_on, leaves_plugin_out

GIB = 2**30
QWEN = "vllm serve Qwen/Qwen3.8-27B -pp 2 --max-model-len 65536"


def planned(text: str, gib: int) -> VllmPlan:
    command = read_command([text])
    return plan_vllm(command.model, gib * GIB, command.deployment)


@pytest.mark.parametrize(
    "text",
    [
        f"VLLM_PP_LAYER_PARTITION=48,16 {QWEN}",
        f"export VLLM_PP_LAYER_PARTITION=48,16\n{QWEN}",
        f"docker run -e VLLM_PP_LAYER_PARTITION=48,16 vllm/vllm-openai {QWEN}",
    ],
)
def test_a_partition_gives_the_layers_of_each_stage(text: str) -> None:
    plan = planned(text, 10)
    figures = (plan.num_blocks, int(plan.max_concurrency * 65536), f"{plan.max_concurrency:.2f}")
    assert figures == (278, 202_433, "3.09")
    assert planned(QWEN, 10).num_blocks == 417


def test_windows_hold_the_batches_in_flight_beside_a_partition() -> None:
    gemma = "vllm serve google/gemma-3-27b-it -pp 2 --max-model-len 65536 --no-async-scheduling"
    plan = planned(f"VLLM_PP_LAYER_PARTITION=40,22 {gemma}", 10)
    assert (plan.num_blocks, plan.tokens) == (13_653, 84_173)


@pytest.mark.parametrize(
    "value", ["48", "48,17", "48,16,0", "64,0", "-1,65", "a,b", "48,16,", "", "9" * 400]
)
def test_a_partition_that_vllm_refuses_is_refused(value: str) -> None:
    with pytest.raises(PlanError, match="VLLM_PP_LAYER_PARTITION="):
        planned(f"VLLM_PP_LAYER_PARTITION={value} {QWEN}", 10)


@pytest.mark.parametrize(
    ("model", "checkpoints", "slabs", "mib"),
    [
        ("Qwen/Qwen3.5-27B", "learned", 332, 37),
        ("Qwen/Qwen3.5-27B", "learned/format=int8", 472, 26),
        ("Qwen/Qwen3.5-27B", "learned/format=bf16", 491, 25),
        ("nvidia/Nemotron-H-8B-Base-8K", "learned", 756, 16.25),
        ("nvidia/Nemotron-H-8B-Base-8K", "learned/format=int8", 725, 16.946),
    ],
)
def test_checkpoints_in_a_format_are_planned_as_the_engine_plans_them(
    model: str, checkpoints: str, slabs: int, mib: float
) -> None:
    length = "" if "Nemotron" in model else "--max-model-len 65536"
    variables = f"HYBRID_BLOCKS=natural HYBRID_BLOCKS_CHECKPOINTS={checkpoints}"
    command = read_command([f"{variables} vllm serve {model} {length}"])
    arena = plan_natural(command.model, 12 * GIB, command.deployment)
    assert arena.num_slabs == slabs
    assert arena.slab_bytes / 2**20 == pytest.approx(mib, abs=0.001)


@pytest.mark.parametrize("value", ["format=int8", "learned/format=int4", "nonsense"])
def test_checkpoints_that_the_engine_refuses_are_refused(value: str) -> None:
    with pytest.raises(PlanError, match="HYBRID_BLOCKS_CHECKPOINTS="):
        read_command([f"HYBRID_BLOCKS_CHECKPOINTS={value} vllm serve Qwen/Qwen3.5-27B"])


@pytest.mark.parametrize(
    ("variables", "options"),
    [
        ("", ""),
        ("VLLM_SSM_CONV_STATE_LAYOUT=DS", ""),
        ("VLLM_SSM_CONV_STATE_LAYOUT=SD", ""),
        ("VLLM_KV_CACHE_LAYOUT=HND", ""),
        ("VLLM_KV_CACHE_LAYOUT=NHD", ""),
        ("", "--watermark 0.02"),
    ],
)
def test_layouts_and_the_watermark_change_no_figure(variables: str, options: str) -> None:
    plan = planned(f"{variables} vllm serve Qwen3.5-27B -tp 2 --max-model-len 65536 {options}", 24)
    assert (plan.num_blocks, f"{plan.max_concurrency:.2f}") == (1_003, "11.14")
    assert int(plan.max_concurrency * plan.max_model_len) == 730_362


@pytest.mark.parametrize("value", ["1.0", "-0.01", "nan", "inf"])
def test_a_watermark_that_vllm_refuses_is_refused(value: str) -> None:
    with pytest.raises(PlanError, match=rf"^--watermark {float(value)}: vLLM takes a share from 0"):
        read_command([f"vllm serve Qwen3.5-27B --watermark {value}"])


@pytest.mark.parametrize(
    ("variable", "model"),
    [
        ("VLLM_KV_CACHE_LAYOUT=BLHNC", "Qwen3.5-27B"),
        ("VLLM_SSM_CONV_STATE_LAYOUT=X", "Qwen3.5-27B"),
        ("VLLM_MLA_DISABLE=1", "DeepSeek-V3"),
    ],
)
def test_a_variable_that_cannot_be_planned_is_named(variable: str, model: str) -> None:
    with pytest.raises(PlanError, match=re.escape(variable)):
        read_command([f"{variable} vllm serve {model}"])


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("vllm serve gpt-oss-20b -pp 2", 3),
        ("VLLM_USE_V2_MODEL_RUNNER=1 vllm serve gpt-oss-20b -pp 2", 3),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve gpt-oss-20b -pp 2", 2),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve gpt-oss-20b", 2),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve gpt-oss-20b {ngram}", 1),
        ("vllm serve gpt-oss-20b {ngram}", 2),
    ],
)
def test_the_first_model_runner_has_fewer_batches_in_flight(text: str, batches: int) -> None:
    ngram = '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 2}\''
    command = read_command([text.format(ngram=ngram)])
    assert command.deployment.in_flight_batches == batches


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("VLLM_USE_V2_MODEL_RUNNER=no vllm serve gpt-oss-20b", "vLLM reads a whole number"),
        ("VLLM_USE_V2_MODEL_RUNNER= vllm serve gpt-oss-20b", "vLLM reads a whole number"),
        ("VLLM_USE_V2_MODEL_RUNNER=0 vllm serve gpt-oss-20b -pp 2 --async-scheduling", "refuses"),
        ("VLLM_BATCH_INVARIANT=1 vllm serve Qwen3.5-27B", "refuses recurrent states"),
        (
            "VLLM_BATCH_INVARIANT=1 vllm serve gpt-oss-20b --attention-backend FLASHINFER",
            "refuses --attention-backend FLASHINFER",
        ),
        (
            "VLLM_KV_CACHE_LAYUOT=HND vllm serve gpt-oss-20b --fail-on-environ-validation",
            "knows no variable VLLM_KV_CACHE_LAYUOT",
        ),
    ],
)
def test_what_vllm_refuses_is_refused_in_one_sentence(text: str, told: str) -> None:
    with pytest.raises(PlanError, match=told) as raised:
        read_command([text])
    assert "\n" not in str(raised.value)


def test_latents_that_are_to_be_batch_invariant_have_blocks_of_16_tokens() -> None:
    text = "vllm serve DeepSeek-V3 -tp 8 --max-model-len 8192 --kv-cache-dtype fp8"
    card, texts = parse_cards("H100"), [f"VLLM_BATCH_INVARIANT={it} {text}" for it in (0, 1)]
    plans = [read_command([it], None, card) for it in texts]
    assert [plan.deployment.attention_backend for plan in plans] == [None, "TRITON_MLA"]


@pytest.mark.parametrize("plugins", ["", "lora_filesystem_resolver", " hybrid_blocks"])
def test_a_list_of_plugins_without_this_package_is_level_off(plugins: str) -> None:
    text = f"VLLM_PLUGINS='{plugins}' HYBRID_BLOCKS=natural vllm serve Qwen3.5-27B"
    command = read_command([text])
    assert command.level == "off"
    assert command.model.notes[-1].endswith("this command gets the figures of vLLM")
    with pytest.raises(PlanError, match="leaves hybrid_blocks out"):
        read_features([text])


def test_a_list_of_plugins_with_this_package_changes_nothing() -> None:
    text = "HYBRID_BLOCKS=natural vllm serve Qwen3.5-27B"
    with_list = read_command([f"VLLM_PLUGINS=a,hybrid_blocks {text}"])
    assert (with_list.level, with_list.model) == ("natural", read_command([text]).model)


def test_the_simple_offload_keeps_an_engine_from_level_natural() -> None:
    text = "vllm serve Qwen3.5-27B --kv-offloading-size 8"
    refused = read_command([f"VLLM_USE_SIMPLE_KV_OFFLOAD=1 {text}"]).deployment.level_refusal
    assert refused == "the KV connector SimpleCPUOffloadConnector"
    assert read_command([f"VLLM_USE_SIMPLE_KV_OFFLOAD=0 {text}"]).deployment.level_refusal is None


@pytest.mark.parametrize(
    ("variable", "note"),
    [
        ("VLLM_ATTENTION_BACKEND=FLASHINFER", "--attention-backend"),
        ("VLLM_KV_CACHE_LAYUOT=HND", "VLLM_KV_CACHE_LAYOUT"),
        ("VLLM_CPU_KVCACHE_SPACE=40", "CPU engine"),
    ],
)
def test_a_variable_that_is_ignored_gets_one_note(variable: str, note: str) -> None:
    plain, noted = (read_command([f"{text} vllm serve Qwen3.5-27B"]) for text in ("", variable))
    (added,) = set(noted.model.notes) - set(plain.model.notes)
    assert note in added
    assert noted.deployment == plain.deployment


@pytest.mark.parametrize("name", ["VLLM_USE_V2_MODEL_RUNNER", "VLLM_BATCH_INVARIANT"])
@pytest.mark.parametrize("value", [None, "", "0", "1", "2", "true", " 1 "])
@pytest.mark.vllm
def test_switches_are_vllms(name: str, value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.envs import environment_variables  # noqa: PLC0415

    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    environment = {} if value is None else {name: value}
    try:
        theirs = environment_variables[name]()
    except ValueError:
        with pytest.raises(PlanError, match=name):
            is_on(environment, name)
    else:
        assert bool(is_on(environment, name)) == bool(theirs)


@pytest.mark.parametrize(
    "plugins", ["", "a", "hybrid_blocks", "a,hybrid_blocks", "a, hybrid_blocks"]
)
@pytest.mark.vllm
def test_vllm_loads_this_package_if_named(plugins: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import plugins as vllms  # noqa: PLC0415

    ours = EntryPoint("hybrid_blocks", "json:loads", vllms.DEFAULT_PLUGINS_GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [ours] if group else [])
    monkeypatch.setenv("VLLM_PLUGINS", plugins)
    loaded = "hybrid_blocks" in vllms.load_plugins_by_group(vllms.DEFAULT_PLUGINS_GROUP)
    assert loaded == (leaves_plugin_out({"VLLM_PLUGINS": plugins}) is None)


@pytest.mark.parametrize("value", ["0", "1"])
@pytest.mark.vllm
def test_an_offload_has_the_connector_of_vllm(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import VllmConfig  # noqa: PLC0415

    monkeypatch.setenv("VLLM_USE_SIMPLE_KV_OFFLOAD", value)
    config = VllmConfig()
    config.cache_config.kv_offloading_size = 8
    config._post_init_kv_transfer_config()
    ours = connector_of({"kv_offloading_size": 8}, {"VLLM_USE_SIMPLE_KV_OFFLOAD": value})
    assert config.kv_transfer_config is not None
    assert ours is not None
    assert ours.name == config.kv_transfer_config.kv_connector


@pytest.mark.vllm
def test_vllm_has_no_batch_invariant_kernels_of_states() -> None:
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum  # noqa: PLC0415

    backends = [it.get_class() for it in MambaAttentionBackendEnum if it.value]
    assert not any(backend.supports_batch_invariance() for backend in backends)


@pytest.mark.parametrize(
    "card", ["H100-80GB", "H200", "B200", "A100-80GB", "A100-40GB", "L40S", "RTX-PRO-6000"]
)
@pytest.mark.vllm
def test_a_server_without_options_has_vllms_defaults_on_the_card(
    card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.engine import arg_utils  # noqa: PLC0415
    from vllm.usage.usage_lib import UsageContext  # noqa: PLC0415

    cards = parse_cards(card)
    platform = MagicMock()
    platform.get_device_total_memory.return_value = cards.total_bytes
    platform.get_device_name.return_value = f"NVIDIA {card}"
    for name in ("is_device_capability", "is_tpu", "is_cpu", "is_xpu"):
        getattr(platform, name).return_value = False
    monkeypatch.setattr(arg_utils, "current_platform", platform)
    tokens, sequences = arg_utils.EngineArgs.get_batch_defaults(1)
    server = UsageContext.OPENAI_API_SERVER
    assert defaults_of(cards) == (tokens[server], sequences[server])
    command = read_command(["vllm serve Qwen3.5-27B"], None, cards)
    deployment = command.deployment
    assert (deployment.max_num_batched_tokens, deployment.max_num_seqs) == defaults_of(cards)


def test_doctor_takes_the_layers_of_each_stage() -> None:
    asked = read_features([f"VLLM_PP_LAYER_PARTITION=48,16 {QWEN}"])
    assert asked.features.pp_partition == (48, 16)
    check_model(asked.command.model, asked.features)
    wrong = read_features([f"VLLM_PP_LAYER_PARTITION=48,17 {QWEN}"])
    with pytest.raises(PlanError, match="sum up to the 64"):
        check_model(wrong.command.model, wrong.features)
