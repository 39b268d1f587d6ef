// Layers of the encoder over the tokens of one batch: everything between token ids and logits in one call.
//
// The residual stream x is float32 throughout; the products' inputs have their own type. `T` is the type of the tables
// (biases, gains, differences), `W` that of the packed weights: float and float, bfloat16 and bfloat16, or bfloat16 and
// 8-bit integers. A token's bits depend on its own sequence and row alone.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "branches.h"
#include "heads.h"
#include "numbers.h"
#include "quantize.h"
#include "team.h"
#include "tiles.h"

namespace {

// A packed weight; 8-bit integers have a scale per output and the sum of its scaled weights.
template <typename W>
struct Weight {
    const W *packed;
    const float *scale, *sums;
};

template <typename T, typename W>
struct Layer {
    Weight<W> qkv, m1, m2, m3;
    const T *g_LN1, *g_LN2;   // null: the layer has no such LayerNorm
    const float *cos, *sin;   // [positions, d / 2], or null if the scores turn nothing
    int64_t window;           // see `Beside`
};

// Kinds of layers.
struct Kind {
    int64_t pre_norm, gated;  // LayerNorms in front of the sublayers, the last one behind all layers; a gate in the MLP
    int64_t centered, silu;   // LayerNorm, else RMSNorm; SiLU, else GELU
};

template <typename T, typename W>
struct Model {
    int64_t h, f, heads, layers, words, positions, most;  // words, positions: rows of the tables; most: of a sequence's tokens
    Kind kind;
    float eps;
    const T *word, *position, *g_LN0;  // tables of the embeddings; g_LN0 is null without a LayerNorm
    int64_t inner() const { return kind.gated ? 2 * f : f; }  // outputs of m2
    const Layer<T, W> *layer;
};

// Branches at one site of one layer, ordered by their first token.
template <typename T>
struct Site {
    const LowRank<T> *low_rank;
    int64_t low_ranks;
    const Sparse<T> *sparse;
    int64_t sparses;
    bool empty() const { return !low_ranks && !sparses; }
};

// The sites of a layer, in the order of SITES in branches.py.
enum { AT_QKV, AT_M1, AFTER_M1, AT_M2, AT_M3, AFTER_M3, SITES };

// Places of scales, in the order of PLACES in delta.py: outputs of maps, and the input of m3.
enum { SCALE_K, SCALE_V, SCALE_M1, SCALE_M2, SCALE_INNER, SCALE_M3, PLACES };

template <typename T>
struct Scale {
    const T *table;           // [entries, layers, h or f]
    const int64_t *of_token;  // [tokens], or null if all scales are one
};

template <typename T>
struct Job {
    int64_t tokens, sequences, first_layer, last_layer;
    const int64_t *word, *position;    // [tokens]; no word if x holds the input, no position without a table
    float *x;                          // [tokens, h], in and out
    const std::int32_t *edges;         // [sequences + 1]
    const int64_t *row_of_token;       // [tokens]
    const T *shift;                    // [rows, layers, width], by the two strides: b_q (b_k) b_m1 b_m3 b_m2 (b_mg)
    int64_t shift_row, shift_layer;
    const T *g_LN0, *gain;             // [gains, h] and [gains, layers, 2, h]
    const int64_t *gain_of_token;      // [tokens], or null if all tokens take the base's
    const float *const *added;         // [sequences] tables for `of_distances`, or null
    Scale<T> scales[PLACES];
    const Site<T> *sites;              // [layers][SITES], or null
    const Classifier *classifiers;     // by their sequences
    int64_t classifier_count, threads;
};

// Whether every token is in the embedding tables, and no sequence is longer than the tables by position.
template <typename T, typename W>
bool inside(const Model<T, W> &model, const Job<T> &job) {
    const auto within = [&](const int64_t *index, int64_t lines) {
        return !index || std::all_of(index, index + job.tokens, [&](int64_t one) { return 0 <= one && one < lines; });
    };
    for (int64_t i = 0; i < job.sequences; ++i)
        if (job.edges[i + 1] - job.edges[i] > model.most) return false;
    return within(job.word, model.words) && within(job.position, model.positions);
}

// Units of a product per thread that shares it: several, so that other threads do a late thread's work, and few, since
// each unit loads its weight again.
constexpr int64_t UNITS = 6;

// Type of contexts and activations: float32 with int8 weights, which quantize a whole token at once.
template <typename W>
using Kept = std::conditional_t<sizeof(W) == 1, float, W>;

// Allocates from a cache line on: a register that lies on two lines takes two loads or stores.
template <typename T>
struct AlignedAllocator {
    using value_type = T;
    AlignedAllocator() = default;
    template <typename U>
    AlignedAllocator(const AlignedAllocator<U> &) {}
    T *allocate(std::size_t count) { return static_cast<T *>(::operator new(count * sizeof(T), std::align_val_t{64})); }
    void deallocate(T *memory, std::size_t) { ::operator delete(memory, std::align_val_t{64}); }
    bool operator==(const AlignedAllocator &) const = default;
};
template <typename T>
using AlignedVector = std::vector<T, AlignedAllocator<T>>;

template <typename Memory>
inline void grow(Memory &memory, int64_t size) {
    if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
}

// Memory for the tokens of one walk through the layers.
template <typename W>
struct Workspace {
    AlignedVector<float> qkv, y, normed;
    AlignedVector<Kept<W>> context, activations;
    AlignedVector<Input<W>> input;
    std::vector<Range> ranges;

