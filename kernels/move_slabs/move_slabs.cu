#include "common.cuh"

// Slab dst[i] becomes slab src[i]. A slab is one run, so a unit's address needs no table.
extern "C" __global__ void __launch_bounds__(1024, 1)
move_slabs(i64 arena, i64 slab_bytes, int num_slabs, const int* src, const int* dst,
           int num_items) {
    const i64 units_a_slab = (slab_bytes + UNIT_BYTES - 1) / UNIT_BYTES;
    for_each_index(units_a_slab * num_items, [=](i64 work) {
        const int item = static_cast<int>(work / units_a_slab);
        const int from = src[item];
        const int to = dst[item];
        if (!is_block(from, num_slabs) || !is_block(to, num_slabs)) return;
        const i64 first = (work - item * units_a_slab) * UNIT_BYTES;
        const i64 left = slab_bytes - first;
        const int bytes = static_cast<int>(left < UNIT_BYTES ? left : UNIT_BYTES);
        move_run(arena + from * slab_bytes + first, arena + to * slab_bytes + first, bytes);
    });
}
