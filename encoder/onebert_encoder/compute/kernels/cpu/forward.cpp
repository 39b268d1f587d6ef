// Entry points of a whole forward pass, of a single product, and of the packing of weights.
#include "forward.h"

#include <limits>

#include "scratch.h"

namespace {

// Status for a token outside the tables; `status_of` returns the others.
constexpr int OUTSIDE = 2;

// Most phases per layer, and phases before the first and after the last layer.
constexpr int64_t PHASES_OF_LAYER = 20, PHASES_OUTSIDE = 3;

template <typename T>
int64_t scratch_floats(const Job<T> &job, int64_t h, int64_t inner, int64_t heads) {
    int64_t longest = 0, low_rank = 0;
    for (int64_t i = 0; i < job.sequences; ++i) longest = std::max<int64_t>(longest, job.edges[i + 1] - job.edges[i]);
    if (job.sites)
        for (const Site<T> *site = job.sites + job.first_layer * SITES; site < job.sites + job.last_layer * SITES; ++site)
            for (int64_t i = 0; i < site->low_ranks; ++i) low_rank = std::max(low_rank, floats(site->low_rank[i], h));
    const int64_t branches = job.sites ? std::max(low_rank, std::max(h, inner) * LANES) : 0;
    return padded(std::max({Head::floats(longest, h / heads), branches, 3 * h}));
}

// Tokens of a group, and the fewest groups for each of several threads. Threads that share several small groups are seldom
// without work, also while the system runs something else on their cores; larger groups load weights less often, which
// counts where products are fast. With AVX-512 and matrix registers these sizes were not measured.
struct Grouping {
    int64_t tokens, per_thread;
};
#ifdef MATRIX_REGISTERS
template <typename W>
constexpr Grouping GROUPING = sizeof(W) < 4 ? Grouping{384, 1} : Grouping{128, 2};
#else
template <typename W>
constexpr Grouping GROUPING{LANES == 16 ? 128 : 96, 2};
#endif

// Sequences [first, last), which one thread at a time takes through a layer.
struct Group {
    int64_t first, last;
};

// Groups of whole sequences, the largest first; equally many for each thread if the sequences allow it. One group, which
// all threads share, if the tokens are few or the largest group would keep one thread busy while the others wait.
template <typename T>
std::vector<Group> groups_of(const Job<T> &job, Grouping wanted) {
    const auto *edges = job.edges;
    const int64_t tokens = edges[job.sequences], round = job.threads * wanted.tokens;
    const int64_t count = job.threads * std::max(job.threads > 1 ? wanted.per_thread : 1, (tokens + round / 2) / round);
    std::vector<Group> groups;
    for (int64_t first = 0, last; first < job.sequences; first = last) {
        const int64_t left = std::max<int64_t>(1, count - static_cast<int64_t>(groups.size())), edge = edges[first] + (tokens - edges[first]) / left;
        for (last = first + 1; last < job.sequences && edges[last + 1] - edge <= edge - edges[last];) ++last;
        groups.push_back({first, last});
    }
    const auto size = [&](const Group &one) { return edges[one.last] - edges[one.first]; };
    std::stable_sort(groups.begin(), groups.end(), [&](const Group &left, const Group &right) { return size(left) > size(right); });
    if (3 * tokens <= round * wanted.per_thread || 8 * size(groups[0]) * job.threads > 9 * tokens) return {{0, job.sequences}};
    return groups;
}

// In place of a group's next layer while a thread runs it.
constexpr int64_t HELD = std::numeric_limits<int64_t>::max();

// Calls `run(thread, group, layer)` for all layers of all groups. The group that is furthest behind comes first: all read
// a layer's weights while these are in the cache, and a thread that the system does not run holds up its own group alone.
// A thread that finds no group for a while leaves, and its core to others.
template <typename T, typename Run>
void take_layers(const Job<T> &job, int64_t groups, Run run) {
    std::vector<std::atomic<int64_t>> reached(groups);  // by group, its next layer
    for (auto &layer : reached) layer = job.first_layer;
    Team::own().call(job.threads, [&](int64_t thread) {
        for (int turns = 0; turns < SLEEP_AFTER; ++turns) {
            int64_t next = -1, layer = job.last_layer;
            bool held = false;
            for (int64_t i = 0; i < groups; ++i) {
                const int64_t own = reached[i].load(std::memory_order_relaxed);
                held |= own == HELD;
                if (own < layer) next = i, layer = own;
            }
            if (next < 0 && !held) return;
            if (next < 0) {
                pause_briefly();
            } else if (reached[next].compare_exchange_strong(layer, HELD, std::memory_order_acquire)) {
                run(thread, next, layer);
                reached[next].store(layer + 1, std::memory_order_release);
                turns = 0;
            }
        }
    });
}

// Memory that a calling thread keeps for its next call.
template <typename W>
struct Memory {
    std::vector<Workspace<W>> spaces;
    AlignedVector<float> zeros, scratch;
};

template <typename T, typename W>
void forward(const Model<T, W> &model, const Job<T> &job) {
    thread_local Memory<W> memory;
    const int64_t threads = job.threads, zeros = job.sites ? std::max(3 * model.h, model.inner()) * LANES : 0;
    const int64_t floats = scratch_floats(job, model.h, model.inner(), model.heads);
    const std::vector<Group> groups = groups_of(job, GROUPING<W>);
    const int64_t largest = job.edges[groups[0].last] - job.edges[groups[0].first];
    const bool together = groups.size() == 1;
    grow(memory.zeros, threads * zeros), grow(memory.scratch, threads * floats), grow(memory.spaces, together ? 1 : threads);
    for (int64_t i = 0; i < (together ? 1 : threads); ++i) memory.spaces[i].fit(largest, model.h, model.f, model.inner(), model.kind.pre_norm);
    // `memory` is thread_local: helpers reach the caller's through this reference.
    auto &kept = memory;
    const auto scratch = [&](int64_t thread) { return BranchScratch{kept.zeros.data() + thread * zeros, kept.scratch.data() + thread * floats}; };
    if (together) {
        std::vector<Phase> phases((job.last_layer - job.first_layer) * PHASES_OF_LAYER + PHASES_OUTSIDE);
        Team::own().call(threads, [&](int64_t thread) {
            Walk<T, W>(model, job, 0, job.sequences, kept.spaces[0], scratch(thread), threads > 1 ? phases.data() : nullptr)
                .run(job.first_layer, job.last_layer);
        });
        return;
    }
    take_layers(job, static_cast<int64_t>(groups.size()), [&](int64_t thread, int64_t group, int64_t layer) {
        Walk<T, W>(model, job, groups[group].first, groups[group].last, kept.spaces[thread], scratch(thread), nullptr).run(layer, layer + 1);
    });
}

// Rows of x that a panel passes while both stay in the cache: each block loads the weight from far memory again.
constexpr int64_t BLOCK = 256;

// Panels per unit of work of a thread.
constexpr int64_t PANELS = 128 / PANEL;

// y [tokens, out] = x Wᵀ in the type of x; for int8, x is quantized first.
template <typename T, typename W>
void product(const T *x, int64_t tokens, int64_t in, const Weight<W> &weight, int64_t out, T *y, int64_t threads) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK, of_block = (panels(out) + PANELS - 1) / PANELS;
    std::vector<Input<W>> quantized;
    std::vector<Range> ranges(sizeof(W) == 1 ? tokens : 0);
    if constexpr (sizeof(W) == 1) quantized.resize(tokens * in);
    Phase preparing, multiplying;
    Team::own().call(threads, [&](int64_t) {
        const Input<W> *read;
        if constexpr (sizeof(W) == 1) {
            preparing.run(tokens, [&](int64_t t) { ranges[t] = quantize_token(x + t * in, in, quantized.data() + t * in); });
            read = quantized.data();
        } else {
            read = x;
        }
        multiplying.run(blocks * of_block, [&](int64_t unit) {
            const int64_t first = unit / of_block * BLOCK, from = unit % of_block * PANELS, many = std::min(PANELS, panels(out) - from);
            multiply_panels<W>(std::min(BLOCK, tokens - first), read + first * in, in, in, weight.packed + from * PANEL * in, many,
                               [=, ranges = ranges.data()](int64_t panel, int64_t t, int64_t rows, const Sum<W> *sums) {
                const int64_t p = from + panel, count = std::min<int64_t>(PANEL, out - p * PANEL);
                for (int64_t r = 0; r < rows; ++r) {
                    T *to = y + (first + t + r) * out + p * PANEL;
                    const Range *range = ranges + first + t + r;
                    if (count == PANEL) {
                        for (int64_t i = 0; i < PANEL; i += LANES)
                            store_lanes(to + i, value_of(weight, sums + r * PANEL + i, p * PANEL + i, range));
                        continue;
                    }
                    alignas(64) float line[PANEL];
                    for (int64_t i = 0; i < PANEL; i += LANES) at(line + i) = value_of(weight, sums + r * PANEL + i, p * PANEL + i, range);
                    for (int64_t i = 0; i < count; ++i) store(to[i], line[i]);
                }
            });
        });
    });
}

}  // namespace

#define FOR_TYPE(NAME, T, W)                                                                                             \
    int forward_##NAME(const Model<T, W> *model, const Job<T> *job) {                                                   \
        return inside(*model, *job) ? status_of([&] { forward(*model, *job); }) : OUTSIDE;                              \
    }                                                                                                                   \
    int product_##NAME(const T *x, int64_t tokens, int64_t in, const Weight<W> *weight, int64_t out, T *y,              \
                       int64_t threads) {                                                                               \
        return status_of([&] { product(x, tokens, in, *weight, out, y, threads); });                                    \
    }                                                                                                                   \
    int pack_##NAME(const W *w, int64_t out, int64_t in, W *packed) {                                                   \
        return status_of([&] { pack_weight(w, out, in, packed); });                                                     \
    }

extern "C" {
// Call once before any other entry: returns 0 if this process may use all instructions that the code is compiled for.
int enable() { return enable_instructions(); }
FOR_TYPE(f32, float, float)
FOR_TYPE(bf16, bf16, bf16)
FOR_TYPE(int8, bf16, std::int8_t)
}
