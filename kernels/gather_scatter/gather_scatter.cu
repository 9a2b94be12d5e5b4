#include "common.cuh"

// Moves block from(i) to the record at place to(i) of the staging buffer, or the other way.
template <bool GATHER>
__device__ __forceinline__ void move_records(const Segment* segments, const Unit* units,
                                             int num_units, const Pairs& pairs, int num_items,
                                             int num_blocks, i64 num_places, i64 staging,
                                             i64 granule) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      const int id = pairs.from(item), place = pairs.to(item);
                      if (!is_block(id, num_blocks) || place < 0 || place >= num_places) return;
                      const i64 in_block = segment.base + first + id * segment.stride;
                      const i64 in_record =
                          staging + place * granule + segment.record_offset + first;
                      if (GATHER)
                          move_run(in_block, in_record, bytes);
                      else
                          move_run(in_record, in_block, bytes);
                  });
}

extern "C" __global__ void __launch_bounds__(1024, 1)
gather_blocks(const Segment* segments, const Unit* units, int num_units,
              const __grid_constant__ Pairs pairs, int num_items, int num_blocks, i64 num_places,
              i64 staging, i64 granule) {
    move_records<true>(segments, units, num_units, pairs, num_items, num_blocks, num_places,
                       staging, granule);
}

extern "C" __global__ void __launch_bounds__(1024, 1)
scatter_blocks(const Segment* segments, const Unit* units, int num_units,
               const __grid_constant__ Pairs pairs, int num_items, int num_blocks, i64 num_places,
               i64 staging, i64 granule) {
    move_records<false>(segments, units, num_units, pairs, num_items, num_blocks, num_places,
                        staging, granule);
}
