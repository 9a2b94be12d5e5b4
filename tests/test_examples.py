"""The examples run, and what they name is there."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
COMPOSE = EXAMPLES / "compose"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_engine_serves_conversations_from_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    engine = runpy.run_path(str(EXAMPLES / "engine.py"))["main"]()
    assert "11,408 prompt tokens were cached" in capsys.readouterr().out
    engine.manager.reset()  # which a request with blocks would refuse
    assert not any(engine.left.values())


def test_the_engine_serves_the_same_in_too_little_memory() -> None:
    names = runpy.run_path(str(EXAMPLES / "engine.py"))
    engine = names["Engine"](num_slabs=5)
    prompts = [names["np"].arange(550, dtype="int32") + 1000 * number for number in range(8)]
    for number, prompt in enumerate(prompts):
        engine.add(str(number), prompt, max_tokens=200)
    for _ in range(20_000):
        if not (engine.waiting or engine.running):
            break
        engine.step()
    assert engine.preempted > 0
    assert list(engine.left.values()) == [0] * 8


def test_more_memory_finds_more_of_ones_own_traffic() -> None:
    names = runpy.run_path(str(EXAMPLES / "replay_own_traffic.py"))
    results = names["results"](EXAMPLES / "traffic.csv", "Granite-4.0-Micro", ["1GiB", "16GiB"])
    small, large = (result.hit_rate for result in results.values())
    assert 0 < small < large < 1
    assert all(result.requests == 149 for result in results.values())


def test_the_compose_file_names_files_that_are_there() -> None:
    built = ROOT / "build/wheels"
    hosts = [
        COMPOSE / volume.split(":")[0]
        for service in load(COMPOSE / "compose.yaml")["services"].values()
        for volume in service["volumes"]
        if volume.startswith(".")
    ]
    assert len(hosts) == 5
    assert all(host.exists() or host.resolve() == built for host in hosts), hosts


def test_the_services_of_the_compose_file_find_each_other() -> None:
    services = load(COMPOSE / "compose.yaml")["services"]
    (scraped,) = load(ROOT / "dashboards/prometheus.yml")["scrape_configs"]
    (target,) = scraped["static_configs"][0]["targets"]
    (source,) = load(COMPOSE / "grafana/source.yaml")["datasources"]
    for address in (target, source["url"].removeprefix("http://")):
        name, port = address.split(":")
        assert any(mapping.endswith(f":{port}") for mapping in services[name]["ports"])
    (provider,) = load(COMPOSE / "grafana/boards.yaml")["providers"]
    assert any(f":{provider['options']['path']}/" in it for it in services["grafana"]["volumes"])


def test_the_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    scripts = EXAMPLES.glob("*.sh")
    for file in [
        *EXAMPLES.glob("*.py"),
        *scripts,
        *EXAMPLES.glob("*.csv"),
        *COMPOSE.glob("*.yaml"),
    ]:
        assert str(file.relative_to(EXAMPLES)) in page
