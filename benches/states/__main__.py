"""State layers in pieces on a card: right to the bit, and what it costs. ``make bench-states``.

At most eight minutes on a Hopper card, without a network. Each part is a process with a time of its
own, so that none ends the others:

- ``bits``: each class of vLLM's state layers leaves in one step, cut at places, the bytes that two
  calls leave; with decodes and with drafts, by Triton and by FlashInfer;
- ``cost``: the time of a layer on device and host, by tokens of a prompt and places in it;
- ``convert``: states between formats, against the device's copy rate;
- ``first-token``: a small hybrid with random weights, at ``off`` and at ``natural``.

The record goes to ``benches/record/``. ``--dry`` runs each part without a card, at toy sizes.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PARTS = ("bits", "cost", "convert", "first-token")

PATHS = [ROOT / "python", ROOT / "tests/vllm", ROOT / "benches/kernels", ROOT]
WITHOUT_CARD = {
    "TRITON_INTERPRET": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_TRITON_FORCE_FIRST_CONFIG": "1",
}


@dataclass(frozen=True)
class Task:
    """A process of a part, and the seconds after which it is ended on a card."""

    part: str
    command: list[str]
    variables: dict[str, str]
    seconds: float


def tasks(*, dry: bool) -> list[Task]:
    """Return the processes of all parts. On a card the first one compiles most kernels."""
    layers = [str(ROOT / "tests/vllm/state_layer_runs.py"), "--keep-on"]
    layers += ["minimax", "short_conv"] if dry else []
    toys = ["--dry"] if dry else []
    first = {"VLLM_TRITON_FORCE_FIRST_CONFIG": "1"}
    return [
        Task("bits", layers, first | {"NUM_DRAFTS": "0"}, 150),
        Task("bits", layers, first | {"NUM_DRAFTS": "2"}, 60),
        Task("cost", [str(HERE / "cost.py"), *toys], {}, 70),
        Task("convert", [str(HERE / "convert.py"), *toys], {}, 40),
        *(
            Task("first-token", [str(HERE / "first_token.py"), *toys], {"HYBRID_BLOCKS": level}, 80)
            for level in ("off", "natural")
        ),
    ]


def run(command: list[str], variables: dict[str, str], seconds: float, *, dry: bool) -> Any:
    """Run a part, and return what its last line says, or how it failed."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, PATHS)),
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HYBRID_BLOCKS_TEST_DEVICE": "cpu" if dry else "cuda",
        **variables,
    }
    serves = "HYBRID_BLOCKS" in variables
    if dry and not serves:
        environment |= WITHOUT_CARD
        environment.pop("VLLM_TARGET_DEVICE", None)
    if not serves:
        environment["VLLM_PLUGINS"] = ""
    if dry and serves:
        environment |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as late:
        text = late.stderr.decode() if isinstance(late.stderr, bytes) else late.stderr or ""
        return {"error": f"no end after {seconds:.0f} s", "log": text[-2000:]}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"error": f"exit status {done.returncode}", "log": done.stderr[-2000:]}
    return json.loads(lines[-1])


def is_wrong(record: dict[str, Any]) -> bool:
    """Return whether a part failed or left a wrong byte."""
    answers = [answer for part in record["bits"] for answer in part.get("answers", [])]
    return any("error" in part for parts in record["parts"] for part in record[parts]) or any(
        "error" in it or it.get("wrong_states") or not it.get("outputs_equal", True)
        for it in answers
    )


def main(*, dry: bool, record_to: Path | None) -> int:
    """Run all parts, print and write what they find, and return the exit status."""
    begin, moment = monotonic(), datetime.now(UTC)
    record: dict[str, Any] = {"date": f"{moment:%Y-%m-%d %H:%M}Z", "device": "none", "versions": {}}
    if not dry:
        import environment  # noqa: PLC0415 - its neighbours import torch
        import torch  # noqa: PLC0415

        record["device"] = torch.cuda.get_device_name()
        record["versions"] = environment.versions()
        record["state_before"] = environment.device_state()
    record["parts"] = PARTS
    for task in tasks(dry=dry):
        limit = 1800.0 if dry else task.seconds
        found = task.variables | run(task.command, task.variables, limit, dry=dry)
        record.setdefault(task.part, []).append(found)
        print(task.part, json.dumps(found, indent=1), flush=True)
    path = record_to or ROOT / "benches/record" / (
        f"{moment:%Y-%m-%d}-states-{'-'.join(record['device'].lower().split())}.json"
    )
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written to {path} after {(monotonic() - begin) / 60:.1f} minutes")
    return int(is_wrong(record))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="run without a card, at toy sizes")
    parser.add_argument("--record", type=Path, help="write the record here")
    arguments = parser.parse_args()
    sys.path[:0] = map(str, PATHS)
    if not arguments.dry:
        import torch

        if not torch.cuda.is_available():
            sys.exit("not measured: no CUDA device is at hand (--dry runs all parts without one)")
    sys.exit(main(dry=arguments.dry, record_to=arguments.record))
