"""``python -m hybrid_blocks.vllm.surface``: how the installed vLLM differs from the record."""

import sys

import vllm

from hybrid_blocks.vllm.surface import (
    differences,
    forward_differences,
    offload_differences,
    recorder_differences,
    support,
)

if __name__ == "__main__":
    found = {str(tier): lines for tier, lines in differences(vllm.__version__).items()}
    found["offload"] = offload_differences(vllm.__version__)
    found["recorder"] = recorder_differences(vllm.__version__)
    found["prefill checkpoints"] = forward_differences(vllm.__version__)
    print(f"vLLM {vllm.__version__}, compared with {support.nearest(vllm.__version__)}:")
    for tier, lines in found.items():
        print(f"  {tier}: " + ("equal" if not lines else f"{len(lines)} differences"))
        for line in lines:
            print(f"    {line}")
    sys.exit(any(found.values()))
