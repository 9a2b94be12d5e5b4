"""The frame of ``hybrid-blocks top`` for an engine under load, and its two scrapes.

A hybrid model is served at level ``natural``. In the middle of the load its ``/metrics`` are
recorded twice, two seconds apart, to ``tests/top/scraped``, and ``docs/vllm.md`` gets the frame.
"""

import asyncio
import re
import sys
import time
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

import models
from hybrid_blocks.tools.top.frame import View, frame
from hybrid_blocks.tools.top.read import metrics_url, parse
from load import requests, send
from server import Server, serve

ROOT = Path(__file__).parents[2]
FOLDER = Path("build") / "serve"
SCRAPED = ROOT / "tests" / "top" / "scraped"
DOCUMENT = ROOT / "docs" / "vllm.md"
BLOCK = re.compile(
    r"(?<=^```\n)http://localhost:8000/metrics.*?(?=^```$)", re.DOTALL | re.MULTILINE
)
MIB, SESSIONS, RATE = 6, 60, 4.0
UNTIL_BUSY_S, BETWEEN_S, COLUMNS = 12.0, 2.0, 80
SHOWN = re.compile(
    r"^(?:# (?:HELP|TYPE) )?(?:hybrid_blocks|vllm:(?:num_requests|prefix_cache|"
    r"num_preemptions|generation_tokens))",
    re.MULTILINE,
)


def main() -> int:
    model = models.build("granitemoehybrid", FOLDER)
    memory = ("--kv-cache-memory-bytes", str(MIB * 2**20))
    log = FOLDER / "top.log"
    with serve(model, "natural", log, *memory, "--max-num-batched-tokens", "256") as server:
        load = requests(SESSIONS, RATE, seed=0)
        sender = Thread(target=lambda: asyncio.run(send(server, load)), daemon=True)
        sender.start()
        time.sleep(UNTIL_BUSY_S)
        first = scrape(server)
        time.sleep(BETWEEN_S)
        texts = (first, scrape(server))
        sender.join()
    SCRAPED.mkdir(exist_ok=True)
    for name, text in zip(("before.txt", "now.txt"), texts, strict=True):
        (SCRAPED / name).write_text(text)
    shown = drawn()
    document = DOCUMENT.read_text()
    DOCUMENT.write_text(BLOCK.sub(lambda _: shown, document))
    print(shown, end="")
    return 0


def scrape(server: Server) -> str:
    """Return the lines of ``/metrics`` that the view reads."""
    with urlopen(f"{server.url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines(keepends=True)
    named = str(FOLDER.absolute())
    return "".join(line.replace(f"{named}/", "") for line in lines if SHOWN.match(line))


def drawn() -> str:
    """Return the frame of the two scrapes, as a terminal of 80 columns has it."""
    before, now = (
        parse((SCRAPED / name).read_text(), at_s)
        for name, at_s in (("before.txt", 0.0), ("now.txt", BETWEEN_S))
    )
    url = metrics_url("localhost:8000")
    lines = frame(View(f"{url}   q quits", before, now), COLUMNS).plain.splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
