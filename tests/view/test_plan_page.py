"""The page of ``plan --html``: its figures are those of ``plan``, and it needs no network."""

import json
import re
from pathlib import Path
from typing import Any

import hybrid_blocks
import pytest
from bokeh.models import Row
from bokeh.models.widgets import Div
from bokeh.plotting import figure
from command import answer, as_json, refusal
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.report import Plan, make_report, report
from hybrid_blocks.tools.view.plan_page import PlanPage
from hybrid_blocks.tools.view.plan_picture import PlanPicture, make_plan_picture
from scripts import Elements

QWEN = ("Qwen3.5-27B", "--memory", "24GiB")
MODELS = ("Qwen3.5-27B", "Gemma-3-27B", "gpt-oss-20b", "DeepSeek-V3", "Granite-4.0-Micro")


def picture_in(html: str) -> dict[str, Any]:
    """The data of a page, as its script reads it."""
    documents = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    for found in re.findall(r'"json",\s*\[("(?:[^"\\]|\\.)*")\]', documents[0]):
        picture: dict[str, Any] = json.loads(json.loads(found))
        return picture
    raise AssertionError("the page holds no picture")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "plan.html"
    answer("plan", *QWEN, "--lengths", "512,8k", "--html", path)
    return path.read_text()


def test_a_page_holds_the_figures_of_the_plan(html: str) -> None:
    report = as_json("plan", *QWEN, "--lengths", "512,8k")
    picture = picture_in(html)
    assert picture["lengths"][picture["start"]] == 512
    for side, name in zip(picture["sides"], ("vllm", "natural"), strict=True):
        for full in report[name]["lengths"]:
            at = side["at"][picture["lengths"].index(full["length"])]
            assert at["running"] == full["running"]
            assert at["concurrency"] == full["concurrency"]
            assert at["requests"] == full["budget"]["requests"]
    assert picture["warnings"] == report["warnings"]


def test_a_page_says_its_figures_as_the_tables_do(html: str) -> None:
    tables = answer("plan", *QWEN, "--lengths", "512,8k")
    picture = picture_in(html)
    for length in (512, 8192):
        at = [side["at"][picture["lengths"].index(length)] for side in picture["sides"]]
        vllm, natural = (rf"{one['shown']}\.\d\dx" for one in at)
        assert re.search(rf"requests of {length:,} +{natural} +{vllm}", tables)
        for name, text in at[1]["parts"].items():
            assert re.search(rf"{name} +{re.escape(text)} ", tables), name


def test_a_page_needs_no_network(html: str) -> None:
    page = Elements(html)
    assert not page.fetched
    (policy,) = page.policies
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert not re.search(r"@import|url\(\s*['\"]?https?:", html)


def test_a_page_says_how_it_was_made_and_what_its_words_mean(html: str, tmp_path: Path) -> None:
    assert "hybrid-blocks plan Qwen3.5-27B --memory 24GiB --lengths 512,8k --html " in html
    assert f"hybrid-blocks {hybrid_blocks.__version__}: " in html
    assert "Level natural is vLLM with this package and HYBRID_BLOCKS=natural" in html
    assert "48 Gated DeltaNet and 16 full-attention layers, sizes verified" in html
    assert "level natural runs more requests at once than vLLM" in html
    page = tmp_path / "estimated.html"
    command = ("vllm", "serve", "Qwen/Qwen3.5-27B-FP8", "--api-key", "open sesame", "--port", "80")
    answer("plan", "--gpu", "80GB", "--html", page, "--", "HF_TOKEN=hf_sesame", *command)
    words = page.read_text()
    assert "sesame" not in words
    assert "(estimate for 80GB), tp 1" in words
    assert "-- vllm serve Qwen/Qwen3.5-27B-FP8" in words
    assert "--port" not in words


