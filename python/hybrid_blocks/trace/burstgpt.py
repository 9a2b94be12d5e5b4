"""BurstGPT: CSV of arrivals and lengths, with sessions in its third part.

Source: github.com/HPMLL/BurstGPT. There are no prefix ids: nothing is shared.
"""

from hybrid_blocks.trace.lengths import Record, elapsed, whole

HEADER = b"Request tokens,Response tokens"
_COLUMNS = {6: (None, 2, 3), 8: (1, 4, 5)}
"""Columns of session, prompt and answer, by how many columns a line has."""


def parse(line: bytes) -> Record | None:
    """Read one line; a ``ValueError`` says what is wrong with it, the header gives nothing."""
    if HEADER in line:
        return None
    fields = line.decode().strip().split(",")
    if len(fields) not in _COLUMNS:
        raise ValueError(f"6 or 8 fields are expected, found {len(fields)}")
    session, prompt, output = _COLUMNS[len(fields)]
    record = Record(
        elapsed(fields[0], "Timestamp"),
        whole(fields[prompt], "Request tokens"),
        whole(fields[output], "Response tokens"),
        None if session is None else fields[session] or None,
    )
    record.check("Request tokens", "Response tokens")
    return record
