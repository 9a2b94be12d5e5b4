"""Records the options of SGLang's server: ``python tests/plan/sglang_options.py``.

Run it as `sglang_figures`.
"""

import argparse
from pathlib import Path
from typing import Final

import hybrid_blocks.pasted.options
import sglang_figures
from hybrid_blocks.pasted.record import encode, of_parser

RECORD: Final = Path(hybrid_blocks.pasted.options.__file__).with_name("sglang_options.json")


def main() -> None:
    """Write the record."""
    import sglang_stand_ins  # noqa: F401, PLC0415 -- before anything of SGLang's
    from sglang.srt.server_args import ServerArgs  # noqa: PLC0415 -- needs SGLang

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = of_parser(parser, "SGLang", sglang_figures.RELEASE)
    RECORD.write_bytes(encode(options))
    print(f"{RECORD}: {len(options.options)} options")


if __name__ == "__main__":
    main()
