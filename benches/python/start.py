"""``python start.py``: what the package adds to the start of a process that has vLLM.

CPU time of the import, and of the plugin's start once vLLM's own modules are loaded; the least of
several processes, with bytecode. More than 50 ms of either fail.
"""

import os
import subprocess
import sys
import tempfile

MOST_MS = 50
RUNS = 5
ENGINE = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_model_runner",
)
MEASURED = f"""
import importlib, time
for module in {ENGINE}: importlib.import_module(module)
begin = time.process_time()
import hybrid_blocks
imported = time.process_time()
from hybrid_blocks.vllm import attach
attach.register()
print(imported - begin, time.process_time() - imported)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as bytecode:
        env = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        command = [sys.executable, "-W", "ignore", "-c", MEASURED]
        # A checkout's folder of kernels has the name of a package that vLLM tries to import.
        runs = [
            subprocess.check_output(command, env=env, cwd=bytecode, text=True)
            for _ in range(RUNS + 1)
        ]
    # The first run writes the bytecode.
    times = [[1000 * float(it) for it in run.splitlines()[-1].split()] for run in runs[1:]]
    imported, started = map(min, zip(*times, strict=True))
    print(f"import hybrid_blocks {imported:.1f} ms, plugin {started:.1f} ms of CPU time")
    sys.exit(max(imported, started) > MOST_MS)


if __name__ == "__main__":
    main()
