"""What the page of a replay says in words."""

from typing import Final

from hybrid_blocks.replay.report import rows
from hybrid_blocks.view.page import safe
from hybrid_blocks.view.replay_picture import ReplayPicture

WITHOUT_VLLM: Final = (
    "vLLM was not replayed: <code>--manager rust --manager vllm</code> replays its manager too."
)

WITHOUT_ARENA: Final = (
    "{} has no map: in vLLM all groups share one pool of equal blocks, so no memory changes hands. "
    "The next chart shows how many of its blocks are in use."
)

MANAGER: Final = (
    "Manager rust is the core of this package; vLLM runs it at level natural. Manager vllm is "
    "vLLM's own."
)


def head(picture: ReplayPicture) -> str:
    """Say what was replayed, and what came of it."""
    runs = "".join(
        f'<div class="side">{safe(run.name)}<br><b>{run.hit_rate}</b> of prompt tokens found<br>'
        f"{safe(run.figures['peak running'])} at once at most; "
        f"preemptions: {safe(run.figures['preemptions'])}</div>"
        for run in picture.runs
    )
    without = ""
    if picture.lacks_vllm and len(picture.runs) == 1:
        # The figures of one manager leave half of the line empty.
        runs += f'<div class="side">{WITHOUT_VLLM}</div>'
    elif picture.lacks_vllm:
        without = f"<p>{WITHOUT_VLLM}</p>"
    served = picture.runs[0].figures
    return (
        f"<h1>Replay of {safe(picture.trace)}</h1><p>{safe(picture.engine)}</p>"
        f"<p>{safe(served['requests'])} requests, {safe(served['prompt tokens'])} prompt tokens. "
        "These are the figures of <code>hybrid-blocks replay</code>, in virtual time.</p>"
        f"{without}"
        f'<div class="sides">{runs}</div>'
    )


def table(picture: ReplayPicture) -> str:
    """Return the table of ``replay``."""
    names_row = "".join(f"<th>{safe(run.name)}</th>" for run in picture.runs)
    lines = "".join(
        f"<tr><td>{safe(name)}</td>{''.join(f'<td>{safe(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows([run.figures for run in picture.runs])
    )
    return f"<h2>All figures</h2><table><tr><th></th>{names_row}</tr>{lines}</table>"
