"""From ``config.json``, a directory, a name or a description to layers."""

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hybrid_blocks.model import Model, PlanError, Rank, from_config, load_layers, load_model, table
from hybrid_blocks.model.described import EXAMPLE
from hybrid_blocks.model.layer import State
from hybrid_blocks.model.table import entries
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.report import Plan, make_report

RECORDED = json.loads((Path(__file__).parents[1] / "architectures/recorded.json").read_bytes())

LLAMA: dict[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _kinds(model: Model) -> dict[str, int]:
    return dict(
        Counter(
            it.cache.family if isinstance(it.cache, State) else it.cache.kind for it in model.layers
        )
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gpt-oss-20b", {"sliding_window": 12, "full": 12}),
        ("Gemma-3-27B", {"sliding_window": 52, "full": 10}),
        ("Gemma-4-26B-A4B", {"sliding_window": 25, "full": 5}),
        ("Gemma-4-E2B", {"sliding_window": 12, "full": 3}),
        ("Llama-4-Scout-17B-16E", {"chunked": 36, "full": 12}),
        ("Mistral-7B-v0.1", {"sliding_window": 32}),
        ("Phi-3-mini-4k", {"sliding_window": 32}),
        ("Phi-4", {"full": 40}),
        ("DeepSeek-V3", {"mla": 61}),
    ],
)
def test_a_built_in_attention_model_has_its_layers(name: str, kinds: dict[str, int]) -> None:
    assert _kinds(load_model(name)) == kinds


def test_the_table_says_how_far_each_entry_was_verified() -> None:
    found = {load_model(name).verified for name in entries()}
    assert found == {"verified", "partly verified", "unverified"}


def test_a_file_a_directory_and_a_text_config_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    nested = tmp_path / "nested.json"
    nested.write_text(json.dumps({"model_type": "wrapper", "text_config": LLAMA}))
    by_directory = load_model(str(tmp_path))
    assert load_model(str(tmp_path / "config.json")).layers == by_directory.layers
    assert load_model(str(nested)).layers == by_directory.layers
    assert by_directory.verified == "config"


def test_names_are_found_in_any_case_and_with_their_owner() -> None:
    assert load_model("qwen/qwen3.5-27b").name == "Qwen3.5-27B"


def test_few_heads_are_replicated_and_others_must_divide() -> None:
    cache = from_config(LLAMA, "llama").layers[0].cache
    assert not isinstance(cache, State)
    assert cache.token_bytes(Rank(tp=4)) == cache.token_bytes(Rank(tp=2)) == 2 * 64 * 2
    with pytest.raises(PlanError, match="--tp 3 does not divide 4 attention heads"):
        cache.token_bytes(Rank(tp=3))


def test_speculation_adds_the_draft_layer_and_columns() -> None:
    model = load_model("Qwen3.5-27B")
    assert len(model.active_layers(2)) == len(model.active_layers(0)) + 1
    state = model.layers[0].cache
    assert isinstance(state, State)
    columns = state.tensors(Rank(num_speculative_tokens=2))[0].shape[0]
    assert columns == 4 - 1 + 2


def test_a_list_of_layer_names_reads_like_the_pattern() -> None:
    _, entry = table.find("Nemotron-Nano-9B-v2")
    fields, _ = table.fields(entry)
    names = {"*": "attention", "M": "mamba", "-": "mlp", "E": "moe"}
    pattern = fields.pop("hybrid_override_pattern")
    listed = {**fields, "layers_block_type": [names[letter] for letter in str(pattern)]}
    assert from_config(listed, "listed").layers == load_model("Nemotron-Nano-9B-v2").layers


def test_a_pattern_of_the_wrong_length_or_with_an_unknown_kind_is_refused() -> None:
    _, entry = table.find("Nemotron-H-8B")
    fields, _ = table.fields(entry)
    with pytest.raises(PlanError, match="has 3 entries for 52 layers"):
        from_config({**fields, "hybrid_override_pattern": "M*-"}, "short")
    with pytest.raises(PlanError, match="names Q; known are"):
        from_config({**fields, "hybrid_override_pattern": "M" * 51 + "Q"}, "odd")


def test_an_unknown_architecture_names_what_is_missing_and_how_to_describe_it() -> None:
    with pytest.raises(PlanError) as caught:
        from_config({"model_type": "new_hybrid", "num_hidden_layers": 8}, "new")
    message = str(caught.value)
    assert "new_hybrid" in message
    assert "num_attention_heads, num_key_value_heads, head_dim" in message
    assert "--layers" in message
    assert EXAMPLE in message
    assert "\n" not in message


def test_missing_fields_are_named_all_at_once() -> None:
    fields: dict[str, object] = {"model_type": "plamo2", "num_hidden_layers": 8}
    missing = (
        "mamba_num_heads, hidden_size_per_head, mamba_d_state, mamba_step, attention_window_size, "
        "num_attention_heads or n_head, hidden_size"
    )
    with pytest.raises(PlanError, match=f"^plamo: config.json lacks {missing}$"):
        from_config(fields, "plamo")


