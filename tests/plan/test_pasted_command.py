"""``hybrid-blocks plan -- vllm serve …``: a command as people have it."""

import json
import re
import shlex
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command import answer, as_json, refusal
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.doctor import features
from hybrid_blocks.tools.doctor.features import Features, Speculative
from hybrid_blocks.tools.read import effects
from hybrid_blocks.tools.read.arguments import parse
from hybrid_blocks.tools.read.command import defaults_of, read_command
from hybrid_blocks.tools.read.features import read_features
from hybrid_blocks.tools.read.options import recorded

plan = partial(answer, "plan")


COMMANDS = tomllib.loads((Path(__file__).parent / "pasted_commands.toml").read_text())["command"]
TOKENS, SEQUENCES = defaults_of(None)
DEFAULTS = Deployment(max_num_batched_tokens=TOKENS, max_num_seqs=SEQUENCES, in_flight_batches=2)


@pytest.mark.parametrize("case", COMMANDS, ids=lambda case: case["text"].strip()[:60])
def test_a_command_as_people_write_it_is_read_as_vllm_reads_it(case: dict[str, Any]) -> None:
    if "needs" in case:
        pytest.importorskip(case["needs"])
    if "refused" in case:
        with pytest.raises(PlanError) as raised:
            read_command([case["text"]])
        assert case["refused"] in str(raised.value)
        assert "\n" not in str(raised.value)
        return
    command = read_command([case["text"]])
    assert command.model.name == case["model"]
    assert command.deployment == msgspec.structs.replace(DEFAULTS, **case.get("deployment", {}))
    assert command.memory_bytes == case.get("memory")
    assert command.fits is case.get("fits", False)
    assert command.level == case.get("level")
    assert command.model.dtype == case.get("dtype", "bfloat16")
    if "draft_layers" in case:
        assert len(command.model.draft_layers) == case["draft_layers"]
    if "max_model_len" in case:
        assert command.model.max_model_len == case["max_model_len"]
    if "layers" in case:
        assert command.model.num_layers == case["layers"]
    assert case.get("note", "") in " | ".join(command.model.notes)


def test_every_option_of_vllm_is_mapped_refused_or_known_to_change_nothing() -> None:
    names = set(recorded().named())
    sorted_into = [effects.MAPPED, frozenset(effects.REFUSED), effects.SILENT]
    assert names == frozenset.union(*sorted_into)
    assert sum(map(len, sorted_into)) == len(names)


@pytest.mark.parametrize("name", sorted(effects.REFUSED))
def test_an_option_that_cannot_be_planned_is_refused_by_its_name(name: str) -> None:
    option = recorded().named()[name]
    text = ["draft" if option.choices else "other"]
    values = {"integer": ["7"], "number": ["0.5"], "object": ['{"a": "b"}'], "switch": []}
    value = ["embed"] if name == "convert" else values.get(option.kind, text)
    with pytest.raises(PlanError, match=option.flag):
        read_command(["vllm", "serve", "Phi-4", option.flag, *value])


def test_refused_options_at_their_defaults_change_nothing() -> None:
    words = ["--runner", "auto", "-dcp", "1", "--worker-cls", "auto"]
    assert read_command(["vllm", "serve", "Phi-4", *words]).model.name == "Phi-4"


def test_a_plan_of_a_command_is_the_plan_of_its_options() -> None:
    options = "--max-model-len 262144 --max-num-seqs 64 --max-num-batched-tokens 8192"
    command = "HYBRID_BLOCKS=natural vllm serve Qwen/Qwen3.5-27B -tp 2 --port 80"
    words = ("--memory", "13.61GiB", "--json", "-", "--", command, options, "--no-async-scheduling")
    planned = json.loads(plan(*" ".join(words).split()))
    own = ("Qwen3.5-27B", "--memory", "13.61GiB", "--tp", "2", "--in-flight-batches", "1")
    alone = as_json("plan", *own, *options.split())
    told = "HYBRID_BLOCKS=natural: this command gets the figures of natural"
    assert planned.pop("notes") == [told, *alone.pop("notes")]
    assert planned == alone


@pytest.mark.parametrize("before", [["--"], []], ids=["with a separator", "without"])
def test_a_command_is_read_with_and_without_a_separator(before: list[str]) -> None:
    words = ["vllm", "serve", "Qwen/Qwen3.5-27B", "--max-model-len", "8192"]
    for command in (words, [" ".join(words)]):
        out = plan("--memory", "24GiB", "--lengths", "512", *before, *command)
        assert "requests of 512" in out
        assert "max length 8,192" in out


