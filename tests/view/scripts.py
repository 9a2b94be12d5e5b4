"""Names that would run a script where a page took them for HTML or TeX."""

import json
from pathlib import Path

RUN = "window.ran=1"
TEX = rf"$$\href{{javascript:{RUN}}}{{a}}$$ \(\href{{javascript:{RUN}}}{{b}}\)"
IN_FILES = f"{TEX} <img src=x onerror={RUN}>"
"""A name that a file can have."""

SCRIPTS = f"{IN_FILES}</script><script>{RUN}</script></title><svg onload={RUN}>"


def write_config(folder: Path) -> Path:
    """Write a model that has such names in all its texts; return its folder."""
    made = folder / IN_FILES
    made.mkdir(parents=True)
    fields: dict[str, object] = {
        "architectures": [SCRIPTS],
        "model_type": "llama",
        "_name_or_path": SCRIPTS,
    }
    fields |= {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    (made / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 512}))
    return made


def write_trace(folder: Path) -> Path:
    """Write a trace in a file of such a name."""
    path = folder / f"{IN_FILES}.csv"
    rows = [f"2024-05-01 10:00:{second:02}.0,1000,24\n" for second in range(20)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path
