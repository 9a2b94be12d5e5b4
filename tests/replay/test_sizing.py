import json
from pathlib import Path

import pytest
from hybrid_blocks.replay import ReplayError, num_blocks_for
from hybrid_blocks.replay.sizing import bytes_per_token, parse_bytes
from hybrid_blocks.trace.builder import TraceBuilder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("24GiB", 24 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("512MiB", 2**29),
        ("3kiB", None),
        ("-1GiB", None),
        ("GiB", None),
        ("", None),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(ReplayError, match="is not a size"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == expected


def test_a_block_holds_keys_and_values_of_all_layers(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "hidden_size": 4096,
            }
        )
    )
    assert bytes_per_token(str(config)) == 2 * 32 * 8 * 128 * 2


def test_the_pool_is_what_fits_beside_the_null_block() -> None:
    builder = TraceBuilder("one")
    builder.add([builder.fresh(40)], arrival=0, prompt_tokens=30, output_tokens=10)
    trace = builder.build()
    per_token = bytes_per_token("Granite-4.0-Micro")

    def blocks(memory: str = "", num_blocks: str | None = None) -> int:
        return num_blocks_for(
            trace,
            model="Granite-4.0-Micro",
            memory=memory,
            block_size=16,
            num_blocks=num_blocks,
        )

    assert blocks(str(10 * 16 * per_token)) == 9
    assert blocks(str(11 * 16 * per_token - 1)) == 9
    assert blocks(num_blocks="77") == 77
    assert blocks(num_blocks="unbounded") == 3
    with pytest.raises(ReplayError, match="null block and one block"):
        blocks(str(2 * 16 * per_token - 1))
    for wrong in ("0", "-3", "many"):
        with pytest.raises(ReplayError, match="neither a number of blocks"):
            blocks(num_blocks=wrong)


def test_a_model_with_bounded_layers_is_refused_with_what_to_do() -> None:
    with pytest.raises(ReplayError, match=r"state layers.*--num-blocks"):
        bytes_per_token("Qwen3.5-27B")
