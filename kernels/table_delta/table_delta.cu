// One thread an entry, so that a returning prompt's long run and a step's many short ones cost
// the same; the run of an entry is found by bisection in offsets.
extern "C" __global__ void __launch_bounds__(256)
table_delta(int* table, long long row_stride, int num_rows, int num_columns, const int* rows,
            const int* starts, const int* offsets, int num_runs, const int* block_ids,
            int num_entries) {
    const int entry = blockIdx.x * blockDim.x + threadIdx.x;
    if (entry >= num_entries || entry >= offsets[num_runs]) return;
    int run = 0;
    for (int end = num_runs; end - run > 1;) {
        const int middle = run + (end - run) / 2;
        if (offsets[middle] <= entry)
            run = middle;
        else
            end = middle;
    }
    const int row = rows[run];
    const long long column = static_cast<long long>(starts[run]) + (entry - offsets[run]);
    if (row < 0 || row >= num_rows || column < 0 || column >= num_columns) return;
    table[row * row_stride + column] = block_ids[entry];
}
