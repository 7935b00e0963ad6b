// A call of few_rows.cpp, compiled with it for another kind of processor: reads the memory of the call from a file, with
// the addresses that it had, computes, and writes the memory back. See emulated.py.

#include <cstdio>
#include <cstdlib>
#ifdef OWN_THREADS
#include <thread>

// OpenMP's threads as a race detector sees them: it does not know how those of GCC's library wait for each other.
namespace {
thread_local int own_number = 0, own_count = 1;
}
extern "C" {
int omp_get_thread_num() noexcept { return own_number; }
int omp_get_num_threads() noexcept { return own_count; }
void GOMP_parallel(void (*part)(void*), void* data, unsigned count, unsigned) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; i++)
        threads.emplace_back([=] {
            own_number = (int)i, own_count = (int)count;
            part(data);
        });
    for (std::thread& thread : threads) thread.join();
}
}
#endif

namespace {

struct Region {
    int64_t address, size;
    char* bytes;
};

std::vector<Region> regions;

void need(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

char* place(int64_t address) {
    for (const Region& region : regions)
        if (address >= region.address && address < region.address + region.size)
            return region.bytes + (address - region.address);
    need(false, "an address is in no region");
    return nullptr;
}

template <class T> void relocate(T*& pointer) {
    if (pointer) pointer = (T*)place((int64_t)pointer);
}

}  // namespace

int main(int, char** given) {
    std::FILE* file = std::fopen(given[1], "r+b");
    need(file, "no file");
    int64_t head[5];  // number of regions; address of the operations, how many, address of the call; steps, 0 for sequences
    need(std::fread(head, sizeof head, 1, file) == 1, "no head");
    for (int64_t i = 0; i < head[0]; i++) {
        int64_t told[2];
        need(std::fread(told, sizeof told, 1, file) == 1, "no region");
        regions.push_back({told[0], told[1], (char*)std::malloc(told[1])});
        need((int64_t)std::fread(regions.back().bytes, 1, told[1], file) == told[1], "a region is short");
    }
    Operation* operations = (Operation*)place(head[1]);
    for (int64_t i = 0; i < head[2]; i++) {
        Operation& op = operations[i];
        relocate(op.weight), relocate(op.groups), relocate(op.scale), relocate(op.bias);
        relocate(op.query_norm), relocate(op.key_norm);
    }
    Call* call = (Call*)place(head[3]);
    for (const Region& region : regions)
        if (region.address == (int64_t)call->keys)
            for (KeyValues* keys = (KeyValues*)region.bytes; (char*)(keys + 1) <= region.bytes + region.size; keys++) {
                relocate(keys->key), relocate(keys->value), relocate(keys->slots), relocate(keys->rows);
                relocate(keys->bias);
            }
    relocate(call->scratch), relocate(call->scores), relocate(call->cosine), relocate(call->sine);
    relocate(call->keys), relocate(call->progress), relocate(call->tokens), relocate(call->log_p);
    relocate(call->positions), relocate(call->ends), relocate(call->has_ended);
    relocate(call->starts), relocate(call->selected), relocate(call->selected_starts);
    const int64_t done = head[4] ? run(operations, head[2], call, head[4]) : 0;
    if (!head[4]) run_sequences(operations, head[2], call);
    std::rewind(file);
    std::fwrite(&done, sizeof done, 1, file);
    std::fseek(file, sizeof head, SEEK_SET);
    for (const Region& region : regions) {
        std::fseek(file, 2 * sizeof(int64_t), SEEK_CUR);
        std::fwrite(region.bytes, 1, region.size, file);
    }
    return std::fclose(file);
}
