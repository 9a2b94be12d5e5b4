"""A frame says what an engine does, at every level and width."""

import re
from pathlib import Path

import pytest
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import Change, GoneError, Reading, Sample, parse
from shown import MODEL, shown

URL = "http://localhost:8000/metrics"


def lines(folder: Path, level: str, width: int = 80, *, offloads: bool = False) -> list[str]:
    """The frame of an engine after two seconds and one step."""
    texts = [shown(folder, level, steps, offloads=offloads) for steps in (1, 2)]
    before, now = (parse(text, 10.0 + 2 * step) for step, text in enumerate(texts, 1))
    return frame(View(URL, before, now), width).plain.splitlines()


def row(found: list[str], name: str) -> str:
    """Return the values behind a name, each gap one space."""
    beginning = f"  {name:<18}"
    (line,) = [line for line in found if line.startswith(beginning)]
    return " ".join(line.removeprefix(beginning).split())


def without_bar(text: str) -> str:
    return re.sub(r"^[█▏▎▍▌▋▊▉]+ ", "", text)


def test_level_natural_shows_slabs_hits_and_checkpoints(tmp_path: Path) -> None:
    found = lines(tmp_path, "natural")
    assert found[1] == f"{MODEL} · engine 0 · level natural · 0.1.0 in vLLM 0.33.0"
    assert row(found, "running") == "12 waiting 3 preempted 1/s"
    assert row(found, "found") == "62% of prompt tokens generated 750 tokens/s"
    assert "slabs 663" in found
    assert without_bar(row(found, "states")) == "132 20%"
    assert row(found, "states blocks") == "live 88 cached 33 free 11"
    assert row(found, "reserved") == "16 GiB needed 93.8% cached 6.2%"
    assert "hits 48/s by their end" in found
    assert without_bar(row(found, "no checkpoint")) == "2.5/s 5%"
    assert row(found, "attention evicted") == "0/s 0%"
    assert row(found, "written") == "12/s prompt 2 followed 10"
    assert row(found, "dropped") == "7.5/s superseded 6 evicted 1.5"
    assert row(found, "used") == "20/s"
    assert "offload" not in found


def test_level_manager_shows_blocks_and_why_no_higher_level_runs(tmp_path: Path) -> None:
    found = lines(tmp_path, "manager")
    assert "level manager (a KV connector)" in found[1]
    assert "blocks 501" in found
    assert without_bar(row(found, "cached")) == "125 25%"
    assert not any("hits" in line or "slabs" in line for line in found)


def test_an_engine_without_the_plugin_is_named_so(tmp_path: Path) -> None:
    found = lines(tmp_path, "off")
    assert found[1] == "hybrid_blocks is not active in this engine"
    assert row(found, "running").startswith("12 ")


def test_offload_shows_its_tiers(tmp_path: Path) -> None:
    found = lines(tmp_path, "natural", offloads=True)
    assert row(found, "host memory") == "3 GiB in 100/s out 25/s evicted 3.5/s"
    assert row(found, "disk") == "20 GiB 6,000 chunks"
    assert row(found, "objects") == "0 chunks 0 to upload"


def test_bars_are_as_long_as_shares(tmp_path: Path) -> None:
    def bars(width: int) -> dict[str, int]:
        found = lines(tmp_path, "natural", width)
        return {
            name: line.count("█")
            for name in ("attention", "states", "free")
            for line in found
            if line.startswith(f"  {name}  ")
        }

    wide = bars(136)
    assert wide == {"attention": 62, "states": 19, "free": 18}
    narrow = bars(80)
    assert all(0 < narrow[name] < wide[name] for name in wide)


@pytest.mark.parametrize("width", [10, 25, 30, 40, 60, 80, 200])
@pytest.mark.parametrize("level", ["natural", "manager", "off"])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, level: str, width: int) -> None:
    found = lines(tmp_path, level, width, offloads=True)
    assert max(map(len, found)) <= width


def test_a_narrow_terminal_still_shows_each_figure(tmp_path: Path) -> None:
    found = " ".join(" ".join(lines(tmp_path, "natural", 34, offloads=True)).split())
    for text in ("waiting 3", "preempted 1/s", "states 132", "no checkpoint 2.5/s", "cached 33"):
        assert text in found
    for text in ("superseded 6", "used 20/s", "evicted 3.5/s", "6,000 chunks"):
        assert text in found


def test_a_first_frame_counts_since_the_engine_began(tmp_path: Path) -> None:
    reading = parse(shown(tmp_path, "natural"), 1.0)
    found = frame(View(URL, None, reading), 80).plain.splitlines()
    assert "hits 95 by their end" in found
    assert row(found, "used") == "40"


def test_a_problem_stands_above_the_last_figures(tmp_path: Path) -> None:
    reading = parse(shown(tmp_path, "natural"), 1.0)
    found = frame(View(URL, None, reading, "no figures: refused"), 80).plain.splitlines()
    assert found[:2] == [URL, "no figures: refused"]
    assert "slabs 663" in found
    assert frame(View(URL, problem="waiting"), 80).plain.splitlines() == [URL, "waiting"]


def test_a_label_cannot_steer_the_terminal() -> None:
    labels = {"model_name": "\x1b[2Jm", "engine": "0", "level": "pool"}
    reading = Reading(0.0, [Sample("hybrid_blocks_info", labels, 1.0)])
    assert "\x1b" not in frame(View(URL, None, reading), 80).plain


def test_a_counter_that_fell_began_again() -> None:
    before, now = (Reading(at, [Sample("c_total", {}, value)]) for at, value in ((0, 90), (2, 10)))
    assert Change(before, now).counted("c_total") == 5


def test_figures_of_engines_are_added_unless_one_is_asked_for(tmp_path: Path) -> None:
    both = shown(tmp_path, "natural") + shown(tmp_path, "natural", engine="1")
    assert parse(both, 0.0).total("hybrid_blocks_slabs") == 2 * 663
    assert parse(both, 0.0, "1").total("hybrid_blocks_slabs") == 663
    assert parse(both, 0.0, "2").total("hybrid_blocks_slabs") == 0
    assert parse(both, 0.0, "2").engines == {"0", "1"}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_figure_without_a_number_is_left_out(tmp_path: Path, value: str) -> None:
    figure = r"^(hybrid_blocks_\w+(?:\{.*\})?) \S+$"
    text = re.sub(figure, rf"\1 {value}", shown(tmp_path, "natural"), flags=re.M)
    assert value in text
    drawn = frame(View(URL, None, parse(text, 0.0)), 80).plain
    assert "nan" not in drawn
    assert "inf" not in drawn


@pytest.mark.parametrize("text", ["<html>no</html>", "a{b=", "hybrid_blocks_slabs{} many"])
def test_what_is_no_text_of_prometheus_is_refused(text: str) -> None:
    with pytest.raises(GoneError, match="no text of Prometheus"):
        parse(text, 0.0)
