"""The pictures of the README, from the planner and the records: ``make figures``.

``memory.svg`` shows to scale what one request occupies, ``results.svg`` the newest record of steps
and of requests that run at once. ``engine.svg`` shows the newest record of the whole engine.
"""

import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from _record import CARD
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.plan import Deployment
from hybrid_blocks.tools.plan.report import Plan, make_report
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benches/record"
MIB, GIB = 2**20, 2**30
MODEL, MEMORY, TOKENS = "Qwen3.5-27B", 24 * GIB, 1024
MODELS = {
    *("Qwen3.5-27B", "Nemotron-H-8B", "Granite-4.0-H-Small", "Falcon-H1-7B"),
    *("LFM2-1.2B", "Kimi-Linear-48B-A3B", "Qwen3-Next-80B-A3B"),
}
STYLES = {"8": "-", "15": "--", "30": ":"}
"""Lines by the milliseconds of a step."""
ATTENTION, STATE, WASTE, STOCK, OURS = "#4c78a8", "#f58518", "#e6e6e6", "#b0b0b0", "#2a6f4e"


def draw_block(
    axes: "Axes", place: tuple[float, float], block: float, used: float, kind: str
) -> None:
    """Draw a block of ``block`` MiB; the request needs ``used`` of them."""
    left, row = place
    color = STATE if kind == "state" else ATTENTION
    axes.barh(
        row, block, left=left, height=0.6, color=WASTE, hatch="////", edgecolor="#9a9a9a", lw=0
    )
    axes.barh(row, used, left=left, height=0.6, color=color)
    axes.barh(
        row, block, left=left, height=0.6, fill=False, edgecolor="white", lw=min(1.2, block / 20)
    )


