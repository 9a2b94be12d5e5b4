#include "common.cuh"

// Block dst[i] of every tensor becomes block src[i]; no id may be on both sides.
extern "C" __global__ void __launch_bounds__(1024, 1)
copy_blocks(const Segment* segments, const Unit* units, int num_units, const int* src,
            const int* dst, int num_items, int num_blocks) {
    for_each_unit(segments, units, num_units, num_items,
                  [=](int item, const Segment& segment, i64 first, int bytes) {
                      const int from = src[item];
                      const int to = dst[item];
                      if (!is_block(from, num_blocks) || !is_block(to, num_blocks)) return;
                      const i64 run = segment.base + first;
                      move_run(run + from * segment.stride, run + to * segment.stride, bytes);
                  });
}
