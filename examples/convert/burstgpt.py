"""Make requests of BurstGPT's CSV, which holds arrivals and lengths.

    python examples/convert/burstgpt.py < BurstGPT.csv > requests.jsonl

The third part has sessions too.
"""

import csv
import sys
from collections.abc import Iterable, Iterator

from request_lines import Piece, line


def convert(lines: Iterable[str]) -> Iterator[str]:
    """Yield the line of each request."""
    sessions: dict[str, int] = {}
    for number, row in enumerate(csv.DictReader(lines)):
        name = row.get("Session ID")
        session = sessions.setdefault(name, len(sessions)) if name else None
        prompt: Piece = ("prompt", number), int(row["Request tokens"])
        answer: Piece = ("answer", number), max(int(row["Response tokens"]), 1)
        yield line(number, float(row["Timestamp"]), [prompt], [answer], session)


if __name__ == "__main__":
    sys.stdout.writelines(convert(sys.stdin))
