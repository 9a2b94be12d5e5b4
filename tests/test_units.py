"""Sizes as people write them: one reader for every command."""

import pytest
from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.units import parse_count, parse_memory, parse_tokens, short_tokens


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("4096", 4096),
        ("4096B", 4096),
        ("24GiB", 24 * 2**30),
        ("13.61GiB", 14_613_626_224),
        ("13GB", 13 * 10**9),
        ("1.5 GB", 1_500_000_000),
        ("0.5TiB", 2**39),
        (" 512mib ", 2**29),
        ("3kB", 3000),
        ("3KiB", 3072),
    ],
)
def test_binary_and_decimal_units_are_read_as_what_they_say(text: str, nbytes: int) -> None:
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lots", "is no size; write for example 24GiB or 13GB"),
        ("", "is no size"),
        ("GiB", "is no size"),
        ("1e3", "is no size"),
        ("-1GiB", "must be positive"),
        ("0", "must be positive"),
        ("0.2B", "must be positive"),
        ("24", "24 has no unit and would be 24 B; did you mean 24GiB?"),
        ("13.61", "did you mean 13.61GiB?"),
        ("3furlongs", "unknown unit furlongs"),
        ("24G", "unknown unit G.* did you mean 24GB?"),
        ("34Gi", "unknown unit Gi; known are .*; did you mean 34GiB?"),
        ("2mi", "did you mean 2MiB?"),
        ("1025TiB", "1025TiB: more than the 1024 TiB at most"),
        ("9" * 5000, "is no size"),
    ],
)
def test_a_size_that_is_none_says_what_would_do(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        parse_memory(text)


def test_tokens_are_counted_in_powers_of_two() -> None:
    assert [parse_tokens(text) for text in ("512", "4k", "1M")] == [512, 4096, 2**20]
    for wrong in ("4q", "0", "-4", "1.5k"):
        with pytest.raises(InvalidArgumentError, match="no number of tokens"):
            parse_tokens(wrong)
    for most in ("2048M", "9999999999"):
        with pytest.raises(InvalidArgumentError, match="at most 2,147,483,647"):
            parse_tokens(most)


@pytest.mark.parametrize("text", ["", "one", "1.5", "nan", "9" * 5000, "0", "-3", "11"])
def test_a_count_is_a_whole_number_of_a_range(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^--blocks "):
        parse_count(text, "--blocks", 10)


def test_a_count_may_have_signs_and_spaces() -> None:
    assert [parse_count(it, "--blocks", 10, least=0) for it in ("0", " 7 ", "+10")] == [0, 7, 10]


@pytest.mark.parametrize("tokens", [1, 512, 1023, 1024, 1366, 59_392, 262_144, 2**20])
def test_short_tokens_are_read_again(tokens: int) -> None:
    assert parse_tokens(short_tokens(tokens).replace(",", "")) == tokens


def test_tokens_are_short_only_where_that_is_exact() -> None:
    assert [short_tokens(n) for n in (1000, 1024, 16_384, 2**20)] == ["1,000", "1k", "16k", "1M"]
