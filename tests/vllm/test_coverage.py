"""An engine reaches the level and scheduler that ``reach`` and docs/coverage.md give."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
import vllm
from command import answer, run
from hybrid_blocks import __version__
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.model import Model, load_model
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.doctor.answer import NUM_REQUESTS, at_level, probed, reach
from hybrid_blocks.tools.doctor.engine import Engine
from hybrid_blocks.tools.doctor.features import (
    METHODS,
    OFFLOADING,
    OURS,
    Features,
    Speculative,
    asked,
    is_served,
    parse_speculative,
    transfer,
)
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.vllm.level import Level
from hybrid_blocks.vllm.manager.config import NaturalKVCacheConfig
from hybrid_blocks.vllm.manager.kv_cache_manager import KVCacheManager
from hybrid_blocks.vllm.manager.native import NativeKVCacheManager
from hybrid_blocks.vllm.surface.support import release_of
from level_table import FEATURES, MOST_SERVED, Row, document, rows, share
from natural.engine import Engine as NaturalEngine
from natural.engine import installed
from vllm.config.speculative import MTPModelTypes, SpeculativeMethod
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

DOCUMENT = Path(__file__).parents[2] / "docs/coverage.md"


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    """Once for all tests: a swap of vLLM's classes searches all loaded modules."""
    with at_level(Level.MANAGER):
        yield


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return list(rows())


def test_the_document_is_up_to_date(found: list[Row]) -> None:
    assert document(found) == DOCUMENT.read_text(), "make levels"


def test_every_model_has_a_row_for_every_feature_that_it_has(found: list[Row]) -> None:
    rows = product(entries(), FEATURES)
    expected = {(name, it) for name, it in rows if is_served(load_model(name), FEATURES[it])}
    assert {(row.model, row.feature) for row in found} == expected
    assert set(MOST_SERVED) <= set(entries())
    assert len(MOST_SERVED) == 20


def test_every_plain_model_reaches_the_highest_level_and_one_call(found: list[Row]) -> None:
    for row in found:
        if row.feature == "plain":
            assert row.is_whole, row
            assert row.reach is not None
            assert row.reach.level is Level.NATURAL, row


def test_the_share_counts_engines_that_vllm_serves(found: list[Row]) -> None:
    plain = [row for row in found if row.feature == "plain"]
    assert share(plain) == (len(entries()), len(entries()))
    refused = plain[0]._replace(reach=None, refused="why")
    assert share([*plain, refused]) == share(plain)


@pytest.mark.parametrize("name", MOST_SERVED)
def test_level_natural_plans_slabs_for_the_models_that_are_told_to_reach_it(name: str) -> None:
    """The workers' part of vLLM's planning runs too, which the table does without."""
    with installed():
        engine = NaturalEngine(load_model(name), Deployment(max_model_len=16_384), 2**37)
    assert isinstance(engine.kv_cache_config, NaturalKVCacheConfig)


def assert_served_as_told(model: Model, features: Features) -> None:
    told = reach(model, features)
    probe = probed(Engine(model, features))
    manager = probe.scheduler.kv_cache_manager
    assert isinstance(manager, KVCacheManager)
    assert isinstance(manager, NativeKVCacheManager) is (told.manager_level is Level.MANAGER)
    assert probe.num_decoded >= NUM_REQUESTS
    assert told.is_one_call is (probe.scheduler._decodes is not None and not probe.num_left)


@pytest.mark.parametrize("features", FEATURES.values(), ids=list(FEATURES))
@pytest.mark.parametrize("name", ["Qwen3.5-27B", "gpt-oss-20b", "Kimi-K3"])
def test_the_manager_that_serves_is_the_one_told(name: str, features: Features) -> None:
    model = load_model(name)
    if is_served(model, features):
        assert_served_as_told(model, features)


@pytest.mark.parametrize("method", METHODS)
def test_the_manager_that_serves_is_the_one_told_for_every_method_of_drafts(method: str) -> None:
    features = Features(speculative=Speculative(method, 4))
    assert_served_as_told(load_model("Qwen3.5-27B"), features)
    # vLLM's second model runner, which is scheduled asynchronously, drafts by all but these.
    is_second = method not in {"suffix", "custom_class"}
    engine = Engine(load_model("Qwen3.5-27B"), features)
    assert bool(engine.config._get_v2_model_runner_unsupported_features()) is not is_second
    assert engine.is_async is is_second
    assert engine.scheduler(AsyncScheduler).use_v2_model_runner is is_second


