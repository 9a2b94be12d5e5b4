"""Record what vLLM says of every architecture that generates text.

Each model is built in a child of its own, so a crash or a model that takes too long costs one row.
``--only NAME`` builds the models with such names again, ``--failed`` those that vLLM did not build;
the other rows of the record stay.
"""

import argparse
import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parent / "recorded.json"

WARM = {
    "LlamaForCausalLM": "llama",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "Qwen3NextForCausalLM": "qwen3_next",
    "ArceeForCausalLM": "arcee",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "LlavaForConditionalGeneration": "llava",
}
"""Models whose imports the parent does, so that forked children share them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--out", type=Path, default=RECORD)
    options = parser.parse_args()
    sys.path += [str(Path(__file__).parents[1] / "plan")]
    # A fork has none of the threads that its parent computed with, and would wait for them.
    os.environ["OMP_NUM_THREADS"] = "1"
    import fake_gpu  # noqa: PLC0415 - imports vLLM

    fake_gpu.pose()
    import registry_configs  # noqa: PLC0415
    import registry_oracle  # noqa: PLC0415

    causes = registry_oracle.inspect_in_this_process()
    for name, model_type in () if options.only else WARM.items():
        try:
            registry_oracle.say({"architectures": [name], "model_type": model_type})
        except Exception:  # noqa: BLE001 - only the others take longer then
            traceback.print_exc()
    recorded = json.loads(options.out.read_bytes()) if options.out.exists() else {}
    rows = registry_configs.rows()
    recorded = {name: row for name, row in recorded.items() if name in rows}
    for name, fields in rows.items():
        if options.only and not any(only in name for only in options.only):
            continue
        if options.failed and "layers" in recorded.get(name, ()):
            continue
        start = time.monotonic()
        said = registry_oracle.in_child(partial(registry_oracle.say, fields), causes)
        row = {"config": fields, **said}
        if name in registry_configs.HEADS:
            whole = registry_configs.with_head(name, fields)
            say = partial(registry_oracle.say, whole, head=True)
            row["head"] = {"config": whole, **registry_oracle.in_child(say, causes)}
        recorded[name] = row
        seconds = time.monotonic() - start
        line = row["error"] if "error" in row else f"{len(row['layers'])} layers"
        print(f"{name}: {seconds:.1f} s: {line}", flush=True)
        write(options.out, dict(sorted(recorded.items())))


def write(path: Path, recorded: dict[str, Any]) -> None:
    """Write one line for each architecture."""
    lines = (f"{json.dumps(name)}: {json.dumps(it, default=str)}" for name, it in recorded.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
