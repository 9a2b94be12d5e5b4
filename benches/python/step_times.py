"""Make ``step_times.json`` again: times of an engine's step, from kernels measured on cards.

    python -m venv aic && aic/bin/pip install aiconfigurator==0.12.0 scipy
    aic/bin/python benches/python/step_times.py python/hybrid_blocks/geometry/step_times.json

The tables are those of vLLM 0.24 in the public package aiconfigurator (Apache-2.0). A step of P
prompt tokens in one chunk and D decoding requests, each with a context of C tokens, takes

    ms(P + D) + decode * D + context * D * C + prompt * P + pair * P * (C + P / 2) / 1e6 + chunk

milliseconds, the last only where P > 0, with straight lines between the times at `KNOTS`. The
package's own mixed step counts no recurrence for decodes next to a prompt. So a step is composed
here. Operators that see tokens alone run at P + D tokens. The others run once for the chunk and
once for the decodes. The scheduler, the sampler, gaps between kernels and the padding of graphs are
not in the tables. Mamba-2's scan is not measured there: each decode reads and writes the float32
state, at the share of the bandwidth that the measured kernel of GDN reaches. Rows that contradict a
slower card, a smaller number of ranks or themselves are left out, and named.
"""

import contextlib
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

import aiconfigurator_core  # noqa: E402 - logs while it is imported
import yaml  # noqa: E402
from aiconfigurator_core.sdk.engine import EngineHandle  # noqa: E402
from scipy.optimize import nnls  # noqa: E402

ROOT = Path(aiconfigurator_core.__file__).parent
KNOTS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192]
DECODES = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
PROMPTS = [0, 16, 64, 256, 512, 1024, 2048, 4096, 8192]
CONTEXTS = [1024, 4096, 16384, 32768, 65536, 131072]
MOST_CONTEXT = 4_000_000
"""Tokens of all decodes of a step; more fit none of these cards."""
MOST_ERROR = 0.30
SCAN_SHARE = 0.85
"""The share of a card's bandwidth that a scan reaches."""

CARDS = {"L40S": "l40s", "H100-80GB": "h100_sxm", "H200": "h200_sxm", "B200": "b200_sxm"}
"""This project's names and the package's, slower cards first."""