def test_a_name_alone_behind_the_separator_is_a_model() -> None:
    assert "Qwen3.5-27B" in plan("--memory", "24GiB", "--", "Qwen3.5-27B")


def test_a_config_beside_a_command_is_the_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 256, **sizes}))
    command = ["--", "vllm", "serve", "our/model", "--max-model-len", "4096"]
    out = plan("--memory", "1GiB", str(path), *command)
    assert f"{path}: 2 full" in out
    assert "our/model: neither" in refusal("plan", "--memory", "1GiB", *command)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("Phi-4 -O.mode=3", "-O.mode=3: vLLM 0.33"),
        ("Phi-4 -O.mode=3", "as --compilation-config.mode=3"),
        ("Phi-4 -O 7", "-O 7: vLLM takes 0, 1, 2, 3"),
        ("Phi-4 -cc 3", "-cc: vLLM takes a JSON object, or keys as -cc.KEY VALUE"),
        ("Phi-4 -cc.mode 9", "-cc.mode 9: vLLM takes 0, 1, 2, 3"),
        ("Phi-4 -cc.modus 3", "-cc: vLLM knows no key modus; near it: mode"),
        ("Phi-4 -O", "-O without a level"),
        ("microsoft/phi-4@main", "write microsoft/phi-4 --revision main"),
    ],
)
def test_forms_that_vllm_does_not_take_are_named_with_what_it_takes(words: str, error: str) -> None:
    with pytest.raises(PlanError, match=re.escape(error)):
        read_command(["vllm", "serve", *words.split()])


@pytest.mark.parametrize(
    "words",
    ["-O3", "-O=2", "-O 1", "-cc.mode=3", "--compilation-config.pass_config.fuse_norm_quant true"],
)
def test_levels_and_keys_of_the_compilation_change_nothing(words: str) -> None:
    command = read_command(["vllm", "serve", "Phi-4", *words.split()])
    assert command.deployment == read_command(["vllm", "serve", "Phi-4"]).deployment


def test_a_length_that_fits_is_found_for_auto() -> None:
    out = plan("--memory", "4GiB", "--", "vllm serve Qwen3.5-27B --max-model-len auto")
    assert "--max-model-len auto: " in out
    length = out.split("--max-model-len auto: ")[1].split(" ")[0]
    assert f"max length {length}" in out


_OFFLOAD = "--kv-transfer-config.kv_connector OffloadingConnector"
_EXTRA = "--kv-transfer-config.kv_connector_extra_config"
_OURS = (
    "--kv-transfer-config.kv_connector HybridOffloadingConnector "
    "--kv-transfer-config.kv_connector_module_path hybrid_blocks.offload.connector "
    f"{_EXTRA}.spec_name HybridOffloadingSpec"
)
_PULLS = (
    "--kv-transfer-config.kv_connector HybridNixlConnector "
    "--kv-transfer-config.kv_connector_module_path hybrid_blocks.offload.nixl"
)
_NIXL = "--kv-transfer-config.kv_connector NixlConnector"
_DRAFTS = "--speculative-config.method ngram --speculative-config.num_speculative_tokens 2"


def _several(*names: str) -> str:
    def connector(name: str, module: str | None, **extra: object) -> dict[str, object]:
        made = {"kv_connector": name, "kv_connector_module_path": module, "kv_role": "kv_both"}
        return {**made, "kv_connector_extra_config": extra}

    children = [
        connector(it, features.OURS.get(it), spec_name="HybridOffloadingSpec") for it in names
    ]
    module = "hybrid_blocks.offload.multi"
    config = connector("HybridMultiConnector", module, connectors=children)
    return f"--kv-transfer-config '{json.dumps(config)}'"


_STAY = "add HYBRID_BLOCKS_OFFLOAD=1 to stay at natural"
_TO_MANAGER = "HYBRID_BLOCKS=natural reaches level manager here, because of the KV connector "