def memory(folder: Path) -> None:
    """Draw the memory of one request in vLLM's equal blocks and in slabs."""
    report = make_report(Plan(load_model(MODEL), MEMORY, Deployment(card=CARD)), [TOKENS])
    assert report.vllm is not None
    figure = Figure(figsize=(9.6, 2.3), layout="constrained")
    axes = figure.add_subplot()
    for row, side in enumerate((report.natural, report.vllm)):
        left = 0.0
        for group in side.groups:
            is_state = group.kind in {"state", "mamba"}
            used_in_block = group.page_bytes / MIB
            block = group.block_bytes / MIB
            tokens = TOKENS
            for _ in range(1 if is_state else -(-TOKENS // group.block_tokens)):
                share = 1.0 if is_state else min(1.0, tokens / group.block_tokens)
                kind = "state" if is_state else "attention"
                draw_block(axes, (left, row), block, used_in_block * share, kind)
                left += block
                tokens -= group.block_tokens
        running = int(side.lengths[-1].running)
        axes.text(left + 3, row, f"{left:.0f} MiB: {running} such requests in 24 GiB", va="center")
    axes.set_yticks([0, 1], ["level natural", "vLLM 0.33\non an H100"])
    axes.set_xlim(0, 340)
    axes.set_xlabel("MiB")
    axes.set_title(f"One request of {TOKENS:,} tokens, {MODEL}", loc="left", fontsize=10)
    for color, label in ((ATTENTION, "attention"), (STATE, "recurrent states")):
        axes.barh(0, 0, color=color, label=label)
    axes.barh(0, 0, color=WASTE, hatch="////", edgecolor="#9a9a9a", label="reserved and empty")
    axes.legend(loc="upper right", ncols=3, frameon=False, bbox_to_anchor=(1, 1.27))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "memory.svg", metadata={"Date": None})


def results(folder: Path) -> None:
    """Step times and most requests at once, beside vLLM."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    steps, running = figure.subplots(1, 2, width_ratios=(1, 2))
    draw_steps(steps)
    draw_running(running)
    for axes in (steps, running):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "results.svg", metadata={"Date": None})


def draw_steps(axes: "Axes") -> None:
    newest = max(
        it
        for it in RECORD.glob("????-??-??.json")
        if "inside vLLM" in json.loads(it.read_text()).get("rows", ())
    )
    rows = {row["name"]: row for row in json.loads(newest.read_text())["rows"]["inside vLLM"]}
    name = "step, 256 running, 3 Mamba align + 1 full, level {}"
    manager, batched = rows[name.format("manager")], rows[name.format("batched")]
    times = [manager["baseline"] / 1000, manager["value"] / 1000, batched["value"] / 1000]
    bars = axes.bar(
        ["vLLM 0.33", "level\nmanager", "one-call\nscheduler"], times, color=[STOCK, OURS, OURS]
    )
    axes.bar_label(bars, fmt="{:.2g} ms")
    axes.set_title("One step, 256 hybrid requests", loc="left", fontsize=10)
    axes.set_xlabel(f"make bench, {newest.stem}", fontsize=7.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def draw_running(axes: "Axes") -> None:
    sides: dict[str, dict[str, int]] = {}
    for line in (RECORD / "vllm-natural.jsonl").read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["figure"] == "running" and row["model"] in MODELS:
            # The rows of a card stand behind those without one, and take their place.
            sides.setdefault(row["side"], {})[f"{row['model']}\n{row['gib']:.1f} GiB"] = row[
                "running"
            ]
    models = list(sides["stock"])
    for shift, side, color, label in (
        (-0.2, "stock", STOCK, "vLLM 0.33 on an H100"),
        (0.2, "natural", OURS, "level natural"),
    ):
        places = [place + shift for place in range(len(models))]
        bars = axes.bar(
            places, [sides[side][it] for it in models], width=0.4, color=color, label=label
        )
        axes.bar_label(bars, fontsize=8)
    axes.set_xticks(range(len(models)), [wrapped(it) for it in models], fontsize=7.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_title("Requests at once before the first preemption", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def engine(folder: Path) -> None:
    """Tokens a second of the whole engine: by the time of a step, and on cards."""
    newest = max(RECORD.glob("*-engine.json"))
    rows: list[dict[str, Any]] = json.loads(newest.read_text())["rows"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    steps, cards = figure.subplots(1, 2, width_ratios=(3, 4))
    sides = (("vLLM", STOCK, "vLLM 0.33"), ("one call", OURS, "one-call scheduler"))
    for (side, color, label), (step, style) in product(sides, STYLES.items()):
        of_step = [row for row in rows if (row["part"], row["step"]) == ("steps", step)]
        line = sorted(
            (row["running"], row["tokens_s"] / 1000)
            for row in of_step
            if row["side"] == side and "running" in row
        )
        steps.plot(*zip(*line, strict=True), style, color=color, label=f"{label}, {step} ms")
    steps.set_xlabel(f"requests running; make bench-engine, {newest.stem[:10]}", fontsize=7.5)
    steps.set_title("Thousand tokens a second, by a card's step", loc="left", fontsize=10)
    steps.legend(frameon=False, fontsize=7.5)
    clock = [row for row in rows if row["part"] == "clock" and "running" in row]
    most = max(row["running"] for row in clock)
    for shift, (side, color, label) in zip((-0.2, 0.2), sides, strict=True):
        speeds = {
            "\n".join(row["step"].split("/")[:2]): row["tokens_s"] / 1000
            for row in clock
            if (row["side"], row["running"]) == (side, most)
        }
        places = [place + shift for place in range(len(speeds))]
        bars = cards.bar(places, list(speeds.values()), width=0.4, color=color, label=label)
        cards.bar_label(bars, fmt="{:.3g}", fontsize=8)
        cards.set_xticks(range(len(speeds)), [wrapped(it) for it in speeds], fontsize=7.5)
    cards.margins(y=0.1)
    cards.set_yticks([])
    cards.spines["left"].set_visible(False)
    cards.set_title(f"The same by measured kernels, {most:,} running", loc="left", fontsize=10)
    cards.legend(frameon=False, fontsize=8, loc="upper right")
    for axes in (steps, cards):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(folder / "engine.svg", metadata={"Date": None})


def wrapped(name: str) -> str:
    """Break a model's name at hyphens into lines of at most 12 characters."""
    lines = [""]
    for part in re.findall(r"[^-]+-?", name):
        if len(lines[-1]) + len(part.split("\n")[0]) > 12:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def main() -> None:
    """Draw the pictures into docs/images."""
    mpl.rcParams.update({"svg.hashsalt": "hybrid_blocks", "font.size": 9, "hatch.linewidth": 0.6})
    folder = ROOT / "docs/images"
    folder.mkdir(exist_ok=True)
    memory(folder)
    results(folder)
    engine(folder)


if __name__ == "__main__":
    main()
