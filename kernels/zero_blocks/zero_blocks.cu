#include "common.cuh"

// Every byte of the listed blocks becomes zero.
extern "C" __global__ void __launch_bounds__(1024, 1)
zero_blocks(const Segment* segments, const Unit* units, int num_units,
            const __grid_constant__ Ids ids, int num_items, int num_blocks) {
    for_each_unit(segments, units, num_units, num_items,
                  [&](int item, const Segment& segment, i64 first, int bytes) {
                      const int id = ids[item];
                      if (!is_block(id, num_blocks)) return;
                      zero_run(segment.base + first + id * segment.stride, bytes);
                  });
}
