"""The examples run, and what they name is there."""

import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hybrid_blocks import variables

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
    services = load(COMPOSE / "compose.yaml")["services"].values()
    volumes = [it for service in services for it in service["volumes"] if it.startswith(".")]
    hosts = [COMPOSE / volume.split(":")[0] for volume in volumes]
    assert len(hosts) == 6
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


def test_the_compose_file_starts_the_newest_tested_release_with_variables_of_the_package() -> None:
    vllm = load(COMPOSE / "compose.yaml")["services"]["vllm"]
    tested = (ROOT / "python/hybrid_blocks/vllm/surface/tested.txt").read_text().split()
    assert vllm["image"] == f"vllm/vllm-openai:v{tested[-1]}"
    known = {variable.name for variable in variables.VARIABLES}
    assert {name for name in vllm["environment"] if name.startswith("HYBRID_BLOCKS")} <= known


def shell_words(model: str, options: str) -> list[str]:
    """Return the command that the compose file's shell starts once its wheel is installed."""
    shell, flag, script = load(COMPOSE / "compose.yaml")["services"]["vllm"]["entrypoint"]
    assert (shell, flag) == ("sh", "-c")
    install, _, start = script.replace("$$", "$").partition(" && exec ")
    assert install == "pip install --quiet /wheels/*.whl"
    words = {"MODEL": model, "OPTIONS": options}
    printed = f'for word in {start}; do echo "$word"; done'
    return subprocess.check_output([shell, flag, printed], env=words, text=True).splitlines()


def test_the_compose_file_serves_the_model_and_the_options_that_it_gets() -> None:
    started = shell_words("org/model", "--max-num-seqs 4 --enable-lora")
    assert started == ["vllm", "serve", "org/model", "--max-num-seqs", "4", "--enable-lora"]


@pytest.mark.vllm
def test_vllm_reads_the_command_of_the_compose_file() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand  # noqa: PLC0415 - where vLLM is
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    parser: Any = FlexibleArgumentParser()  # type: ignore[no-untyped-call]
    ServeSubcommand().subparser_init(parser.add_subparsers())
    program, *words = shell_words("org/model", "--max-num-seqs 4")
    parsed = parser.parse_args(words)
    assert (program, parsed.model_tag, parsed.max_num_seqs) == ("vllm", "org/model", 4)


def test_the_page_lists_every_example() -> None:
    page = (EXAMPLES / "README.md").read_text()
    scripts = EXAMPLES.glob("*.sh")
    for file in [
        *EXAMPLES.glob("**/*.py"),
        *scripts,
        *EXAMPLES.glob("*.csv"),
        *COMPOSE.glob("*.yaml"),
    ]:
        assert str(file.relative_to(EXAMPLES)) in page
