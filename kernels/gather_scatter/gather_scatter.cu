#include "common.cuh"

// Moves block ids[i] to record i of the staging buffer, or the other way.
template <bool GATHER>
__device__ __forceinline__ void move_records(const Segment* segments, const Unit* units,
                                             int num_units, const Ids& ids, int num_items,
                                             int num_blocks, i64 staging, i64 record_bytes) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      const int id = ids[item];
                      if (!is_block(id, num_blocks)) return;
                      const i64 in_block = segment.base + first + id * segment.stride;
                      const i64 record = staging + item * record_bytes + segment.record_offset;
                      if (GATHER)
                          move_run(in_block, record + first, bytes);
                      else
                          move_run(record + first, in_block, bytes);
                  });
}

extern "C" __global__ void __launch_bounds__(1024, 1)
gather_blocks(const Segment* segments, const Unit* units, int num_units,
              const __grid_constant__ Ids ids, int num_items, int num_blocks, i64 staging,
              i64 record_bytes) {
    move_records<true>(segments, units, num_units, ids, num_items, num_blocks, staging,
                       record_bytes);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
scatter_blocks(const Segment* segments, const Unit* units, int num_units,
               const __grid_constant__ Ids ids, int num_items, int num_blocks, i64 staging,
               i64 record_bytes) {
    move_records<false>(segments, units, num_units, ids, num_items, num_blocks, staging,
                        record_bytes);
}
