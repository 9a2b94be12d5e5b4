#include "common.cuh"

// Record i of the staging buffer becomes block ids[i].
extern "C" __global__ void __launch_bounds__(1024, 1)
gather_blocks(const Segment* segments, const Unit* units, int num_units,
              const __grid_constant__ Ids ids, int num_items, int num_blocks, i64 staging,
              i64 record_bytes) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      const int id = ids[item];
                      if (!is_block(id, num_blocks)) return;
                      const i64 record = staging + item * record_bytes + segment.record_offset;
                      move_run(segment.base + first + id * segment.stride, record + first, bytes);
                  });
}

// Block ids[i] becomes record i of the staging buffer.
extern "C" __global__ void __launch_bounds__(1024, 1)
scatter_blocks(const Segment* segments, const Unit* units, int num_units,
               const __grid_constant__ Ids ids, int num_items, int num_blocks, i64 staging,
               i64 record_bytes) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      const int id = ids[item];
                      if (!is_block(id, num_blocks)) return;
                      const i64 record = staging + item * record_bytes + segment.record_offset;
                      move_run(record + first, segment.base + first + id * segment.stride, bytes);
                  });
}
