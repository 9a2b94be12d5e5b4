"""Where public traces lie, for benchmarks and for the tests that need them."""

import os
from pathlib import Path

DATA = Path(os.environ.get("HYBRID_BLOCKS_DATA", Path(__file__).parents[3] / "shared" / "data"))
MOONCAKE = DATA / "traces" / "mooncake_fast25_conversation_trace.jsonl.gz"