def test_every_method_of_drafts_that_vllm_offers_has_rows(found: list[Row]) -> None:
    """vLLM wants the package arctic-inference for suffixes; its scheduler does not ask for it."""
    offered = set(get_args(SpeculativeMethod)) - set(get_args(MTPModelTypes)) | {"mtp"}
    assert set(METHODS) == offered
    drafts = {name: it.speculative.method for name, it in FEATURES.items() if it.speculative}
    assert set(drafts.values()) == offered
    for row in found:
        if row.feature in drafts:
            assert row.is_whole, row


def test_rows_of_the_most_served_models_reach_level_manager_and_one_call(found: list[Row]) -> None:
    rows_of_most_served = [row for row in found if row.model in MOST_SERVED]
    assert len(rows_of_most_served) > 20 * len(METHODS)
    assert sum(row.is_whole for row in rows_of_most_served) >= 0.95 * len(rows_of_most_served)


def test_a_prompt_of_several_chunks_is_no_decoding() -> None:
    """Blocks of hidden states are small, so that states are kept inside the short prompts."""
    features = FEATURES["extracted hidden states"]
    engine = Engine(load_model("LFM2-1.2B"), features)
    probe = probed(engine)
    assert probe.num_decoded >= NUM_REQUESTS
    assert probe.num_left == 0


def ask(*options: str, model: str = "Qwen3.5-27B", level: str = "manager") -> tuple[int, str]:
    """Ask about the engine of a command; return the exit code and the output."""
    words = [f"HYBRID_BLOCKS={level}", "vllm", "serve", model, *options]
    ran = run("doctor", "--", *words)
    return ran.code, ran.output


def connector(name: str) -> tuple[str, str]:
    """The option that gives an engine a KV connector."""
    return "--kv-transfer-config", json.dumps(asked(name) if name in OURS else transfer(name, {}))


DRAFTS = ("--spec-method", "mtp", "--spec-tokens", "2")


def test_the_command_says_what_an_engine_reaches_and_why_not_more() -> None:
    code, output = ask(*connector("NixlConnector"))
    assert code == 0
    assert "natural        no: the KV connector NixlConnector" in output
    assert "manager        yes" in output
    assert "HYBRID_BLOCKS=natural reaches level manager" in output
    assert "level manager (the KV connector NixlConnector); groups: …" in output


def test_the_command_says_what_a_level_costs_and_what_the_log_of_each_will_say() -> None:
    _, output = ask(*DRAFTS, "--enable-lora")
    version = f"hybrid_blocks {__version__} in vLLM {release_of(vllm.__version__)}"
    assert f"log            {version}: level natural; groups: …" in output
    assert f"log by default {version}: level manager; groups: …" in output
    assert "HYBRID_BLOCKS_EVENTS=all" in output
    assert "HYBRID_BLOCKS_RECORD=FILE, then hybrid-blocks shadow FILE" in output
    found = re.search(r"in 24 GiB (\d+) requests of 8,192 tokens .* natural, and (\d+) at", output)
    assert found
    assert int(found[1]) > int(found[2]) > 0


def test_less_than_what_is_asked_for_is_exit_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ("--kv-offloading-size", "64")
    assert ask(*refused)[0] == 0
    assert ask(*refused, level="natural")[0] == 3
    helped = ("HYBRID_BLOCKS=natural", "HYBRID_BLOCKS_OFFLOAD=1", "vllm", "serve", "Qwen3.5-27B")
    answer("doctor", "--", *helped, *refused)
    # Without a command the level is that of the variable.
    monkeypatch.setenv("HYBRID_BLOCKS", "natural")
    output = answer("doctor", "--model", "Phi-4")
    assert "this command: level natural, scheduler by default" in output


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        ("Qwen3.5-27B", "--enable-return-routed-experts", "auxiliary outputs"),
        ("Gemma-3-27B", "--disable-hybrid-kv-cache-manager", "no hybrid KV cache manager"),
        ("Qwen3.5-27B", "--kv-cache-dtype-skip-layers 0", "layers without KV quantization"),
        ("Qwen3.5-27B", "--use-replayssm", "ReplaySSM"),
        ("Phi-4", "--attention-backend FLEX_ATTENTION", "blocks as one dense run"),
        ("Qwen3.5-27B", "--kv-cache-dtype turboquant_k8v4", "blocks as one dense run"),
    ],
)
def test_an_option_that_level_natural_refuses_is_less(model: str, options: str, why: str) -> None:
    code, output = ask(*options.split(), model=model, level="natural")
    assert code == 3
    assert re.search(f"natural        no: .*{why}\n", output)
    assert "manager        yes" in output
    assert ("one call       no: auxiliary outputs" in output) is (why == "auxiliary outputs")


