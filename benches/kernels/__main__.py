"""Kernels against the device's own copy rate: ``make bench-gpu``, at most eight minutes.

Nothing is timed before every byte it leaves was found right. The table is printed; its figures,
the device, its clocks and the hash of the sources are written to ``benches/record/``, and what was
measured of the link to ``kernels/tuned.json``. Exit status 1: some result was wrong.
``python benches/kernels --show RECORD`` prints the table of a record, without a GPU.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from summary import COLUMNS, FAILED, OURS, WRONG, any_wrong, head, link, row, table, tuned_entry

RECORD = Path(__file__).parents[1] / "record"


def measure(case: "Case", rates: dict[str, float]) -> dict[str, Any]:
    """Return the case's figures in seconds; a text stands for a version that was not timed."""
    floor = None if case.floor_bytes is None else case.floor_bytes / rates[case.rate]
    figures: dict[str, Any] = {"case": case.name, "floor_s": floor, "predicted": case.prediction}
    if case.target is not None:
        figures["target"] = case.target
    for column in COLUMNS:
        call = case.calls.get(column)
        if call is None:
            continue
        try:
            right = case.is_right(call)
            figures[column] = vars_of(device_times(call)) if right else WRONG
        except Exception as error:  # noqa: BLE001  one competitor must not end the table
            print(f"{case.name}, {column}: {type(error).__name__}: {error}", file=sys.stderr)
            figures[column] = FAILED
    if case.host is not None:
        figures["host"] = vars_of(host_times(case.host))
    return figures


def vars_of(spread: "Spread") -> dict[str, float]:
    """Return the seconds of a spread."""
    return {"median_s": spread.median, "p10_s": spread.p10, "p90_s": spread.p90}


def measure_link(deadline: float, record: dict[str, Any]) -> None:
    """Sweep SMs and the copy engine; their figures are entries of ``record``."""
    by_sms = sweep.rates_by_sms(deadline)
    record["rates_by_sms"] = by_sms
    complete = all(
        len(by_sms.get(direction, {}).get(backend, {})) == len(sweep.SIZES)
        for direction in sweep.DIRECTIONS
        for backend in OURS
    )
    if not complete:
        return
    fewest = sweep.fewest(by_sms)
    against = sweep.engine_against_kernel(deadline, fewest)
    rules = sweep.rules(against)
    offload = Offload(32 << 10, 64 << 20)
    used = {sms: sweep.sms_used(offload, sms) for sms in (1, 2, 4, 8)}
    beside = {sms: sweep.gemm_share(offload, sms) for sms in (fewest["gather"]["cupy"], 16)}
    record |= {"sms_used": used, "gemm_share": beside}
    record["tuned"] = {"max_sms": fewest, "copy_engine": rules}


def main(minutes: float) -> int:
    """Measure every case, write the record and return the exit status."""
    begin = monotonic()
    deadline = begin + 60 * minutes
    torch.manual_seed(0)
    torch.cuda.set_stream(torch.cuda.Stream())  # a batch of copies refuses the legacy stream
    device = torch.cuda.get_device_name()
    before = environment.device_state()
    rates = {"copy": device_copy_rate()}
    rates["to_host"], rates["to_device"] = link_rates()
    moment = datetime.now(UTC)
    record: dict[str, Any] = {
        "device": device,
        "date": f"{moment:%Y-%m-%d %H:%M}Z",
        "versions": environment.versions(),
        "state_before": before,
        "rates_bytes_per_s": rates,
        "cases": [],
    }
    print("\n".join(head(record)), flush=True)
    right = True
    for case in all_cases():
        # The link's sweep has the last third.
        if monotonic() > begin + 40 * minutes:
            print(f"| {case.name} | not measured: out of time |", flush=True)
            continue
        figures = measure(case, rates)
        right &= not any_wrong(figures)
        record["cases"].append(figures)
        print(row(figures), flush=True)
    measure_link(deadline, record)
    record["state_after"] = environment.device_state()
    print("\n".join(link(record)))
    RECORD.mkdir(exist_ok=True)
    path = RECORD / f"{moment:%Y-%m-%d}-kernels-{'-'.join(device.lower().split())}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    if right and "tuned" in record:
        table = json.loads(tuned.PATH.read_text())
        chosen = record["tuned"]
        table[device] = tuned_entry(
            chosen["max_sms"],
            chosen["copy_engine"],
            sources=record["versions"]["sources"],
            date=f"{moment:%Y-%m-%d}",
        )
        tuned.PATH.write_text(json.dumps(table, indent=2) + "\n")
    print(f"\nwritten to {path} after {(monotonic() - begin) / 60:.1f} minutes")
    if not right:
        print("a result was wrong or a version failed", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="stop measuring after so long")
    parser.add_argument("--show", type=Path, metavar="RECORD", help="print the table of a record")
    arguments = parser.parse_args()
    if arguments.show:
        print(table(json.loads(arguments.show.read_text())))
        sys.exit()
    import torch

    if not torch.cuda.is_available():
        sys.exit("not measured: no CUDA device is at hand")
    import environment
    import sweep
    from cases import Case, Offload, all_cases
    from hybrid_blocks.kernels import tuned
    from summary import Spread
    from timing import device_copy_rate, device_times, host_times, link_rates

    sys.exit(main(arguments.minutes))
