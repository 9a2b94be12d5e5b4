"""Kernels against the device's own copy rate: ``make bench-gpu``.

Nothing is timed before its result was found right. The table is printed and written, with the
device and the versions, to ``benches/record/``.
"""

import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

COLUMNS = ("cupy", "triton", "torch", "batch")
RECORD = Path(__file__).parents[1] / "record"


def versions() -> str:
    """Return what the figures depend on."""
    names = ("torch", "triton", "cupy-cuda13x", "numpy")
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} missing")
    return ", ".join([f"CUDA {torch.version.cuda}", *found])


def measure(case: "Case", rates: dict[str, float]) -> str:
    """Return the case's row: microseconds and share of the floor's rate in every version."""
    floor = case.floor_bytes / rates[case.rate]
    cells = []
    for column in COLUMNS:
        call = case.calls.get(column)
        if call is None:
            cells.append("—")
            continue
        try:
            if not case.gate(call):
                cells.append("WRONG RESULT")
                continue
            seconds = device_seconds(call)
        except Exception as error:  # noqa: BLE001  one competitor must not end the table
            print(f"{case.name}, {column}: {type(error).__name__}: {error}", file=sys.stderr)
            cells.append("failed")
            continue
        cells.append(f"{seconds * 1e6:,.0f} µs, {floor / seconds:.1%}")
    return f"| {case.name} | ≥ {case.target:.0%} | {floor * 1e6:,.0f} µs | {' | '.join(cells)} |"


def main() -> None:
    """Measure every case and write the record."""
    torch.manual_seed(0)
    torch.cuda.set_stream(torch.cuda.Stream())  # a batch of copies refuses the legacy stream
    device = torch.cuda.get_device_name()
    rates = {"copy": device_copy_rate()}
    rates["to_host"], rates["to_device"] = link_rates()
    moment = datetime.now(UTC)
    lines = [
        f"# Kernels on {device}, {moment:%Y-%m-%d}",
        "",
        f"{versions()}; driver and clocks as found. Measured rates: device copy "
        f"{rates['copy'] / 1e9:,.0f} GB/s (read + written), to pinned host "
        f"{rates['to_host'] / 1e9:.1f} GB/s, from it {rates['to_device'] / 1e9:.1f} GB/s.",
        "",
        f"| case | target | floor | {' | '.join(COLUMNS)} |",
        f"|---|---|---|{'---|' * len(COLUMNS)}",
    ]
    print("\n".join(lines), flush=True)
    for case in all_cases():
        lines.append(measure(case, rates))
        print(lines[-1], flush=True)
    RECORD.mkdir(exist_ok=True)
    slug = "-".join(device.lower().split())
    path = RECORD / f"{moment:%Y-%m-%d}-kernels-{slug}.md"
    path.write_text("\n".join(lines) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("not measured: no CUDA device is at hand")
    from cases import Case, all_cases
    from timing import device_copy_rate, device_seconds, link_rates

    main()