Ranks = tuple[int, ...]
MODELS: dict[str, tuple[str, str, int, Ranks]] = {
    "Qwen3.5-27B": ("Qwen/Qwen3.5-27B", "bf16", 54, (1, 2, 4)),
    "Qwen3.5-35B-A3B": ("Qwen/Qwen3.5-35B-A3B", "bf16", 70, (1, 2, 4)),
    "Qwen3.5-122B-A10B-NVFP4": ("nvidia/Qwen3.5-122B-A10B-NVFP4", "nvfp4", 72, (1, 2, 4)),
    "Qwen3.5-397B-A17B": ("Qwen/Qwen3.5-397B-A17B", "bf16", 794, (8,)),
    "Qwen3.5-397B-A17B-NVFP4": ("nvidia/Qwen3.5-397B-A17B-NVFP4", "nvfp4", 230, (2, 4, 8)),
    "Nemotron-3-Nano-30B-A3B": (
        *("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "bf16", 60, (1, 2, 4)),
    ),
    "Nemotron-3-Nano-30B-A3B-NVFP4": (
        *("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "nvfp4", 19, (1, 2)),
    ),
    "gpt-oss-20b": ("openai/gpt-oss-20b", "mxfp4", 14, (1, 2)),
    "gpt-oss-120b": ("openai/gpt-oss-120b", "mxfp4", 63, (1, 2, 4, 8)),
    "Gemma-4-26B-A4B": ("google/gemma-4-26B-A4B", "bf16", 52, (1, 2)),
    "Gemma-4-26B-A4B-NVFP4": ("nvidia/Gemma-4-26B-A4B-NVFP4", "nvfp4", 17, (1, 2)),
    "Gemma-4-31B-NVFP4": ("nvidia/Gemma-4-31B-IT-NVFP4", "nvfp4", 22, (1, 2)),
    "Qwen3-30B-A3B": ("Qwen/Qwen3-30B-A3B", "bf16", 61, (1, 2)),
    "Llama-3.1-8B": ("meta-llama/Meta-Llama-3.1-8B", "bf16", 16, (1,)),
}
"""The package's name, the format of the weights, their size in GB, and numbers of ranks."""

BY_REQUEST = (
    *("attention", "_scan", "_conv1d", "_ssm", "_recurrence", "_fused_decode", "_mla_block"),
)
"""Parts of the names of operators whose time depends on requests, not on tokens alone."""


class Operators:
    """The operators of one model on a card, each with its measured time."""

    def __init__(self, model: str, card: str, ranks: int) -> None:
        for experts in [(ranks, 1), (1, ranks)]:
            try:
                self._compile(model, CARDS[card], ranks, experts)
            except Exception as error:  # noqa: BLE001 - the package raises many kinds
                failed = error
            else:
                break
        else:
            raise RuntimeError(str(failed).split(" at /", maxsplit=1)[0][:80])
        spec = yaml.safe_load((ROOT / "systems" / f"{CARDS[card]}.yaml").read_text())["gpu"]
        self.capacity, self.bandwidth = spec["mem_capacity"], spec["mem_bw"]
        self.scan_ms = _scan_ms(model, ranks, self.bandwidth)

    def _compile(self, model: str, system: str, ranks: int, experts: tuple[int, int]) -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self._handle = EngineHandle.compile(
                *(model, system, "vllm"),
                tp_size=ranks,
                moe_tp_size=experts[0],
                moe_ep_size=experts[1],
            )
        calls = self._handle.evaluate_context_ops, self._handle.evaluate_generation_ops
        self._names = {is_prompt: _names(calls[not is_prompt]) for is_prompt in (True, False)}
        self.ms(1024, batch=1, length=1024, is_prompt=True, by_request=True)
        self.ms(64, batch=64, length=1024, is_prompt=False, by_request=True)

    def ms(
        self,
        tokens: int,
        *,
        batch: int,
        length: int,
        is_prompt: bool,
        by_request: bool,
        prefix: int = 0,
    ) -> float:
        """Sum the operators that see requests, or those that see tokens alone."""
        call = (
            self._handle.evaluate_context_ops if is_prompt else self._handle.evaluate_generation_ops
        )
        chosen = [
            number
            for number, name in enumerate(self._names[is_prompt])
            if any(part in name for part in BY_REQUEST) == by_request
            and not (by_request and "attn_norm" in name)
        ]
        x = None if by_request else tokens
        return float(
            sum(row[1] for row in call(chosen, batch_size=batch, s=length, prefix=prefix, x=x))
        )


def _names(call: Callable[..., Any]) -> list[str]:
    names: list[str] = []
    while True:
        try:
            names.append(call([len(names)], batch_size=1, s=1024)[0][0])
        except (ValueError, IndexError, OverflowError) as error:
            if "missing" in str(error):
                raise
            return names


def _scan_ms(model: str, ranks: int, bandwidth: float) -> float:
    """Return the time in which a decode reads and writes Mamba-2's states."""
    if "Nemotron-3" not in model:
        return 0.0
    path = ROOT / "model_configs" / f"{model.replace('/', '--')}_config.json"
    fields = json.loads(path.read_text())
    layers = fields["hybrid_override_pattern"].count("M")
    state = fields["mamba_num_heads"] * fields["mamba_head_dim"] * fields["ssm_state_size"]
    return float(2 * 4 * layers * state / ranks / (SCAN_SHARE * bandwidth) * 1e3)


def fit(operators: Operators) -> dict[str, Any]:
    """Fit the form of a step to all steps of the grid."""

    def of_tokens(num: int, *, is_prompt: bool) -> float:
        batch, length = (1, num) if is_prompt else (num, 1024)
        return operators.ms(num, batch=batch, length=length, is_prompt=is_prompt, by_request=False)

    def chunk(num: int, context: int) -> float:
        return operators.ms(
            num, batch=1, length=num, is_prompt=True, by_request=True, prefix=context
        )

    def decode(num: int, context: int) -> float:
        if not num:
            return 0.0
        read = operators.ms(num, batch=num, length=context, is_prompt=False, by_request=True)
        return read + num * operators.scan_ms

    rows = []
    for decodes in DECODES:
        # Decodes run other kernels than prompts: those of full graphs.
        alone = of_tokens(decodes, is_prompt=False) if decodes else 0.0
        mixed = {num: of_tokens(num + decodes, is_prompt=True) for num in PROMPTS if num}
        for context in CONTEXTS:
            if decodes * context > MOST_CONTEXT:
                continue
            read = decode(decodes, context)
            if decodes:
                rows.append((0, decodes, context, alone + read))
            for num, others in mixed.items():
                rows.append((num, decodes, context, others + read + chunk(num, context)))
                if context == CONTEXTS[0]:
                    rows.append((num, decodes, 0, others + read + chunk(num, 0)))
    prompts, decoding, context, measured = (
        np.array(column, float) for column in zip(*rows, strict=True)
    )
    # A first chunk runs next to decodes of the shortest context.
    read = decoding * np.where(context == 0, CONTEXTS[0], context)
    pairs = prompts * (context + prompts / 2) / 1e6
    knots = np.array([of_tokens(num, is_prompt=num > 512) for num in KNOTS])
    slope = (knots[-1] - knots[-2]) / (KNOTS[-1] - KNOTS[-2])
    tokens = prompts + decoding
    base = np.interp(tokens, KNOTS, knots) + np.maximum(0, tokens - KNOTS[-1]) * slope
    parts = [prompts, decoding, read, pairs, prompts > 0, np.ones_like(prompts)]
    matrix = np.stack(parts, 1)
    found, _ = nnls(matrix / measured[:, None], (measured - base) / measured)
    error = np.abs(base + matrix @ found - measured) / measured
    names = ("prompt", "decode", "context", "pair", "chunk")
    return {
        "ms": [float(f"{value:.4g}") for value in knots + found[5]],
        **{name: float(f"{x:.3g}") for name, x in zip(names, found[:5], strict=True)},
        "error": [round(100 * float(value), 1) for value in (np.median(error), error.max())],
    }


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a model, for cards that hold its weights."""
    model, dtype, gigabytes, all_ranks = MODELS[name]
    for card in CARDS:
        if dtype == "nvfp4" and card != "B200":
            continue
        for ranks in all_ranks:
            about = {"model": name, "card": card, "tp": ranks, "dtype": dtype}
            try:
                operators = Operators(model, card, ranks)
                if gigabytes * 1.1e9 < operators.capacity * ranks:
                    least = gigabytes / ranks / operators.bandwidth * 1e12
                    yield {**about, **fit(operators), "least": least}
            except Exception as error:  # noqa: BLE001 - tables lack some kernels
                sys.stdout.write(f"no row {name}, {card}, {ranks}: {str(error)[:80]}\n")


def doubt(row: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """Say how a row contradicts the card, others or itself; nothing if it does not."""
    if row["ms"][KNOTS.index(256)] > 4 * row["least"] + 6:
        return "more than four times the time in which all weights are read"
    if row["error"][1] > 100 * MOST_ERROR:
        return f"the form is off by {row['error'][1]} %"
    if any(
        later < 0.93 * before for before, later in zip(row["ms"][6:], row["ms"][7:], strict=False)
    ):
        return "falls as the batch grows"
    order = list(CARDS)
    for other in others:
        is_same_card = other["card"] == row["card"]
        is_slower = order.index(other["card"]) < order.index(row["card"])
        is_fewer = is_same_card and other["tp"] < row["tp"]
        if (is_fewer or (is_slower and other["tp"] == row["tp"])) and any(
            mine > 1.1 * its for mine, its in zip(row["ms"][4:], other["ms"][4:], strict=True)
        ):
            return f"slower than {other['card']}, {other['tp']} ranks"
    return ""


def main() -> None:
    kept = []
    for name in MODELS:
        rows = list(rows_of(name))
        for row in rows:
            if why := doubt(row, rows):
                sys.stdout.write(f"left out {name}, {row['card']}, {row['tp']}: {why}\n")
            else:
                kept.append({key: value for key, value in row.items() if key != "least"})
        sys.stdout.write(f"{name}: {len(rows)} rows\n")
    form = " ".join((__doc__ or "").split("takes\n")[1].split("\n\nmilliseconds")[0].split())
    about = {
        "source": f"aiconfigurator {version('aiconfigurator')}, tables of vLLM 0.24",
        "licence": "Apache-2.0",
        "form": form,
        "knots": KNOTS,
    }
    lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in kept)
    Path(sys.argv[1]).write_text(
        json.dumps(about, indent=1)[:-2] + f',\n "rows": [\n{lines}\n ]\n}}\n'
    )
    sys.stdout.write(f"{len(kept)} rows\n")


if __name__ == "__main__":
    main()
