#include "common.cuh"

// Block to(i) of every tensor becomes block from(i); no id may be on both sides.
__device__ __forceinline__ void copy_unit(const Segment& segment, i64 first, int bytes, int from,
                                          int to, int num_blocks) {
    if (!is_block(from, num_blocks) || !is_block(to, num_blocks)) return;
    const i64 run = segment.base + first;
    move_run(run + from * segment.stride, run + to * segment.stride, bytes);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
copy_blocks(const Segment* segments, const Unit* units, int num_units,
            const __grid_constant__ Pairs pairs, int num_items, int num_blocks) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      copy_unit(segment, first, bytes, pairs.from(item), pairs.to(item), num_blocks);
                  });
}

// --- lists with an order ------------------------------------------------------------------------
//
// A copy of a block touches, of every block, only bytes at the same place in it. So each lane owns
// its places across the whole list and carries the pairs out one after another: program order is
// list order, and nothing has to wait for another lane.

constexpr int BATCH = 4;  // pairs whose loads are in flight together
constexpr int PIECE_BYTES = WARP * 16;
constexpr int PIECES_A_UNIT = UNIT_BYTES / PIECE_BYTES;

// Carries the first `count` pairs out on `bytes` bytes from `base` in block 0. A source -1 - b
// means that block b and the destination trade places.
template <class V>
__device__ __forceinline__ void walk_list(i64 base, i64 stride, int bytes, const Pairs& pairs,
                                          int count) {
    const int end = bytes / static_cast<int>(sizeof(V));
#pragma unroll 1
    for (int at = static_cast<int>(lane_id()); at < end; at += WARP) {
        const i64 owned = base + at * static_cast<i64>(sizeof(V));
        const auto place = [=](int block) { return reinterpret_cast<V*>(owned + block * stride); };
        int i = 0;
#pragma unroll 1
        while (i < count) {
            int from[BATCH], to[BATCH];
            bool apart = i + BATCH <= count;
            if (apart) {
#pragma unroll
                for (int k = 0; k < BATCH; ++k) {
                    from[k] = pairs.from(i + k);
                    to[k] = pairs.to(i + k);
                    apart &= from[k] >= 0;
#pragma unroll
                    for (int j = 0; j < k; ++j) apart &= from[k] != to[j];
                }
            }
            if (apart) {  // nothing in the batch reads what the batch writes: all loads may lead
                V held[BATCH];
#pragma unroll
                for (int k = 0; k < BATCH; ++k) held[k] = load(place(from[k]));
#pragma unroll
                for (int k = 0; k < BATCH; ++k) store(place(to[k]), held[k]);
                i += BATCH;
                continue;
            }
            const int source = pairs.from(i);
            V* const target = place(pairs.to(i));
            V* const origin = place(source < 0 ? -1 - source : source);
            const V value = load(origin);
            if (source < 0) store(origin, load(target));
            store(target, value);
            ++i;
        }
    }
}

__device__ __forceinline__ void walk_piece(const Segment& segment, i64 first, int bytes,
                                           const Pairs& pairs, int count) {
    const i64 base = segment.base + first;
    // The same in every block, so that a place has one owner.
    const int width = vector_bytes(base | segment.stride);
    switch (width) {
        case 16: walk_list<uint4>(base, segment.stride, bytes, pairs, count); break;
        case 8: walk_list<uint2>(base, segment.stride, bytes, pairs, count); break;
        case 4: walk_list<unsigned>(base, segment.stride, bytes, pairs, count); break;
        case 2: walk_list<unsigned short>(base, segment.stride, bytes, pairs, count); break;
        default: walk_list<unsigned char>(base, segment.stride, bytes, pairs, count); break;
    }
    const int done = bytes / width * width;
    if (done < bytes)
        walk_list<unsigned char>(base + done, segment.stride, bytes - done, pairs, count);
}

// The first `num_ordered` pairs have an order; the others, on other blocks, go beside them.
extern "C" __global__ void __launch_bounds__(1024, 1)
copy_in_order(const Segment* segments, const Unit* units, int num_units,
              const __grid_constant__ Pairs pairs, int num_items, int num_ordered,
              int num_blocks) {
    const i64 pieces = static_cast<i64>(num_units) * PIECES_A_UNIT;
    const i64 free_units = static_cast<i64>(num_units) * (num_items - num_ordered);
    for_each_index(pieces + free_units, [&](i64 work) {
        const bool walks = work < pieces;
        const i64 rest = work - pieces;
        const int item = walks ? 0 : static_cast<int>(rest / num_units);
        const i64 index = walks ? work / PIECES_A_UNIT : rest - static_cast<i64>(item) * num_units;
        const Unit unit = units[index];
        const Segment segment = segments[unit.segment];
        const i64 first = static_cast<i64>(unit.index) * UNIT_BYTES;
        const i64 left = segment.bytes - first;
        if (!walks) {
            const int at = num_ordered + item;
            copy_unit(segment, first, static_cast<int>(left < UNIT_BYTES ? left : UNIT_BYTES),
                      pairs.from(at), pairs.to(at), num_blocks);
            return;
        }
        const i64 skipped = work % PIECES_A_UNIT * PIECE_BYTES;
        const i64 bytes = left - skipped;
        if (bytes > 0)
            walk_piece(segment, first + skipped,
                       static_cast<int>(bytes < PIECE_BYTES ? bytes : PIECE_BYTES), pairs,
                       num_ordered);
    });
}
