"""``hybrid-blocks view``: the page of a plan with controls, in a browser of this machine."""

from typing import Annotated

import typer

from hybrid_blocks.errors import HybridBlocksError, InvalidArgumentError
from hybrid_blocks.geometry.deployment import Deployment
from hybrid_blocks.model import load_model
from hybrid_blocks.tools.cli.options import Option, drafted
from hybrid_blocks.tools.cli.output import fail, need_bokeh
from hybrid_blocks.tools.view import MOST_DRAFTS
from hybrid_blocks.units import parse_tokens

START = Deployment()
MOST_PORT = 65_535


def view_command(  # noqa: PLR0917 - typer reads the options from the signature
    model: Annotated[
        str, typer.Argument(help="Model to begin with: a built-in name or a config.json.")
    ] = "Qwen3.5-27B",
    memory: Annotated[str, typer.Option(help="Free KV memory of each GPU.")] = "24GiB",
    port: Annotated[
        int, typer.Option(min=0, max=MOST_PORT, help="Port on 127.0.0.1; 0 is a free one.")
    ] = 5006,
    speculative: Option = None,
    tp: Annotated[
        int, typer.Option("--tp", "--tensor-parallel-size", help="Tensor parallel size.")
    ] = START.tp,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="As in vLLM: auto, fp8, nvfp4 ...")
    ] = START.kv_cache_dtype,
    max_num_seqs: Annotated[int, typer.Option(help="Most running requests.")] = START.max_num_seqs,
    max_model_len: Annotated[str | None, typer.Option(help="Longest request; k is 1024.")] = None,
) -> None:
    """Plan models in a browser: a page with controls."""
    try:
        planned, drafts = drafted(load_model(model), speculative)
        if drafts > MOST_DRAFTS:
            raise InvalidArgumentError(
                f"--speculative {speculative}: the page's slider ends at {MOST_DRAFTS} draft tokens"
            )
        start = Deployment(
            tp=tp,
            kv_cache_dtype=kv_cache_dtype,
            max_num_seqs=max_num_seqs,
            max_model_len=parse_tokens(max_model_len) if max_model_len else None,
            num_speculative_tokens=drafts,
        )
        need_bokeh("view")
        from hybrid_blocks.tools.view.server import serve  # noqa: PLC0415 - optional, slow

        def ready(address: str) -> None:
            typer.echo(f"{address} shows the plan; Ctrl-C ends it")

        try:
            serve(planned, memory, port, ready, deployment=start)
        except OSError as error:
            raise InvalidArgumentError(f"--port {port}: {error.strerror or error}") from None
    except HybridBlocksError as error:
        fail(error)
