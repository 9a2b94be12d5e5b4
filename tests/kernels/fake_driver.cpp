// What the kernels' launcher asks of CUDA, on the host: a module is the path of a
// library that was built from a CUDA source, a launch runs it and returns when it is done.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int INVALID = 1, NOT_FOUND = 500, NOT_READY = 600;

struct Function {
    void (*run)(unsigned, unsigned, void**);
    std::vector<size_t> parameters;
};

struct Event {
    bool done = true;
};

}  // namespace

extern "C" {

// What a test reads and sets.
long fake_launches = 0, fake_waits = 0, fake_copies = 0, fake_destroyed = 0;
unsigned fake_last_grid = 0, fake_last_threads = 0;
int fake_runs_kernels = 1;   // 0: a launch is counted and nothing more
int fake_device_is_behind = 0;  // 1: an event is done only once the host waited for it
int fake_capturing = 0;
int fake_capture_status = 0;

int cuModuleLoadData(void** module, const char* path) {
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*module) std::fprintf(stderr, "%s\n", dlerror());
    return *module ? 0 : INVALID;
}

int cuModuleGetFunction(Function** function, void* module, const char* name) {
    static std::map<std::pair<void*, std::string>, Function> functions;
    static std::mutex lock;
    const std::lock_guard<std::mutex> guard(lock);
    Function& found = functions[{module, name}];
    if (!found.run) {
        found.run = reinterpret_cast<decltype(found.run)>(
            dlsym(module, (std::string("run_") + name).c_str()));
        auto* sizes = reinterpret_cast<int (*)(size_t*)>(
            dlsym(module, (std::string("parameters_") + name).c_str()));
        if (!found.run || !sizes) return NOT_FOUND;
        found.parameters.resize(32);
        found.parameters.resize(sizes(found.parameters.data()));
    }
    *function = &found;
    return 0;
}

int cuFuncGetParamInfo(Function* function, size_t index, size_t* offset, size_t* size) {
    if (index >= function->parameters.size()) return INVALID;
    *offset = 0;
    *size = function->parameters[index];
    return 0;
}

int cuLaunchKernel(Function* function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, void*, void** parameters, void**) {
    if (!grid || !threads || threads > 1024 || shared_bytes) return INVALID;
    ++fake_launches;
    fake_last_grid = grid;
    fake_last_threads = threads;
    if (fake_runs_kernels) function->run(grid, threads, parameters);
    return 0;
}

int cuMemcpyHtoDAsync_v2(void* target, const void* source, size_t bytes, void*) {
    std::memcpy(target, source, bytes);
    return 0;
}

int cuMemcpyBatchAsync_v2(void** targets, void** sources, size_t* sizes, size_t count, void*,
                          size_t*, size_t, void*) {
    for (size_t i = 0; i < count; ++i) std::memcpy(targets[i], sources[i], sizes[i]);
    fake_copies += static_cast<long>(count);
    return 0;
}

int cuEventCreate(Event** event, unsigned) {
    *event = new Event;
    return 0;
}

int cuEventRecord(Event* event, void*) {
    event->done = !fake_device_is_behind;
    return 0;
}

int cuEventQuery(Event* event) { return event->done ? 0 : NOT_READY; }

int cuEventSynchronize(Event* event) {
    ++fake_waits;
    event->done = true;
    return 0;
}

int cuEventDestroy_v2(Event* event) {
    ++fake_destroyed;
    delete event;
    return 0;
}

int cuStreamIsCapturing(void*, int* state) {
    *state = fake_capturing;
    return fake_capture_status;
}
}