    // Makes room for `tokens`; never shrinks.
    void fit(int64_t tokens, int64_t h, int64_t f, int64_t inner, bool pre_norm) {
        const int64_t wide = panels(h) * PANEL, wider = panels(f) * PANEL;
        grow(qkv, tokens * panels(3 * h) * PANEL), grow(y, tokens * std::max(wide, panels(inner) * PANEL));
        if (pre_norm) grow(normed, tokens * h);
        grow(context, tokens * wide), grow(activations, tokens * wider), grow(ranges, tokens);
        if constexpr (!std::is_same_v<W, float>) grow(input, tokens * std::max(wide, wider));
    }
};

// Converts sums of a product to the numbers that they stand for.
template <typename W>
inline lanes value_of(const Weight<W> &weight, const Sum<W> *sums, int64_t column, const Range *range) {
    if constexpr (sizeof(W) > 1) return at(sums);
    else {
        const lanes exact = __builtin_convertvector(*reinterpret_cast<const loose_ints *>(sums), lanes);
        return exact * range->scale * at(weight.scale + column) - (128 * range->scale + range->offset) * at(weight.sums + column);
    }
}

// The tokens of some whole sequences on their way through the layers, by all threads that share `phases`.
template <typename T, typename W>
class Walk {
  public:
    Walk(const Model<T, W> &model, const Job<T> &job, int64_t first, int64_t last, Workspace<W> &space, BranchScratch scratch, Phase *phases)
        : model_(model), job_(job), first_(first), last_(last), base_(job.edges[first]), tokens_(job.edges[last] - base_),
          h_(model.h), f_(model.f), wide_(panels(h_) * PANEL), wider_(panels(f_) * PANEL), space_(space), scratch_(scratch),
          phases_(phases), x_(job.x + base_ * h_), read_(model.kind.pre_norm ? space.normed.data() : x_) {}

    // Runs the layers from `from` to `end`.
    void run(int64_t from, int64_t end) {
        embed(from == job_.first_layer);
        for (layer_ = from; layer_ < end; ++layer_) {
            const Layer<T, W> &w = model_.layer[layer_];
            if (model_.kind.pre_norm) norm_ahead(0, w.g_LN1);
            attention(w);
            project(w.m1, kept(space_.context.data(), wide_), h_, h_, wide_);
            add_branches(AT_M1, Lines<const Kept<W>>{space_.context.data(), h_, wide_}, y(h_, wide_));
            scale_output(SCALE_M1);
            add_branches(AFTER_M1, Lines<const float>{space_.y.data(), h_, wide_}, y(h_, wide_));
            norm(0, w.g_LN1);
            if (model_.kind.pre_norm) norm_ahead(1, w.g_LN2);
            activate(w);
            project(w.m3, kept(space_.activations.data(), wider_), f_, h_, wide_);
            add_branches(AT_M3, Lines<const Kept<W>>{space_.activations.data(), f_, wider_}, y(h_, wide_));
            scale_output(SCALE_M3);
            add_branches(AFTER_M3, Lines<const float>{space_.y.data(), h_, wide_}, y(h_, wide_));
            norm(1, w.g_LN2);
        }
        if (layer_ < job_.last_layer) return;
        if (model_.kind.pre_norm && layer_ == model_.layers)
            for_tokens([&](int64_t t) { normalize<T>(x_ + t * h_, nullptr); });
        classify();
    }