def test_a_model_of_a_file_goes_by_its_architecture(tmp_path: Path) -> None:
    fields = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}
    fields |= {"num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(fields))
    answer("plan", config, "--memory", "64MiB", "--html", tmp_path / "page.html")
    picture = picture_in((tmp_path / "page.html").read_text())
    assert picture["model"] == "LlamaForCausalLM, 3 layers"
    assert picture["layers"] == f"3 full-attention layers, read from {config}"


def test_a_page_says_where_there_is_no_difference() -> None:
    for model, is_same in (("Phi-4", True), ("DeepSeek-V3", True), ("Qwen3.5-27B", False)):
        picture = picture_of(model, Deployment(max_model_len=8192))
        assert picture.is_same is is_same
        assert ("There is no difference in memory" in words_of(picture)) is is_same
    assert "nothing to gain in memory" in picture_of("Phi-4", Deployment()).verdict[0]


def test_a_narrow_window_stacks_the_two_sides(html: str) -> None:
    """Only the maps have a row of their own; a browser shows the rest as wide as its window."""
    page = PlanPage(picture_of("Qwen3.5-27B", Deployment(max_model_len=8192)))
    plots: Any = page.root.select({"type": figure})
    assert {plot.sizing_mode for plot in plots} == {"stretch_width"}
    assert "max-width: 800px" in html
    (maps,) = page.root.select({"type": Row})
    assert "flex-direction: column" in str(maps.properties_with_values()["stylesheets"][0].css)


def picture_of(model: str, deployment: Deployment) -> PlanPicture:
    loaded, memory = load_model(model), 48 * 2**30
    plan = Plan(loaded, memory, deployment)
    return make_plan_picture(plan, make_report(plan))


def words_of(picture: PlanPicture) -> str:
    boxes: Any = PlanPage(picture).root.select({"type": Div})
    return " ".join(box.text for box in boxes)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "deployment", [Deployment(), Deployment(tp=2, num_speculative_tokens=2, pp=2)]
)
def test_every_byte_of_a_memory_is_drawn(model: str, deployment: Deployment) -> None:
    picture = picture_of(model, deployment)
    for side in picture.sides:
        for at in side.at:
            held = sum(run.total for run in at.runs) * at.requests
            share = {
                part: sum(run.count * getattr(run, part) for run in at.runs) * at.requests
                for part in ("live", "rounding", "padding")
            }
            for part, nbytes in share.items():
                assert nbytes == round(at.shares[part] * picture.memory_bytes)
            assert held + side.null_bytes + side.tail_bytes <= picture.memory_bytes


def test_sglang_stands_beside_where_it_is_planned() -> None:
    model, memory, deployment = load_model("Qwen3.5-27B"), 24 * 2**30, Deployment()
    plan = Plan(model, memory, deployment)
    said = make_report(plan, [1024, 65_536])
    picture = make_plan_picture(plan, said)
    assert said.sglang is not None
    assert picture.sglang is not None
    for at in said.sglang.lengths:
        assert picture.sglang[picture.lengths.index(at.length)] == f"{int(at.running):,}"
    assert picture_of("Qwen3.5-27B", Deployment(pp=2)).sglang is None


def test_the_slider_reaches_the_lengths_asked_for_and_the_longest() -> None:
    model, memory, deployment = load_model("Qwen3.5-27B"), 24 * 2**30, Deployment()
    plan = Plan(model, memory, deployment)
    picture = make_plan_picture(plan, make_report(plan, [777]), first=777)
    assert picture.lengths == tuple(sorted(set(picture.lengths)))
    assert {777, 8192, 262_144} <= set(picture.lengths)
    assert picture.lengths[picture.start] == 777
    short = Deployment(max_model_len=100)
    plan = Plan(model, memory, short)
    assert make_plan_picture(plan, make_report(plan)).lengths == (100,)


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_a_page_that_cannot_be_written_is_refused_first(tmp_path: Path, command: str) -> None:
    missing = tmp_path / "none" / "page.html"
    assert f"--html {missing}: there is no folder" in refusal(command, "--html", missing)
    assert f"--html {tmp_path}: a folder" in refusal(command, "--html", tmp_path)


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_without_bokeh_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("hybrid_blocks.tools.cli.output.find_spec", lambda _: None)
    error = refusal(command, "--html", tmp_path / "page.html")
    assert error == "error: --html needs Bokeh: pip install '.[view]' in the checkout\n"


def test_page_and_tables_are_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def watched(name: str) -> Any:
        made = getattr(report, name)

        def make(*case: Any) -> Any:
            planned.append(name)
            return made(*case)

        return make

    for name in ("plan_natural", "plan_vllm", "plan_sglang"):
        monkeypatch.setattr(report, name, watched(name))
    answer("plan", *QWEN, "--html", tmp_path / "page.html")
    assert sorted(planned) == ["plan_natural", "plan_sglang", "plan_vllm"]
