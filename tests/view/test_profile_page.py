"""The page of ``profile --html``: its figures are those of the table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bokeh.models import ColumnDataSource
from hybrid_blocks.cli import app
from hybrid_blocks.profile.probes import Span, Step
from hybrid_blocks.profile.report import sections
from hybrid_blocks.profile.result import PARTS, Findings, summarize
from hybrid_blocks.profile.workload import Settings
from hybrid_blocks.view.page import MadeBy, html_of
from hybrid_blocks.view.profile_page import MOST_POINTS, profile_page
from test_plan_page import References
from typer.testing import CliRunner

STEP = Step(
    begin=0, admitted=10_000, scheduled=50_000, resumed=60_000, updated=90_000,
    num_scheduled=4, num_running=4, num_finished=1, only_decodes=False,
)  # fmt: skip
SPAN = Span(part="match", start=20_000, length=8_000, requests=4)
SETTINGS = Settings(level="", requests=4)


def findings(*steps: Step) -> Findings:
    result = summarize(list(steps), list(steps), [SPAN])
    return Findings(result=result, decisions="", outputs="", steps=list(steps), spans=[SPAN])


def found() -> dict[str, Findings]:
    fast = replace(STEP, scheduled=14_000, updated=63_000)
    return {"off": findings(STEP, STEP), "batched": findings(fast, fast)}


def source(page: Any, name: str) -> dict[str, Any]:
    model = page.get_model_by_name(name)
    assert isinstance(model, ColumnDataSource)
    return {key: list(values) for key, values in model.data.items()}


def test_parts_of_a_step_end_where_the_step_does() -> None:
    page = profile_page(SETTINGS, found(), 10)
    drawn = [source(page, part) for part in PARTS]
    for at, one in enumerate(found().values()):
        assert [part["us"][at] for part in drawn] == list(one.result.parts_us.values())
        assert drawn[-1]["right"][at] == pytest.approx(sum(one.result.parts_us.values()))
        assert sum(part["share"][at] for part in drawn) == pytest.approx(100)


def words(page: Any, name: str) -> str:
    return str(page.get_model_by_name(name).text)


def test_the_page_says_every_row_of_the_table() -> None:
    given = found()
    page = profile_page(SETTINGS, given, 10, MadeBy("1.2.3", "hybrid-blocks profile"))
    results = {level: one.result for level, one in given.items()}
    for section in sections(results, 10):
        for name, texts in section:
            cells = "".join(f"<td class=n>{one}</td>" for one in texts)
            assert f"<td>{name}</td>{cells}" in words(page, "figures")
    assert "10.0x as fast" in words(page, "head")
    assert "hybrid-blocks 1.2.3" in words(page, "foot")


def test_a_long_run_keeps_its_longest_steps() -> None:
    steps = [STEP] * (5 * MOST_POINTS)
    steps[1234] = replace(STEP, updated=900_000)
    page = profile_page(SETTINGS, {"off": findings(*steps)}, 10)
    kept = source(page, "steps of off")
    assert len(kept["step"]) <= MOST_POINTS
    assert kept["us"][kept["step"].index(1234)] == 880.0


def test_the_page_needs_no_network() -> None:
    references = References()
    references.feed(html_of(profile_page(SETTINGS, found(), 10)))
    assert not references.fetched
    assert references.policies[0].startswith("default-src 'none'")


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_blocks.cli.profile.need_vllm", lambda: None)
    monkeypatch.setattr("hybrid_blocks.cli.profile.profile", lambda *_: found())
    page = tmp_path / "profile.html"
    command = ["profile", "--levels", "off,batched", "--html", str(page)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert f"hybrid-blocks profile --levels off,batched --html {page}" in page.read_text()


def test_a_page_is_refused_before_anything_runs(tmp_path: Path) -> None:
    target = tmp_path / "none" / "page.html"
    result = CliRunner().invoke(app, ["profile", "--html", str(target)])
    assert result.exit_code == 2
    assert f"--html {target}: there is no folder" in result.stderr


def test_every_level_is_named_with_its_figure() -> None:
    given = found()
    faster = msgspec.structs.replace(given["batched"].result, step_us_p50=123.0)
    given["batched"] = msgspec.structs.replace(given["batched"], result=faster)
    head = words(profile_page(SETTINGS, given, 10), "head")
    assert "batched<br><b>123</b>" in head