def test_states_need_the_hybrid_manager_of_vllm() -> None:
    code, output = ask("--disable-hybrid-kv-cache-manager")
    assert code == 2
    assert "vLLM plans no KV cache: Failed to promote" in output


@pytest.mark.parametrize(
    "options",
    [
        "--kv-cache-dtype fp8 --mamba-ssm-cache-dtype bfloat16",
        "--max-num-seqs 16",
        "--max-model-len 4096",
        "--kv-cache-memory-bytes 21474836480",
    ],
)
def test_the_cost_is_that_of_the_plan(options: str) -> None:
    words = ["--", "vllm", "serve", "Qwen3.5-27B", *options.split()]
    memory = [] if "memory" in options else ["--memory", "24GiB"]
    length = "4k" if "len" in options else "8k"
    report = json.loads(answer("plan", "--json", "-", *memory, "--lengths", length, *words))
    natural, theirs = (int(report[it]["lengths"][-1]["running"]) for it in ("natural", "vllm"))
    output = ask(*options.split())[1]
    size = "20 GiB" if "memory" in options else "24 GiB"
    tokens = "4,096" if "len" in options else "8,192"
    assert f"cost           in {size} {natural} requests of {tokens} tokens run at once" in output
    assert f"natural, and {theirs} at the other levels" in output


def test_a_cost_that_cannot_be_planned_says_why() -> None:
    output = ask("-dcp", "2", "-tp", "8")[1]
    assert "cost           not known: --decode-context-parallel-size 2: context par" in output


def test_a_model_of_states_alone_runs_at_level_manager(tmp_path: Path) -> None:
    fields = {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 1024, "num_heads": 32}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**fields, "head_dim": 64, "state_size": 128, "n_groups": 1}))
    output = answer("doctor", "--model", path)
    assert "natural        no: no attention layer\n" in output
    assert "manager        yes" in output


@pytest.mark.parametrize("name", OURS)
def test_this_packages_connectors_keep_level_natural_but_for_drafts_beside_reads(name: str) -> None:
    output = ask(*connector(name))[1]
    assert "natural        yes" in output
    assert "HYBRID_BLOCKS=natural reaches level natural" in output
    output = ask(*connector(name), *DRAFTS)[1]
    refused = "natural        no: drafts beside HybridNixlConnector"
    assert (refused in output) is (name != OFFLOADING)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("Qwen3.6-35B-A3B", ["--decode-context-parallel-size", "3"]),
        ("Qwen3.5-27B", ["-tp", "8", "--decode-context-parallel-size", "2"]),
        ("Qwen3.5-27B", ["-tp", "4", *connector(OFFLOADING)]),
        ("Phi-4", [*connector("ExampleConnector")]),
    ],
    ids=["dcp", "tp and dcp", "tp and ours", "example"],
)
def test_engines_of_ranks_and_connectors_are_constructed(model: str, options: list[str]) -> None:
    code, output = ask(*options, model=model)
    assert code == 0, output
    assert "HYBRID_BLOCKS=natural reaches level " in output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (connector("Carrier"), "known are HybridOffloadingConnector"),
        (connector("ExampleConnector"), "does not support hybrid models"),
        (("--decode-context-parallel-size", "0"), "--dcp must be positive: 0"),
        (("--decode-context-parallel-size", "9999"), "--dcp 9999: at most 1,024 ranks"),
        (("-tp", "4", "--decode-context-parallel-size", "3"), "no multiple of --dcp 3"),
        (("-tp", "3"), "--tp 3 does not divide"),
        (
            ("-tp", "4", "--decode-context-parallel-size", "2"),
            "4 KV heads of Qwen3.5-27B 2 times; give --tp 8 or more",
        ),
    ],
    ids=str,
)
def test_what_is_not_known_is_an_error_that_helps(options: tuple[str, ...], words: str) -> None:
    code, output = ask(*options)
    assert code == 2
    assert words in output


def test_a_method_and_its_draft_tokens_are_read() -> None:
    assert parse_speculative("mtp:2") == Speculative("mtp", 2)
    assert str(parse_speculative("ngram:4")) == "ngram:4"
    for text, told in (
        ("guess:1", "known are ngram, ngram_gpu"),
        ("mtp", "as in mtp:2"),
        ("mtp:129", "at most 128 draft tokens"),
    ):
        with pytest.raises(InvalidArgumentError, match=told):
            parse_speculative(text)
