"""``plan --gpu``: the free memory of cards, estimated."""

import json
import re

import estimate_error
import pytest
from command import answer, as_json, refusal, run
from hybrid_blocks.geometry.card import CARDS, find
from hybrid_blocks.tools.plan.memory import parse_cards, sold_with


def _note(*arguments: str) -> str:
    (note,) = re.findall(
        r"^note: (.* are an estimate: .*)$", run("plan", *arguments).output, re.MULTILINE
    )
    return str(note)


def test_an_estimate_says_so_and_shows_its_parts() -> None:
    note = _note("Qwen3.5-27B", "--gpu", "H100-80GB", "--max-model-len", "8k")
    assert "0.92 x 79.11 GiB of H100-80GB = 72.78 GiB" in note
    assert "less 50.29 GiB of weights (27.0 billion parameters, by its name)" in note
    assert "--memory gives it exactly" in note


def test_the_parts_add_up_to_the_memory_that_is_planned() -> None:
    found = as_json("plan", "Qwen3.5-27B", "--gpu", "2xL40S", "--max-model-len", "8k")
    assert found["deployment"]["tp"] == 2
    (note,) = (note for note in found["notes"] if "estimate" in note)
    free, _, _, usable, weights, _, besides = map(float, re.findall(r"\d+\.\d+", note)[:7])
    assert usable - weights - besides == pytest.approx(free, abs=0.03)
    assert found["memory_bytes"] / 2**30 == pytest.approx(free, abs=0.006)


def test_a_pasted_command_gives_ranks_share_and_format() -> None:
    command = ("vllm", "serve", "Qwen/Qwen3.5-27B-FP8", "-tp", "2", "--max-model-len", "8192")
    note = _note("--gpu", "2xH100", "--", *command, "--gpu-memory-utilization", "0.85")
    assert "0.85 x 79.11 GiB" in note
    weights = re.search(r"less (\d+\.\d+) GiB of weights", note)
    assert weights is not None
    assert 12.5 < float(weights[1]) < 15


def test_weights_in_fewer_bits_leave_more() -> None:
    command = ("vllm", "serve", "Qwen/Qwen3.5-27B", "--max-model-len", "8192")
    notes = [_note("--gpu", "H100", "--", *command, *it) for it in ((), ("--quantization", "fp8"))]
    free = [float(note.split()[0]) for note in notes]
    assert free[1] > free[0] + 15


def test_the_ending_of_a_name_tells_the_format_without_a_command_too() -> None:
    plain = _note("Qwen/Qwen3.5-27B-FP8", "--gpu", "H100")
    assert plain == _note("--gpu", "H100", "--", "vllm", "serve", "Qwen/Qwen3.5-27B-FP8")
    named = "note: Qwen3.5-27B-FP8 is planned as Qwen3.5-27B: other weights"
    assert named in run("plan", "Qwen3.5-27B-FP8", "--gpu", "H100").output
    assert "neither a file" in refusal("plan", "Unheard-27B-FP8", "--gpu", "H100")


@pytest.mark.parametrize("gpu", ["2xH100-80GB", "B200", "2xA100-40GB", "2x48GiB"])
def test_options_that_are_left_out_are_those_of_a_pasted_command(gpu: str) -> None:
    tp = gpu.partition("x")[0].replace("B200", "1")
    command = ("vllm", "serve", "Qwen/Qwen3.5-27B", "-tp", tp)
    pasted = json.loads(answer("plan", "--gpu", gpu, "--json", "-", "--", *command))
    plain = as_json("plan", "Qwen/Qwen3.5-27B", "--gpu", gpu)
    for key in ("memory_bytes", "verdict", "warnings"):
        assert plain[key] == pasted[key]
    assumed = [note for note in pasted["notes"] if "is assumed, as vLLM does on" in note]
    assert assumed == [note for note in plain["notes"] if "is assumed" in note] != []
    given = ("--max-num-seqs", "512", "--max-num-batched-tokens", "4096")
    told = as_json("plan", "Qwen/Qwen3.5-27B", "--gpu", gpu, *given)
    batch = (told["deployment"]["max_num_seqs"], told["deployment"]["max_num_batched_tokens"])
    assert batch == (512, 4096)
    assert not any("is assumed" in note for note in told["notes"])


