"""Kernels against the device's own copy rate: ``make bench-gpu``, at most eight minutes.

Nothing is timed before every byte it leaves was found right. The table is printed and written,
with the device, its clocks and the hash of the sources, to ``benches/record/``; what was measured
of the link goes to ``kernels/tuned.json``. Exit status 1: some result was wrong.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from summary import FAILED, MISSING, WRONG, any_wrong, tuned_entry

OURS = ("cupy", "triton")
COLUMNS = (*OURS, "torch", "batch", "vllm")
RECORD = Path(__file__).parents[1] / "record"
HEADER = ("case", "target", "predicted", "floor", *COLUMNS, "host µs a call")


def measure(case: "Case", rates: dict[str, float]) -> tuple[str, dict[str, Any], bool]:
    """Return the case's row, its figures in seconds, and whether our versions were right."""
    floor = None if case.floor_bytes is None else case.floor_bytes / rates[case.rate]
    figures: dict[str, Any] = {"case": case.name, "floor_s": floor, "predicted": case.prediction}
    cells = []
    for column in COLUMNS:
        call = case.calls.get(column)
        if call is None:
            cells.append(MISSING)
            continue
        try:
            if not case.is_right(call):
                cells.append(WRONG)
                continue
            spread = device_times(call)
        except Exception as error:  # noqa: BLE001  one competitor must not end the table
            print(f"{case.name}, {column}: {type(error).__name__}: {error}", file=sys.stderr)
            cells.append(FAILED)
            continue
        figures[column] = vars_of(spread)
        cells.append(spread.cell(floor))
    host = MISSING
    if case.host is not None:
        spread = host_times(case.host)
        figures["host"] = vars_of(spread)
        host = spread.cell(None).removesuffix(" µs")
    target = MISSING if case.target is None else f"≥ {case.target:.0%}"
    limit = MISSING if floor is None else f"{floor * 1e6:,.0f} µs"
    row = [case.name, target, case.prediction, limit, *cells, host]
    return f"| {' | '.join(row)} |", figures, not any_wrong(cells[: len(OURS)])


def vars_of(spread: "Spread") -> dict[str, float]:
    """Return the seconds of a spread."""
    return {"median_s": spread.median, "p10_s": spread.p10, "p90_s": spread.p90}


def measure_link(deadline: float, record: dict[str, Any]) -> list[str]:
    """Sweep SMs and the copy engine; return lines of the record, and the entry in ``record``."""
    by_sms = sweep.rates_by_sms(deadline)
    lines = ["", "Bytes per second over the link, by SMs (GB/s):", ""]
    lines += [
        f"| transfer | {' | '.join(map(str, sweep.SMS))} |",
        "|---|" + "---|" * len(sweep.SMS),
    ]
    for direction, versions in by_sms.items():
        for backend, sizes in versions.items():
            for size, of in sizes.items():
                cells = " | ".join(f"{of[sms] / 1e9:.1f}" for sms in sweep.SMS)
                lines.append(f"| {direction}, {backend}, {size >> 10} KiB | {cells} |")
    record["rates_by_sms"] = by_sms
    complete = all(
        len(by_sms.get(direction, {}).get(backend, {})) == len(sweep.SIZES)
        for direction in sweep.DIRECTIONS
        for backend in OURS
    )
    if not complete:
        return [*lines, "", "Out of time: the default of max_sms stays as it is."]
    fewest = sweep.fewest(by_sms)
    against = sweep.engine_against_kernel(deadline, fewest)
    rules = sweep.rules(against)
    offload = Offload(32 << 10, 64 << 20)
    used = {sms: sweep.sms_used(offload, sms) for sms in (1, 2, 4, 8)}
    beside = {sms: sweep.gemm_share(offload, sms) for sms in (fewest["gather"]["cupy"], 16)}
    record |= {"sms_used": used, "gemm_share": beside}
    record["tuned"] = {"max_sms": fewest, "copy_engine": rules}
    return [
        *lines,
        "",
        f"Fewest SMs at 95 % of the best rate: {fewest}. "
        f"Copy engine from (run bytes, runs): {rules}.",
        f"SMs that ran a warp, by max_sms: {used}. Matrix products beside a gather, 1 alone: "
        f"{ {sms: round(share, 3) for sms, share in beside.items()} }.",
    ]


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
    lines = [
        f"# Kernels on {device}, {moment:%Y-%m-%d}",
        "",
        f"{json.dumps(record['versions'])}; {json.dumps(before)}. Measured rates: device copy "
        f"{rates['copy'] / 1e9:,.0f} GB/s (read + written), to pinned host "
        f"{rates['to_host'] / 1e9:.1f} GB/s, from it {rates['to_device'] / 1e9:.1f} GB/s.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---" * len(HEADER) + "|",
    ]
    print("\n".join(lines), flush=True)
    right = True
    for case in all_cases():
        # The link's sweep has the last third.
        if monotonic() > begin + 40 * minutes:
            lines.append(f"| {case.name} | not measured: out of time |")
        else:
            row, figures, good = measure(case, rates)
            right &= good
            record["cases"].append(figures)
            lines.append(row)
        print(lines[-1], flush=True)
    more = measure_link(deadline, record)
    record["state_after"] = environment.device_state()
    print("\n".join(more))
    RECORD.mkdir(exist_ok=True)
    slug = f"{moment:%Y-%m-%d}-kernels-{'-'.join(device.lower().split())}"
    (RECORD / f"{slug}.md").write_text("\n".join([*lines, *more]) + "\n")
    (RECORD / f"{slug}.json").write_text(json.dumps(record, indent=1) + "\n")
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
    print(f"\nwritten to {RECORD / slug}.md after {(monotonic() - begin) / 60:.1f} minutes")
    if not right:
        print("a result was wrong or a version failed", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8, help="stop measuring after so long")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("not measured: no CUDA device is at hand")
    import environment
    import sweep
    from cases import Case, Offload, all_cases
    from hybrid_blocks.kernels import tuned
    from summary import Spread
    from timing import device_copy_rate, device_times, host_times, link_rates

    sys.exit(main(arguments.minutes))
