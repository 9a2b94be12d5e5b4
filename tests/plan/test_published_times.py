"""The clock beside times that others measured on whole engines and published.

A closed loop is in a steady state: in the steps of one answer, as many prompts are computed as
requests run. The clock leaves out the host, so most engines are slower.
"""

from typing import NamedTuple

import pytest
from hybrid_blocks.geometry.step_time import StepTime, record

CHUNK = 8192


class Published(NamedTuple):
    """Milliseconds that somebody measured, and how far the clock is from them in percent.

    ``running`` requests of ``prompt`` and ``output`` tokens, each one alone where it is 0.
    """

    source: str
    figure: str
    model: str
    card: str
    tp: int
    prompt: int
    output: int
    running: int
    measured: float
    error: int


SGLANG = "SGLang 0.5.16's cookbook, sgl-project/sglang#32323"
OLDER = "SGLang 0.5.15 in the same pull request"
GPUSTACK = "GPUStack's performance lab, vLLM 0.10 and 0.11"
DENSE, EXPERTS = "Qwen3.5-27B", "Qwen3.5-35B-A3B"
H100, H200, B200 = "H100-80GB", "H200", "B200"
# Running requests follow from published tokens a second by Little's law.
PUBLISHED = (
    Published(SGLANG, "tpot", DENSE, H200, 1, 8192, 1024, 28, 39.1, 2),
    Published(SGLANG, "tpot", DENSE, B200, 1, 8192, 1024, 42, 30.91, -5),
    Published(SGLANG, "tpot", EXPERTS, H200, 1, 8192, 1024, 58, 27.62, -10),
    Published(SGLANG, "tpot", EXPERTS, B200, 1, 8192, 1024, 96, 22.08, -12),
    Published(SGLANG, "ttft", DENSE, H200, 1, 8192, 1024, 0, 735, -7),
    Published(SGLANG, "ttft", DENSE, B200, 1, 8192, 1024, 0, 404, -17),
    Published(SGLANG, "ttft", EXPERTS, H200, 1, 8192, 1024, 0, 182, -32),
    Published(OLDER, "ttft", DENSE, B200, 1, 8192, 1024, 0, 258, 31),
    Published(OLDER, "tpot", DENSE, B200, 1, 8192, 1024, 1, 10.45, -2),
    Published(OLDER, "tpot", EXPERTS, B200, 1, 8192, 1024, 1, 3.0, -11),
    Published(
        "vllm-project/vllm#23151", "tpot", "Qwen3-30B-A3B", H100, 1, 2042, 1016, 10, 13.17, -7
    ),
    Published(GPUSTACK, "tpot", "gpt-oss-20b", H100, 1, 4000, 200, 294, 182.7, -51),
    Published(GPUSTACK, "tpot", "gpt-oss-120b", H100, 2, 2000, 100, 226, 139.3, -33),
    Published(GPUSTACK, "tpot", "gpt-oss-120b", H100, 2, 4000, 200, 271, 164.7, -38),
    Published(GPUSTACK, "tpot", "gpt-oss-120b", H100, 2, 32_000, 100, 22, 220.3, -37),
)


def predicted(row: Published) -> float:
    where = (row.model, row.card, row.tp)
    time = next(it for it in record().rows if (it.model, it.card, it.tp) == where)
    if not row.running:
        return added(time, row.prompt, 0, 0)
    context = row.running * (row.prompt + row.output // 2)
    decoding = time.milliseconds(0, row.running, context, 0)
    prompts = 0.0 if row.running == 1 else added(time, row.prompt, row.running, context)
    return decoding + prompts * row.running / row.output


def added(time: StepTime, prompt: int, decodes: int, context: int) -> float:
    """Return what a prompt adds to the steps of others, or all of its steps where it is alone."""
    starts = range(0, prompt, CHUNK)
    sizes = [min(CHUNK, prompt - start) for start in starts]
    alone = time.milliseconds(0, decodes, context, 0) if decodes else 0.0
    return sum(
        time.milliseconds(size, decodes, context, size * (start + size / 2)) - alone
        for start, size in zip(starts, sizes, strict=True)
    )


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row.model} {row.card} {row.figure}")
def test_the_clock_is_as_far_from_a_published_time_as_stated(row: Published) -> None:
    assert 100 * (predicted(row) / row.measured - 1) == pytest.approx(row.error, abs=0.7)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (2, 3), (12, 13), (12, 14), (13, 14)], ids=str)
def test_ratios_of_two_settings_are_within_a_tenth(one: int, other: int) -> None:
    first, second = PUBLISHED[one], PUBLISHED[other]
    ratio = predicted(first) / predicted(second)
    assert ratio == pytest.approx(first.measured / second.measured, rel=0.1)