@pytest.mark.parametrize(
    ("variables", "options", "told"),
    [
        ("natural", "", "HYBRID_BLOCKS=natural: this command gets the figures of natural"),
        ("natural", "--kv-offloading-size 64", f"{_TO_MANAGER}OffloadingConnector with CPUOff"),
        ("natural", "--kv-offloading-size 64", f"gets the figures of vLLM; {_STAY}"),
        ("natural HYBRID_BLOCKS_OFFLOAD=1", "--kv-offloading-size 64", "the figures of natural"),
        ("natural", f"{_OFFLOAD} {_EXTRA}.store lazy", "OffloadingConnector with CPUOff"),
        ("natural", f"{_OFFLOAD} {_EXTRA}.spec_name HybridOffloadingSpec", "gets the figures of n"),
        ("natural", _NIXL, f"{_TO_MANAGER}NixlConn"),
        ("natural", _OURS, "HYBRID_BLOCKS=natural: this command gets the figures of natural"),
        ("natural", f"-pp 2 {_OURS}", "because of pipeline parallelism beside a KV connector"),
        ("natural", "-pp 2", "HYBRID_BLOCKS=natural: this command gets the figures of natural"),
        ("natural", "--kv-cache-metrics", "manager here, because of KV-cache residency metrics"),
        ("natural", "--aux-output-config.enable_return_routed_experts true", "auxiliary outputs"),
        ("natural", "--kv-cache-dtype turboquant_k8v4", "blocks as one dense run"),
        ("natural", "--attention-backend flex_attention", "blocks as one dense run"),
        ("natural", f"{_OURS} {_EXTRA}.store lazy", "the figures of natural"),
        ("natural", _PULLS, "HYBRID_BLOCKS=natural: this command gets the figures of natural"),
        ("natural", f"{_PULLS} {_DRAFTS}", "because of drafts beside HybridNixlConnector"),
        ("pool", "", "HYBRID_BLOCKS is pool: this command gets the figures of vLLM; with HYBRID"),
        ("manager", "--kv-offloading-size 64", "HYBRID_BLOCKS_OFFLOAD=1 gets those of natural"),
        ("manager", _NIXL, "reaches level manager, b"),
    ],
)
def test_a_note_says_whose_figures_a_command_gets(variables: str, options: str, told: str) -> None:
    command = f"HYBRID_BLOCKS={variables} vllm serve Phi-4 {options}"
    (note,) = (note for note in read_command([command]).model.notes if "HYBRID_BLOCKS" in note)
    assert told in note
    is_hopeless = "Nixl" in options or "lazy" in options or "HYBRID_BLOCKS_OFFLOAD" in variables
    assert not (is_hopeless and _STAY in note)


def test_the_verdict_knows_what_keeps_a_command_from_level_natural() -> None:
    command = "vllm serve Qwen3.5-27B --max-model-len 8192"
    for options, is_gain in (
        (_NIXL, False),
        ("--kv-offloading-size 64", True),  # a variable helps, and a note names it
        ("", True),
    ):
        out = plan("--memory", "24GiB", "--", f"{command} {options}")
        verdict = next(line for line in out.splitlines() if line.startswith("verdict:"))
        assert ("runs more requests at once than vLLM" in verdict) is is_gain
        assert ("level manager (the KV connector NixlConnector)" in verdict) is not is_gain


@pytest.mark.parametrize(
    ("variables", "options", "connector"),
    [
        ("", "--kv-offloading-size 64", "OffloadingConnector"),
        ("HYBRID_BLOCKS_OFFLOAD=1", "--kv-offloading-size 64", "HybridOffloadingConnector"),
        ("", f"{_OFFLOAD} {_EXTRA}.spec_name HybridOffloadingSpec", "HybridOffloadingConnector"),
        ("", "--kv-offloading-size 64 --kv-offloading-backend lmcache", "LMCacheMPConnector"),
        ("", f"--kv-offloading-size 64 {_NIXL}", "OffloadingConnector"),
        ("", _PULLS, "HybridNixlConnector"),
        ("", f"{_PULLS} {_EXTRA}.bidirectional_kv_xfer true", "NixlConnector"),
        ("", _several("HybridOffloadingConnector"), "HybridOffloadingConnector"),
        ("", _several("HybridOffloadingConnector", "HybridNixlConnector"), "HybridMultiConnector"),
        ("", _several("HybridOffloadingConnector", "NixlConnector"), "NixlConnector"),
    ],
)
def test_doctor_gets_the_connector_of_vllm(variables: str, options: str, connector: str) -> None:
    asked = read_features([f"{variables} vllm serve Phi-4 {options}"])
    assert asked.features.connector == connector


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("-- vllm serve Phi-4", "does not say how much memory is free"),
        ("--memory 1GiB --tp 2 -- vllm serve Phi-4", "--tp beside a pasted"),
        ("--memory 1GiB -- vllm serve Phi-4 --kv-cache-memory-bytes 1G", "leave one out"),
        ("--memory 24GiB -- vllm serve --port 80", "names no model"),
        ("--memory 24GiB -- HYBRID_BLOCKS=full vllm serve Phi-4", "no level"),
        ("--memory 24GiB -- ls -l", "no command that starts vLLM's server"),
        ("--memory 24GiB -- vllm serve Phi-4 --max-num-seqs 0", "positive: 0"),
        ("--memory 24GiB -- vllm serve Phi-4 --max-num-batched-tokens 0", "positive: 0"),
        ("--memory 24GiB -- vllm serve Phi-4 -tp 0", "positive: 0"),
        (
            """--memory 24GiB -- vllm serve Phi-4 --hf-overrides '{"num_hidden_layers":"x"}'""",
            "must be a non-negative integer: 'x'\n",
        ),
    ],
)
def test_a_command_that_gives_no_plan_is_one_clear_line(arguments: str, complaint: str) -> None:
    assert complaint in refusal("plan", *shlex.split(arguments))