@pytest.mark.parametrize(
    ("memory", "gpu", "told"),
    [
        ("24GiB", "T4", "note: 24.00 GiB a GPU are more than T4 (--gpu) has: 14.57 GiB\n"),
        ("80GiB", "2xH100", "note: 80.00 GiB a GPU are more than H100-80GB (--gpu) has: 79.11 GiB"),
        ("24GiB", "H100-80GB", None),
    ],
)
def test_memory_that_no_such_card_has_is_noted(memory: str, gpu: str, told: str | None) -> None:
    pasted = ("--", "vllm", "serve", "Qwen/Qwen3.5-27B", "-tp", str(parse_cards(gpu).count or 1))
    for model, command in (("Qwen3.5-27B", ()), (None, pasted)):
        out = answer("plan", *filter(None, [model]), "--memory", memory, "--gpu", gpu, *command)
        assert "(--gpu) has:" not in out if told is None else told in out


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("2xH100-80GB", "H100-80GB", 2),
        ("H100", "H100-80GB", None),
        ("nvidia rtx 4090", "RTX-4090", None),
        ("8 x B200", "B200", 8),
        ("4×H200", "H200", 4),  # noqa: RUF001
    ],
)
def test_cards_are_known_by_several_names(text: str, name: str, count: int | None) -> None:
    cards = parse_cards(text)
    assert (cards.name, cards.count) == (name, count)
    assert cards.total_bytes == CARDS[name].total_bytes


def test_a_card_may_be_given_by_its_size() -> None:
    assert parse_cards("2x48GiB").total_bytes == 48 * 2**30


def test_gb_are_what_cards_are_sold_with() -> None:
    for gigabytes in {card.sold for card in CARDS.values()}:
        cards = parse_cards(f"2x{gigabytes}GB")
        assert cards.total_bytes == min(CARDS[name].total_bytes for name in sold_with(gigabytes))
    assert sold_with(24) == ["L4", "A10", "RTX-4090", "RTX-3090"]
    assert all(card.gib < card.sold for card in CARDS.values())
    assert parse_cards("50GB").total_bytes == 50 * 10**9
    assert parse_cards("80GiB").note is None


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ("80GB", "note: --gpu 80GB is read as 79.11 GiB, the least of the cards sold with it ("),
        ("2x70 GB", "note: --gpu 70 GB is read as 65.19 GiB: no known card is sold with it"),
    ],
)
def test_a_note_says_how_gb_are_read(gpu: str, told: str) -> None:
    assert told in run("plan", "Qwen3.5-27B", "--gpu", gpu, "--max-model-len", "8k").output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("Qwen3.5-27B --gpu 2xH100 --tp 4 --memory 9GiB", "make 4 ranks"),
        ("Qwen3.5-27B --gpu H100 --memory 24GiB --gpu-memory-utilization 0.9", "beside --memory"),
        ("Qwen3.5-27B --gpu H1000", "no such card"),
        ("Qwen3.5-27B --gpu 0xH100", "write a card such as"),
        ("Qwen3.5-27B --gpu 2xH100 --tp 4", "make 4 ranks"),
        ("Qwen3.5-27B --gpu 2xL4", "nothing is left for the cache"),
        ("Kimi-K3 --gpu 8xB200", "number of parameters of Kimi-K3 is not known"),
        ("Qwen3.5-27B --memory 9GiB --gpu-memory-utilization 0.9", "without --gpu"),
        ("Qwen3.5-27B --gpu H100 --gpu-memory-utilization 1.5", "at most 1"),
    ],
)
def test_a_mistake_is_named(arguments: str, told: str) -> None:
    assert told in refusal("plan", *arguments.split())


def test_estimates_come_near_what_engines_logged() -> None:
    """Bounds of docs/planner.md; rows do not tell the share of the card that they may use."""
    errors = estimate_error.errors()
    assert max(abs(share) for share in errors["in 16 bits"]) < 0.06
    assert sorted(abs(share) for share in errors["quantized"])[len(errors["quantized"]) // 2] < 0.15


@pytest.mark.parametrize(
    ("device", "gib", "card"),
    [
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-80GB"),
        ("NVIDIA H100 NVL", 93.0, "H100-94GB"),
        ("NVIDIA A100-SXM4-40GB", 39.5, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 79.2, "A100-80GB"),
        ("NVIDIA RTX 6000 Ada Generation", 47.4, "RTX-6000-Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.0, "RTX-PRO-6000"),
        ("NVIDIA GeForce RTX 4090", 23.5, "RTX-4090"),
        ("NVIDIA L4", 22.0, "L4"),
        ("NVIDIA A10G", 22.0, None),
    ],
)
def test_a_drivers_name_finds_its_card(device: str, gib: float, card: str | None) -> None:
    assert find(device, int(gib * 2**30)) == card