  private:
    struct Read {  // a product's input: tokens, `stride` numbers apart
        const Input<W> *tokens;
        int64_t stride;
    };

    template <typename Unit>
    void phase(int64_t units, Unit unit) {
        if (phases_) return (phases_++)->run(units, unit);
        for (int64_t i = 0; i < units; ++i) unit(i);
    }

    // `each(token)` for all tokens, counted from the walk's first one.
    template <typename Each>
    void for_tokens(Each each) {
        const int64_t some = phases_ ? std::clamp<int64_t>(tokens_ / 4, 1, 8) : tokens_;
        phase((tokens_ + some - 1) / some, [&](int64_t unit) {
            for (int64_t t = unit * some; t < std::min(tokens_, (unit + 1) * some); ++t) each(t);
        });
    }

    const T *shift(int64_t t) const { return job_.shift + job_.row_of_token[base_ + t] * job_.shift_row + layer_ * job_.shift_layer; }
    const T *gain(int64_t t, int64_t which, const T *shared) const {
        if (!job_.gain_of_token) return shared;
        return job_.gain + ((job_.gain_of_token[base_ + t] * model_.layers + layer_) * 2 + which) * h_;
    }
    // A token's `width` scales at a place; null if all are one.
    const T *scale(int place, int64_t t, int64_t width) const {
        const Scale<T> &own = job_.scales[place];
        return own.of_token ? own.table + (own.of_token[base_ + t] * model_.layers + layer_) * width : nullptr;
    }
    const Site<T> *site(int which) const {
        const Site<T> *found = job_.sites ? job_.sites + layer_ * SITES + which : nullptr;
        return found && !found->empty() ? found : nullptr;
    }
    // Where b_m1 begins in a row's shift: behind the biases of queries and, if they are turned, of keys.
    int64_t behind_attention() const { return model_.layer[layer_].cos ? 2 * h_ : h_; }
    // Branches at AT_QKV and AT_M2 read x in float32, or where they multiply pairs of bfloat16 rounded, as the products do.
    auto inputs() const {
        if constexpr (MultiplyAdd<Input<W>, T>::PAIRS) return Lines<const bf16>{space_.input.data(), h_, wide_};
        else return Lines<const float>{read_, h_, h_};
    }

    Lines<float> y(int64_t width, int64_t stride) { return {space_.y.data(), width, stride}; }

    // Embeds and normalizes word and position; a walk that `begins` above the embeddings, or goes on, reads its x.
    void embed(bool begins) {
        for_tokens([&](int64_t t) {
            float *x = x_ + t * h_;
            if (job_.word && begins) {
                const T *word = model_.word + job_.word[base_ + t] * h_;
                const T *position = job_.position ? model_.position + job_.position[base_ + t] * h_ : nullptr;
#pragma omp simd
                for (int64_t i = 0; i < h_; ++i) x[i] = load(word[i]) + (position ? load(position[i]) : 0);
                if (model_.g_LN0) normalize(x, job_.gain_of_token ? job_.g_LN0 + job_.gain_of_token[base_ + t] * h_ : model_.g_LN0);
            }
            if (!model_.kind.pre_norm) prepare(x, h_, t, wide_);
        });
    }

    void attention(const Layer<T, W> &w) {
        const int64_t d = h_ / model_.heads, stride = panels(3 * h_) * PANEL;
        multiply(w.qkv, residual(), h_, 3 * h_, kept_in(space_.qkv.data(), stride));
        add_branches(AT_QKV, inputs(), Lines<float>{space_.qkv.data(), 3 * h_, stride});
        phase(model_.heads * (last_ - first_), [&](int64_t unit) {
            const int64_t sequence = first_ + unit / model_.heads, column = unit % model_.heads * d;
            const int64_t start = job_.edges[sequence] - base_, length = job_.edges[sequence + 1] - job_.edges[sequence];
            const T *key = scale(SCALE_K, start, h_), *value = scale(SCALE_V, start, h_), *b_q = shift(start) + column;
            Scales<T> own{key ? key + column : nullptr, value ? value + column : nullptr};
            const Beside beside{job_.added ? of_distances(job_.added[sequence], unit % model_.heads, model_.most) : nullptr, w.window};
            float *qkv = space_.qkv.data() + start * stride + column;
            if (w.cos) {
                turn_head(qkv, stride, h_, length, d, b_q, b_q + h_, own.key, w.cos, w.sin);
                own.key = b_q = nullptr;
            }
            attend_head(qkv, stride, h_, length, d, b_q, own, beside,
                        space_.context.data() + start * wide_ + column, wide_, scratch_.any);
        });
        if constexpr (sizeof(W) == 1) for_tokens([&](int64_t t) { prepare(space_.context.data() + t * wide_, h_, t, wide_); });
    }

