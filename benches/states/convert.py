"""The time of states between formats, against the copy rate; each byte is checked first."""

import json
import sys
from typing import Any

import torch
from cases import QWEN_27B, States, conversions

IS_DRY = "--dry" in sys.argv
TOY = States(1, 2, 64, 3)


def main() -> None:
    """Print the seconds of states of Qwen3.5-27B in each direction and format."""
    from timing import device_copy_rate, device_times  # noqa: PLC0415 - for a card

    found: dict[str, Any] = {}
    if IS_DRY:
        torch.cuda.synchronize = lambda *_: None
    else:
        torch.cuda.set_stream(torch.cuda.Stream())
        found["copy_bytes_per_s"] = device_copy_rate()
    for state_format in ("int8", "fp8", "bf16"):
        pools = (TOY if IS_DRY else QWEN_27B).apart(
            state_format, 4 if IS_DRY else 32, "cpu" if IS_DRY else "cuda"
        )
        for keeps in (True, False):
            case = conversions(pools, 2 if IS_DRY else 8, keeps=keeps)
            figures: dict[str, Any] = {"floor_bytes": case.floor_bytes}
            for name, call in case.calls.items():
                if not case.is_right(call):
                    figures[name] = "wrong"
                elif not IS_DRY:
                    figures[name] = device_times(call).median
            found[case.name] = figures
        del pools
    print(json.dumps({"convert": found}), flush=True)


if __name__ == "__main__":
    main()
