"""One model served twice under the same load: by vLLM alone, then at level ``natural``."""

import argparse
import asyncio
import sys
from pathlib import Path

import models
from load import Request, requests, send
from report import Run, plot, table
from rich.console import Console
from rich.live import Live
from server import serve
from watch import Sample, Watch

FOLDER = Path("build") / "serve"


def main() -> int:
    options = _arguments()
    load = requests(options.sessions, options.rate, options.seed)
    model = models.build(options.model, FOLDER)
    console = Console()
    runs = [_run(level, model, load, options, console) for level in options.levels.split(",")]
    console.print(table(runs))
    if options.plot:
        plot(options.plot, runs)
        console.print(f"drawn: {options.plot}")
    return 0


def _run(
    level: str, model: Path, load: list[Request], options: argparse.Namespace, console: Console
) -> Run:
    log = FOLDER / f"{model.name}-{level}.log"
    memory = ("--kv-cache-memory-bytes", str(int(options.mib * 2**20)))
    console.print(f"level {level}: {model.name} starts, log in {log}")
    with serve(model, level, log, *memory, "--max-num-batched-tokens", "256") as server:
        for line in server.log_text().splitlines():
            if "] hybrid_blocks" in line:
                console.print(line.partition("] ")[2], style="dim", highlight=False)
        with Live(console=console, auto_refresh=False, transient=True) as live:

            def show(sample: Sample) -> None:
                if console.is_terminal:
                    live.update(_line(level, sample), refresh=True)
                else:
                    print(_line(level, sample), flush=True)

            with Watch(server, show) as watch:
                done = asyncio.run(send(server, load))
    return Run(level, done, watch.samples)


def _line(level: str, sample: Sample) -> str:
    owners = ", ".join(f"{owner} {count}" for owner, count in sorted(sample.slabs.items()))
    arena = f"slabs: {owners}" if owners else f"blocks in use: {sample.usage:.0%}"
    hits = sample.hit_tokens / max(1, sample.prompt_tokens)
    return (
        f"{level:>8} {sample.at_s:6.1f} s  running {sample.running:3}  waiting {sample.waiting:3}  "
        f"hits {hits:5.1%}  preempted {sample.preemptions:3}  {arena}"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make serve", description=__doc__)
    parser.add_argument("--model", choices=sorted(models.MODELS), default="granitemoehybrid")
    parser.add_argument("--levels", default="off,natural", help="separated by commas")
    parser.add_argument("--mib", type=float, default=6.0, help="memory of the cache")
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--rate", type=float, default=4.0, help="sessions that start a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="draw requests and the arena over time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
