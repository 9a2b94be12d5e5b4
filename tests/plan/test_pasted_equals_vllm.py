"""The recorded options are those of vLLM's own parser, and are read as it reads them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.read import options
from hybrid_blocks.tools.read.arguments import parse
from hybrid_blocks.tools.read.words import find_server
from hybrid_blocks.vllm.surface import support
from vllm import __version__
from vllm.entrypoints.common.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm_options import encode, record

COMMANDS = tomllib.loads((Path(__file__).parent / "pasted_commands.toml").read_text())["command"]
READ = [case["text"] for case in COMMANDS if "refused" not in case]

needs_release = pytest.mark.skipif(
    not __version__.startswith(options.recorded().release), reason="options of another release"
)


@pytest.fixture(scope="module")
def parser() -> Any:
    make: Any = FlexibleArgumentParser
    return make_arg_parser(make())


@needs_release
def test_the_recorded_options_are_those_of_vllm() -> None:
    found = record()
    assert found == options.recorded(), "python tests/plan/vllm_options.py"
    assert encode(found) == Path(options.__file__).with_name("options.json").read_bytes()


@needs_release
@pytest.mark.parametrize("text", READ, ids=lambda text: text.strip()[:60])
def test_values_are_those_of_vllms_parser(parser: Any, text: str) -> None:
    arguments = list(find_server([text]).arguments)
    parsed = parse(arguments)
    theirs = parser.parse_args(arguments)
    assert parsed.model in {theirs.model_tag, theirs.model}
    others = [one for one in arguments if one.startswith("-") and not one.startswith("--model")]
    assert bool(parsed.values) == bool(others)
    for name, value in parsed.values.items():
        given = getattr(theirs, name)
        if isinstance(given, bool | int | float | str | list | dict | None):
            assert value == given, name


DOTTED = [
    "-O3",
    "-O=2",
    "-O 1",
    "--optimization_level=2",
    "-cc.mode=3",
    "-cc.pass_config.fuse_norm_quant true",
    "--compilation-config.mode 3 --compilation_config.cudagraph_mode=NONE",
    "--compilation-config.cudagraph_capture_sizes+ 1,2,4",
    "--speculative-config.method mtp --speculative-config.num_speculative_tokens 2",
    "--speculative_config.method=ngram --speculative-config.num_speculative_tokens=3",
    "--hf-overrides.a.b=1 --hf-overrides.a.c 2 --hf-overrides.l+=x,y --hf-overrides.l+=z",
    "--hf-overrides.x -1 --hf-overrides.size=1k --hf-overrides.nothing=null",
    "--kv-transfer-config.kv_connector X --kv-transfer-config.kv_role kv_both",
    "--gpu-memory-utilization .92 --max-model-len=1.5k",
    "--revision main --tensor_parallel_size=2 -dp=1",
]


@needs_release
@pytest.mark.parametrize("text", DOTTED)
def test_dotted_options_are_merged_as_vllms_parser_does_it(parser: Any, text: str) -> None:
    arguments = ["m", *text.split()]
    parsed = parse(arguments)
    theirs = parser.parse_args(arguments)
    assert parsed.values
    for name, value in parsed.values.items():
        given = getattr(theirs, name)
        if isinstance(given, bool | int | float | str | list | dict | None):
            assert value == given, name


KEYED = [
    *("-cc 3", "-cc=3", "-cc3", "-cc x", "-cc [3]", "-cc.mode 9", "-cc.mode=-1", "-cc.level=2"),
    *("-cc.mode 3", "-cc.mode=0", "-cc.mode NONE", "-ac.backend FLASH_ATTN", "-ac.kernel fast"),
    *("-O3", "-O 3", "-O=2", "-O", "-O 7", "-tp2", "-tp=2", "--kv-transfer-config 3"),
    *("--kv-events-config.publisher zmq", "--kv-events-config.topics a", "-dc.x=1"),
    *("-cc {}", '-cc {"mode":3}', '-cc {"level":3}', "--structured-outputs-config.backend auto"),
]


@needs_release
@pytest.mark.parametrize("text", KEYED)
def test_short_and_dotted_forms_are_refused_as_by_vllms_parser(parser: Any, text: str) -> None:
    arguments = ["m", *text.split()]
    try:
        parser.parse_args(arguments)
    except SystemExit:
        with pytest.raises(PlanError):
            parse(arguments)
    else:
        parse(arguments)


def test_the_recorded_release_is_one_that_is_tested() -> None:
    assert any(version.startswith(options.recorded().release) for version in support.TESTED)