def test_doctor_reads_the_features_of_a_command() -> None:
    words = (
        "HYBRID_BLOCKS=natural vllm serve Qwen/Qwen3.5-27B -tp 2 -dcp 2 -pp 2 --enable-lora "
        "--scheduling-policy priority --kv-cache-metrics --enable-mfu-metrics "
        "--return-sampling-mask --no-enable-prefix-caching --kv-offloading-size 64 "
        "--scheduler-cls hybrid_blocks.vllm.Scheduler "
        "-sc.method eagle3 -sc.model a/b -sc.num_speculative_tokens 3"
    )
    asked = read_features([words])
    assert asked.command.model.name == "Qwen3.5-27B"
    assert (asked.command.level, asked.scheduler) == ("natural", "hybrid_blocks.vllm.Scheduler")
    are_on = ("lora", "priorities", "residency_metrics", "flop_metrics", "sampling_masks")
    drafts, connector = Speculative("eagle3", 3), "OffloadingConnector"
    parallel = Features(speculative=drafts, connector=connector, tp=2, dcp=2, pp=2)
    on = dict.fromkeys(are_on, True)
    assert asked.features == msgspec.structs.replace(parallel, prefix_caching=False, **on)


@pytest.mark.parametrize(
    ("arguments", "features"),
    [
        ("", Features()),
        ("--speculative-config.method deepseek_mtp", Features(speculative=Speculative("mtp", 1))),
        ("--spec-method ngram --spec-tokens 3", Features(speculative=Speculative("ngram", 3))),
        (_NIXL, Features(connector="NixlConnector")),
        ("--ec-transfer-config.ec_connector x", Features(encoder_connector=True)),
    ],
)
def test_features_that_no_command_asks_for_are_defaults(arguments: str, features: Features) -> None:
    assert read_features([f"vllm serve Qwen/Qwen3.5-27B {arguments}"]).features == features


@pytest.mark.parametrize(
    ("arguments", "unplanned"),
    [
        ("--kv-cache-dtype fp8 --max-model-len 4k --max-num-seqs 16", None),
        ("-dcp 2 --max-num-seqs 16", "context parallelism cannot be planned"),
        ("--kv-cache-dtype-skip-layers 0 --max-num-seqs 16", "caches of two types cannot be plan"),
        ("-sc.method eagle3 -sc.num_speculative_tokens 3", "the layers of its drafter cannot be"),
    ],
)
def test_doctor_prices_what_plan_plans(arguments: str, unplanned: str | None) -> None:
    text = f"vllm serve Qwen/Qwen3.5-27B {arguments}"
    asked = read_features([text])
    if unplanned is None:
        assert (asked.command, asked.unplanned) == (read_command([text]), None)
    else:
        assert unplanned in str(asked.unplanned)
        with pytest.raises(PlanError, match=re.escape(str(asked.unplanned))):
            read_command([text])
    assert asked.command.deployment.max_num_seqs == (16 if "seqs" in arguments else SEQUENCES)


def test_options_in_a_file_are_read_before_those_of_the_command(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "serve.yaml"
    path.write_text(
        "model: Qwen/Qwen3.5-27B\ntensor_parallel_size: 4\nmax-model-len: 8192\n"
        "enable-prefix-caching: false\nspeculative-config:\n  method: mtp\n"
        "  num_speculative_tokens: 2\n"
    )
    found = read_command(["vllm", "serve", "--config", str(path), "-tp", "2"]).deployment
    assert (found.tp, found.max_model_len, found.num_speculative_tokens) == (2, 8192, 2)
    assert found.mamba_cache_mode == "none"


def test_dotted_options_stand_behind_all_others_as_in_vllm() -> None:
    words = ["m", "--speculative-config.a+", "x,y", "--speculative-config", '{"c": 1}']
    values = parse([*words, "--speculative-config.a+", "z", "-sc.n", "1k"]).values
    assert values == {"speculative_config": {"n": 1000}}