@pytest.mark.parametrize("value", [-1, 1.5, "8", True, 0])
def test_a_count_that_is_no_positive_integer_is_refused(value: object) -> None:
    with pytest.raises(PlanError, match="num_hidden_layers"):
        from_config({**LLAMA, "num_hidden_layers": value}, "llama")


def test_the_example_of_a_description_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(EXAMPLE)
    model = load_layers(str(path))
    assert _kinds(model) == {"mamba2": 8, "full": 8}
    assert model.num_layers == 16


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ('{"layers": []}', "no layer keeps a cache"),
        ('{"layers": [{"pattern": [{"kind": "full", "kv_heads": 8}]}]}', "head_dim"),
        ('{"layers": [{"pattern": [{"kind": "quux"}]}]}', "quux"),
        ('{"layers": [{"repeat": 0, "pattern": []}]}', "repeat"),
    ],
)
def test_a_wrong_description_gets_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=complaint) as caught:
        load_layers(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("published", "row"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen3-Next-80B-A3B"),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "Nemotron-Nano-9B-v2"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Nemotron-3-Nano-30B-A3B"),
        ("nvidia/Nemotron-H-8B-Base-8K", "Nemotron-H-8B"),
        ("google/gemma-3-27b-it", "Gemma-3-27B"),
        ("gpt-oss-20b", "gpt-oss-20b"),
    ],
)
def test_a_published_name_is_that_of_its_row(published: str, row: str) -> None:
    found, _ = table.find(published)
    assert found == row


@pytest.mark.parametrize("quantised", ["Qwen/Qwen3.6-35B-A3B-FP8", "nvidia/Qwen3.5-27B-NVFP4"])
def test_a_name_of_quantised_weights_is_refused_and_the_row_named(quantised: str) -> None:
    with pytest.raises(PlanError, match=r"near it: Qwen3\.\d-\d+B"):
        table.find(quantised)


WRONG: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, 1.5, float("nan"), float("inf")),
    *("", "x", "auto", "1", [], [[1]], [None], [{}], [0] * 3, ["full_attention"], {}, {"a": 1}),
)


def _places(fields: Any) -> Iterator[tuple[Any, Any]]:
    """Each object and list of a configuration with each of its keys or first places."""
    keys = list(fields) if isinstance(fields, dict) else range(min(len(fields), 3))
    for key in keys:
        yield fields, key
        if isinstance(fields[key], dict | list):
            yield from _places(fields[key])


@pytest.mark.parametrize("part", range(4))
def test_any_value_in_any_field_of_a_configuration_is_planned_or_refused(part: int) -> None:
    """The same fields in each run: of built-in models, and of those that vLLM has a class for."""
    known = [table.fields(entry)[0] for entry in entries().values()]
    known += [row["config"] for row in RECORDED.values()]
    counts = Counter[str]()
    for seed in range(part * 200, part * 200 + 200):
        random = Random(seed)
        fields = copy.deepcopy(random.choice(known))
        for _ in range(random.choice((1, 1, 2))):
            holder, key = random.choice(list(_places(fields)))
            holder[key] = copy.deepcopy(random.choice(WRONG))
        try:
            model = from_config(fields, "changed")
            make_report(Plan(model, 200 * 2**30, Deployment(max_model_len=4096)))
            counts["planned"] += 1
        except PlanError:
            counts["refused"] += 1
    assert min(counts.values()) > 50


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({**LLAMA, "architectures": [[1], {}]}, None),
        ({**LLAMA, "hidden_size": 2}, "hidden_size 2 is less than 4 heads"),
        ({**LLAMA, "model_type": "domyn_edge", "window_sizes": [["x"], [0]]}, "window_sizes"),
    ],
)
def test_values_of_a_wrong_kind_are_no_crash(fields: dict[str, object], says: str | None) -> None:
    if says is None:
        assert from_config(fields, "m").layers == from_config(LLAMA, "m").layers
        return
    with pytest.raises(PlanError, match=says):
        from_config(fields, "m")


def test_a_model_of_states_alone_is_planned_without_pools_of_sglang() -> None:
    fields = {**table.fields(entries()["Qwen3-Next-80B-A3B"])[0], "num_hidden_layers": 1}
    report = make_report(Plan(from_config(fields, "m"), 2**30, Deployment(max_model_len=4096)))
    assert report.sglang is None
    assert "no attention" in str(report.sglang_refusal)


def test_an_empty_pattern_takes_no_time_however_often_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"layers": [{"pattern": [], "repeat": 2**62}]}))
    with pytest.raises(PlanError, match="no layer keeps a cache"):
        load_layers(str(path))
