// The branches of all rows at one site in one call; `y` is rounded once for each branch.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "branches.h"
#include "numbers.h"
#include "scratch.h"

namespace {

// The branches of one span stand together in `branches`. One thread adds all of them to a chunk of its tokens, in their
// order, so that no two threads write to one token.
template <typename Branch, typename T>
void add_all(const Branch *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in, int64_t threads) {
    struct Chunk {
        const Branch *first, *last;
        int64_t start;
    };
    std::vector<Chunk> chunks;
    const Branch *end = branches + count;
    for (const Branch *first = branches, *last; first < end; first = last) {
        last = std::find_if(first, end, [&](const Branch &other) { return other.start != first->start; });
        for (int64_t start = first->start; start < first->stop; start += CHUNK) chunks.push_back({first, last, start});
    }
    const int64_t total = chunks.size();
    int64_t most = 0;
    for (const Branch *branch = branches; branch < end; ++branch) most = std::max(most, floats(*branch, in));
    const int64_t zeros = std::is_same_v<Branch, Sparse<T>> ? out * LANES : 0;
    Scratch scratch(threads, zeros + most);
#pragma omp parallel num_threads(threads)
    {
        float *own = scratch.own();
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < total; ++i)
            for (const Branch *branch = chunks[i].first; branch < chunks[i].last; ++branch)
                add(*branch, chunks[i].start, std::min(chunks[i].start + CHUNK, branch->stop), Lines<T>{y, out, out},
                    Lines<const T>{x, in, in}, BranchScratch{own, own + zeros});
    }
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                         \
    int add_low_rank_##NAME(const LowRank<T> *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in, \
                             int64_t threads) {                                                                   \
        return status_of([&] { add_all(branches, count, y, out, x, in, threads); });                              \
    }                                                                                                             \
    int add_sparse_##NAME(const Sparse<T> *branches, int64_t count, T *y, int64_t out, const T *x, int64_t in,    \
                           int64_t threads) {                                                                     \
        return status_of([&] { add_all(branches, count, y, out, x, in, threads); });                              \
    }

extern "C" {
FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)
}
