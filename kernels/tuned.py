"""Measurements of a device and its link: how many SMs fill it, when the copy engine wins.

``tuned.json`` holds an entry for each device that ``make bench-gpu`` ran on, under the driver's
name for it. The entry ``predicted`` serves all others. Its figures come from the machine code and
public reports, not from a measurement.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Direction = Literal["gather", "scatter"]

PATH = Path(__file__).with_name("tuned.json")
PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class Tuned:
    """One entry of the table.

    ``sms`` is, by direction and version, the fewest SMs with which a transfer over the link came
    to 95 % of the best rate. ``copy_engine`` is, by direction, a list of (bytes of a run, number
    of runs): from both on, ``cuMemcpyBatchAsync`` is the quicker one.
    """

    device: str
    sms: dict[str, dict[str, int]]
    copy_engine: dict[str, list[tuple[int, int]]]

    def max_sms(self, direction: Direction, version: str) -> int | None:
        """Return the SMs that fill the link; None where the version takes no bound."""
        return self.sms[direction].get(version)

    def takes_copy_engine(self, direction: Direction, run_bytes: int, num_runs: int) -> bool:
        """Return whether the copy engine moves ``num_runs`` runs of ``run_bytes`` faster."""
        return any(
            run_bytes >= least_bytes and num_runs >= least_runs
            for least_bytes, least_runs in self.copy_engine[direction]
        )


@cache
def tuned_for(device: "torch.device") -> Tuned:
    """Return the entry of ``device``, or the prediction where it was never measured."""
    name = PREDICTED
    if device.type == "cuda":
        import torch  # noqa: PLC0415

        name = torch.cuda.get_device_name(device)
    return entry(name, json.loads(PATH.read_text()))


def entry(name: str, table: dict[str, Any]) -> Tuned:
    """Return the entry of a device's name, or the prediction."""
    found = table.get(name, table[PREDICTED])
    engine = {
        direction: [(int(size), int(count)) for size, count in rules]
        for direction, rules in found["copy_engine"].items()
    }
    return Tuned(name if name in table else PREDICTED, found["max_sms"], engine)
