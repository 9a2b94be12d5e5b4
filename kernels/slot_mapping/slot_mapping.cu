// One thread a token; its request is found by bisection in query_start.
extern "C" __global__ void __launch_bounds__(256)
slot_mapping(const int* block_table, long long row_stride, int num_requests, int num_columns,
             const int* query_start, const long long* positions, int num_tokens, int block_size,
             long long* out, int num_slots) {
    const int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= num_slots) return;
    long long slot = -1;
    if (token < num_tokens && num_requests > 0 && token >= query_start[0] &&
        token < query_start[num_requests]) {
        int request = 0;
        for (int end = num_requests; end - request > 1;) {
            const int middle = request + (end - request) / 2;
            if (query_start[middle] <= token)
                request = middle;
            else
                end = middle;
        }
        const long long position = positions[token];
        const long long column = position / block_size;
        if (position >= 0 && column < num_columns)
            slot = static_cast<long long>(block_table[request * row_stride + column]) * block_size +
                   position % block_size;
    }
    out[token] = slot;
}
