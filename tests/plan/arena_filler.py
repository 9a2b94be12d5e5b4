"""An arena filled by the plainest means: dictionaries, no reuse of holes but by pool."""

from hybrid_blocks.tools.plan import ArenaPlan


class Filler:
    """Hands out blocks of a geometry request by request."""

    def __init__(self, geometry: ArenaPlan) -> None:
        self.geometry = geometry
        self.free_slabs = list(range(1, geometry.num_slabs))
        self.free_blocks: list[list[int]] = [[] for _ in geometry.pools]
        self.owner: dict[int, int] = {}

    def take(self, pool: int, count: int) -> list[int] | None:
        """Take ``count`` blocks of a pool, or none at all."""
        cut = self.geometry.pools[pool]
        free = self.free_blocks[pool]
        while len(free) < count and self.free_slabs:
            slab = self.free_slabs.pop()
            self.owner[slab] = pool
            free.extend(slab * cut + index for index in range(cut))
        if len(free) < count:
            return None
        taken = free[-count:] if count else []
        del free[len(free) - count :]
        return taken

    def serve(self, length: int) -> bool:
        """Prefill a request of ``length`` tokens, then keep what it needs to decode."""
        geometry = self.geometry
        held: list[list[int]] = []
        for pool, count in enumerate(geometry.prefill_blocks(length)):
            blocks = self.take(pool, count)
            if blocks is None:
                return False
            held.append(blocks)
        for pool, count in enumerate(geometry.decode_blocks(length)):
            self.free_blocks[pool].extend(held[pool][count:])
        return True


def serve_all(geometry: ArenaPlan, length: int, at_most: int = 10**6) -> int:
    """Serve requests of one length until one does not fit; return how many did."""
    filler = Filler(geometry)
    served = 0
    while served < at_most and filler.serve(length):
        served += 1
    return served
