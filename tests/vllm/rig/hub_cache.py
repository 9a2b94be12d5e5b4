"""A hub cache on disk with configurations and tokenizers: vLLM's tests never ask for weights."""

import json
from pathlib import Path
from typing import Any

from rig import tokenizer

MODELS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("hub_models.json").read_text()
)
REVISION = "0" * 40  # the cache's layout wants a commit hash; any will do


def write(home: Path) -> None:
    """Lay out ``home`` (an ``HF_HOME``) so that every model in `MODELS` resolves offline."""
    for name, files in MODELS.items():
        model = home / "hub" / f"models--{name.replace('/', '--')}"
        snapshot = model / "snapshots" / REVISION
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(REVISION)
        for file, content in files.items():
            (snapshot / file).write_text(json.dumps(content, indent=1))
        tokenizer.write(snapshot)
