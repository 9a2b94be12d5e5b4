"""How long pages of replays take in Debian's Chromium: ``make bench-pages`` prints figures.

A page is open once Bokeh has drawn it. Then it plays. A frame is one that the browser draws. A step
is one moment of the replay, and the page asks for 20 a second.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from chromium import Browser, browser
from rich.console import Console
from rich.table import Table

TOLD = (
    *("replay", "--workload", "tools", "--max-num-seqs", "16", "--model", "Qwen3.5-27B"),
    *("--memory", "12GiB", "--placement", "learned,every:2048"),
)
PLAYED_S = 5.0
STARTED = """
window.frames = 0
const count = () => { window.frames += 1; requestAnimationFrame(count) }
requestAnimationFrame(count)
const slider = Bokeh.documents[0].get_model_by_name('time')
slider.value = 0
window.steps = 0
slider.connect(slider.properties.value.change, () => { window.steps += 1 })
Bokeh.documents[0].get_model_by_name('play').active = true
"""


def main() -> int:
    options = _arguments()
    table = Table(title="pages of a replay, two managers")
    for name in ("requests", "MB", "opened, s", "frames/s", "steps/s"):
        table.add_column(name, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        pages = {count: _page(Path(folder), count) for count in options.requests}
        for count, page in pages.items():
            with browser() as window:
                opened = [_open(window, page) for _ in range(options.times)]
                frames, steps = _play(window)
                errors = window.errors()
            megabytes = page.stat().st_size / 1e6
            cells = (f"{count:,}", f"{megabytes:.1f}", f"{median(opened):.1f}")
            table.add_row(*cells, f"{frames:.0f}", f"{steps:.0f}")
            if errors:
                print(f"the console of {count:,} requests: {errors}", file=sys.stderr)
                return 1
    Console().print(table)
    return 0


def _page(folder: Path, count: int) -> Path:
    page = folder / f"{count}.html"
    command = [sys.executable, "-m", "hybrid_blocks", *TOLD, "--limit", str(count)]
    subprocess.run(
        [*command, "--html", str(page)], check=True, stdout=subprocess.DEVNULL, timeout=1800
    )
    return page


def _open(window: Browser, page: Path) -> float:
    window.driver.get("about:blank")
    start = time.perf_counter()
    window.open(page.as_uri())
    return time.perf_counter() - start


def _play(window: Browser) -> tuple[float, float]:
    """Return frames and steps a second while the page plays."""
    window.run(STARTED)
    start = time.perf_counter()
    time.sleep(PLAYED_S)
    frames, steps = window.run("return [window.frames, window.steps]")
    seconds = time.perf_counter() - start
    return frames / seconds, steps / seconds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-pages", description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[4_000, 10_000])
    parser.add_argument("--times", type=int, default=3, help="how often each page is opened")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