    // The MLP's first map, its bias, activation and gate, into the activations.
    void activate(const Layer<T, W> &w) {
        const bool later = site(AT_M2) || job_.scales[SCALE_M2].of_token || job_.scales[SCALE_INNER].of_token || f_ % PANEL || model_.kind.gated || model_.kind.silu;
        if (!later) {
            const T *shifts = job_.shift + layer_ * job_.shift_layer + behind_attention() + 2 * h_;
            const int64_t *rows = job_.row_of_token + base_, apart = job_.shift_row, stride = wider_;
            Kept<W> *activations = space_.activations.data();
            multiply(w.m2, residual(), h_, f_, [=](int64_t t) {
                return [bias = shifts + rows[t] * apart, own = activations + t * stride](int64_t column, lanes value) {
                    store_lanes(own + column, gelu(value + load_lanes(bias + column)));
                };
            });
        } else {
            const int64_t inner = model_.inner(), stride = panels(inner) * PANEL;
            project(w.m2, residual(), h_, inner, stride);
            add_branches(AT_M2, inputs(), y(inner, stride));
            for_tokens([&](int64_t t) { activate_token(t); });
        }
        if constexpr (sizeof(W) == 1) for_tokens([&](int64_t t) { prepare(space_.activations.data() + t * wider_, f_, t, wider_); });
    }

    void activate_token(int64_t t) {
        const float *z = space_.y.data() + t * panels(model_.inner()) * PANEL, *gate = model_.kind.gated ? z + f_ : nullptr;
        const T *b = shift(t) + behind_attention() + 2 * h_, *before = scale(SCALE_M2, t, f_), *after = scale(SCALE_INNER, t, f_);
        Kept<W> *a = space_.activations.data() + t * wider_;
        int64_t i = 0;
        for (; i + LANES <= f_; i += LANES) {
            const lanes own = (before ? at(z + i) * load_lanes(before + i) : at(z + i)) + load_lanes(b + i);
            lanes value = model_.kind.silu ? silu(own) : gelu(own);
            if (gate) value *= at(gate + i) + load_lanes(b + f_ + i);
            store_lanes(a + i, after ? value * load_lanes(after + i) : value);
        }
        for (; i < f_; ++i) {
            const float own = z[i] * (before ? load(before[i]) : 1) + load(b[i]);
            const float value = (model_.kind.silu ? own / (1 + std::exp(-own)) : gelu(own)) * (gate ? gate[i] + load(b[f_ + i]) : 1);
            store(a[i], value * (after ? load(after[i]) : 1));
        }
    }

    // Scales a sublayer's output, before its adapter.
    void scale_output(int place) {
        if (!job_.scales[place].of_token) return;
        for_tokens([&](int64_t t) {
            const T *own = scale(place, t, h_);
            float *y = space_.y.data() + t * wide_;
#pragma omp simd
            for (int64_t i = 0; i < h_; ++i) y[i] *= load(own[i]);
        });
    }

    // y = x Wᵀ.
    void project(const Weight<W> &w, Read read, int64_t in, int64_t out, int64_t stride) {
        multiply(w, read, in, out, kept_in(space_.y.data(), stride));
    }

    // A `put` that stores its numbers.
    static auto kept_in(float *to, int64_t stride) {
        return [=](int64_t t) { return [own = to + t * stride](int64_t column, lanes value) { at(own + column) = value; }; };
    }

    // Calls `put(token)(column, numbers)` for the whole product, also for columns beyond `out`, up to a whole panel.
    // Captures copies of all members that it needs: the compiler must assume that a store changes any member.
    template <typename Put>
    void multiply(const Weight<W> &w, Read read, int64_t in, int64_t out, Put put) {
        const int64_t all = panels(out), some = phases_ ? std::max<int64_t>(1, all / (job_.threads * UNITS)) : all;
        phase((all + some - 1) / some, [&](int64_t unit) {
            const Range *ranges = space_.ranges.data();
            const int64_t first = unit * some, count = std::min(some, all - first);
            multiply_panels<W>(tokens_, read.tokens, read.stride, in, w.packed + first * PANEL * in, count,
                               [w, first, ranges, put](int64_t panel, int64_t t, int64_t rows, const Sum<W> *sums) {
                const int64_t column = (first + panel) * PANEL;
                for (int64_t r = 0; r < rows; ++r) {
                    const auto own = put(t + r);
                    for (int64_t i = 0; i < PANEL; i += LANES)
                        own(column + i, value_of(w, sums + r * PANEL + i, column + i, ranges + t + r));
                }
            });
        });
    }

    template <typename X>
    void add_branches(int which, const Lines<const X> &x, const Lines<float> &to) {
        const Site<T> *found = site(which);
        if (!found) return;
        phase((tokens_ + CHUNK - 1) / CHUNK, [&](int64_t unit) {
            const int64_t start = unit * CHUNK, stop = std::min(tokens_, start + CHUNK);
            add_overlapping(found->low_rank, found->low_ranks, start, stop, to, x);
            add_overlapping(found->sparse, found->sparses, start, stop, to, x);
        });
    }

    template <typename Branch, typename X>
    void add_overlapping(const Branch *branches, int64_t count, int64_t start, int64_t stop, const Lines<float> &to, const Lines<const X> &x) {
        const Branch *end = branches + count;
        const Branch *branch = std::partition_point(branches, end, [&](const Branch &one) { return one.stop <= base_ + start; });
        for (; branch < end && branch->start < base_ + stop; ++branch)
            add(*branch, std::max(start, branch->start - base_), std::min(stop, branch->stop - base_), to, x, scratch_);
    }

    // x = y + x + b, and in a post-norm layer its LayerNorm without the LayerNorm's own bias.
    void norm(int64_t which, const T *shared) {
        for_tokens([&](int64_t t) {
            float *x = x_ + t * h_;
            const float *y = space_.y.data() + t * wide_;
            const T *b = shift(t) + behind_attention() + which * h_;
#pragma omp simd
            for (int64_t i = 0; i < h_; ++i) x[i] = y[i] + x[i] + load(b[i]);
            if (model_.kind.pre_norm) return;
            normalize(x, gain(t, which, shared));
            prepare(x, h_, t, wide_);
        });
    }

    // The LayerNorm in front of a sublayer, into what its products read.
    void norm_ahead(int64_t which, const T *shared) {
        for_tokens([&](int64_t t) {
            float *to = space_.normed.data() + t * h_;
            std::copy_n(x_ + t * h_, h_, to);
            if (shared) normalize(to, gain(t, which, shared));
            prepare(to, h_, t, wide_);
        });
    }

    template <typename G>
    void normalize(float *x, const G *g) const {
        ::normalize(x, h_, model_.eps, model_.kind.centered, g);
    }

    // One token's numbers as the next product reads them, if that is another type.
    template <typename X>
    void prepare(const X *from, int64_t width, int64_t t, int64_t stride) {
        if constexpr (std::is_same_v<W, bf16>) {
            convert(from, width, space_.input.data() + t * stride);
        } else if constexpr (sizeof(W) == 1) {
            space_.ranges[t] = quantize_token(from, width, space_.input.data() + t * stride);
        }
    }

    // A sublayer's input as a product reads it.
    Read residual() const {
        if constexpr (std::is_same_v<W, float>) return {read_, h_};
        else return {space_.input.data(), wide_};
    }

    // Contexts or activations as a product reads them.
    Read kept(const Kept<W> *tokens, int64_t stride) const {
        if constexpr (sizeof(W) == 1) return {space_.input.data(), stride};
        else return {tokens, stride};
    }

    void classify() {
        const Classifier *end = job_.classifiers + job_.classifier_count;
        const auto from = [&](int64_t sequence) {
            return std::partition_point(job_.classifiers, end, [&](const Classifier &one) { return one.sequence < sequence; });
        };
        const Classifier *own = from(first_);
        phase(from(last_) - own, [&](int64_t unit) {
            const int64_t start = job_.edges[own[unit].sequence], stop = job_.edges[own[unit].sequence + 1];
            ::classify(own[unit], x_ + (start - base_) * h_, stop - start, h_, model_.eps, scratch_.any);
        });
    }

    const Model<T, W> &model_;
    const Job<T> &job_;
    const int64_t first_, last_, base_, tokens_, h_, f_, wide_, wider_;
    Workspace<W> &space_;
    const BranchScratch scratch_;
    Phase *phases_;
    float *x_;
    const float *read_;
    int64_t layer_ = 0;
};

}  // namespace
