// The operations between the matrix products in training, forward with dropout and backward, with one pass over memory
// each. Sums over tokens are in the tokens' order, so a run repeats its bits with any number of threads.
#include <algorithm>
#include <cmath>
#include <functional>

#include "attention.h"
#include "numbers.h"
#include "scratch.h"
#include "team.h"

namespace {

// Runs `work(unit, thread)` for all units on all threads.
template <typename Work>
void share(int64_t threads, int64_t units, Work work) {
    Phase phase;
    Team::own().call(threads, [&](int64_t thread) { phase.run(units, [&](int64_t unit) { work(unit, thread); }); });
}

// Tokens per unit of work, and columns per unit that sums over all tokens.
constexpr int64_t TOKENS = 16, COLUMNS = 64;

template <typename Work>
void each_token(int64_t threads, int64_t tokens, Work work) {
    share(threads, (tokens + TOKENS - 1) / TOKENS, [&](int64_t unit, int64_t thread) {
        for (int64_t t = unit * TOKENS; t < std::min(tokens, (unit + 1) * TOKENS); ++t) work(t, thread);
    });
}

// Adds `value(token, column)` of every token to its row of `sums` [rows, width].
template <typename Value>
void add_by_row(int64_t threads, int64_t tokens, int64_t width, const int64_t *row_of_token, float *sums, Value value) {
    share(threads, (width + COLUMNS - 1) / COLUMNS, [&](int64_t unit, int64_t) {
        const int64_t from = unit * COLUMNS, stop = std::min(width, from + COLUMNS);
        for (int64_t t = 0; t < tokens; ++t) {
            float *to = sums + (row_of_token ? row_of_token[t] * width : 0);
#pragma omp simd
            for (int64_t i = from; i < stop; ++i) to[i] += value(t, i);
        }
    });
}

// Threshold below which a random 16-bit number keeps its activation, and the scale of kept ones.
struct Keep {
    std::int32_t below;
    float scale;
    float of(std::int16_t drawn) const { return drawn < below ? scale : 0.0f; }
};

template <typename T>
void drop(const T *x, int64_t count, const std::int16_t *drawn, Keep keep, T *out, int64_t threads) {
    constexpr int64_t SOME = 8192;
    share(threads, (count + SOME - 1) / SOME, [&](int64_t unit, int64_t) {
        const int64_t stop = std::min(count, (unit + 1) * SOME);
#pragma omp simd
        for (int64_t i = unit * SOME; i < stop; ++i) store(out[i], load(x[i]) * keep.of(drawn[i]));
    });
}

// ---- sum, bias, LayerNorm ----

// One gain for all tokens, or a table of gains and each token's index.
template <typename T>
struct Gains {
    const T *table;
    int64_t stride;
    const int64_t *of_token;
    const T *of(int64_t token) const { return table + (of_token ? of_token[token] * stride : 0); }
};

// Leaves the normalized numbers, without the gain, in `y` for the backward pass.
template <typename T>
void norm(T *y, const T *x, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token, Gains<T> gain,
          float eps, T *out, float *scales, int64_t threads) {
    Scratch scratch(threads, width);
    each_token(threads, tokens, [&](int64_t t, int64_t thread) {
        T *own = y + t * width, *to = out + t * width;
        const T *from = x + t * width, *b = bias + row_of_token[t] * stride, *g = gain.of(t);
        float *v = scratch.of(thread), total = 0, squares = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < width; ++i) {
            v[i] = load(own[i]) + load(from[i]) + load(b[i]);
            total += v[i];
        }
        const float mean = total / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; ++i) {
            v[i] -= mean;
            squares += v[i] * v[i];
        }
        const float scale = scales[t] = 1 / std::sqrt(squares / width + eps);
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) {
            store(own[i], v[i] * scale);
            store(to[i], v[i] * scale * load(g[i]));
        }
    });
}

template <typename T>
void norm_back(const T *grad, const T *normed, const float *scales, int64_t tokens, int64_t width, const int64_t *row_of_token,
               Gains<T> gain, T *grad_in, float *grad_bias, float *grad_gain, int64_t threads) {
    each_token(threads, tokens, [&](int64_t t, int64_t) {
        const T *d = grad + t * width, *n = normed + t * width, *g = gain.of(t);
        T *to = grad_in + t * width;
        float total = 0, along = 0;
#pragma omp simd reduction(+ : total, along)
        for (int64_t i = 0; i < width; ++i) {
            const float one = load(d[i]) * load(g[i]);
            total += one;
            along += one * load(n[i]);
        }
        total /= width, along /= width;
        const float scale = scales[t];
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) store(to[i], scale * (load(d[i]) * load(g[i]) - total - load(n[i]) * along));
    });
    if (grad_bias)
        add_by_row(threads, tokens, width, row_of_token, grad_bias, [=](int64_t t, int64_t i) { return load(grad_in[t * width + i]); });
    if (grad_gain)
        add_by_row(threads, tokens, width, gain.of_token, grad_gain,
                   [=](int64_t t, int64_t i) { return load(grad[t * width + i]) * load(normed[t * width + i]); });
}

// ---- bias, GELU ----

// Runs `work(first, numbers)` for each register of a token; the last one may be partial.
template <typename Work>
inline void each_register(int64_t width, Work work) {
    for (int64_t i = 0; i < width; i += LANES) work(i, std::min<int64_t>(LANES, width - i));
}

template <typename T>
inline lanes load_some(const T *from, int64_t count) {
    if (count == LANES) return load_lanes(from);
    lanes all{};
    for (int64_t i = 0; i < count; ++i) all[i] = load(from[i]);
    return all;
}

template <typename T>
inline void store_some(T *to, int64_t count, lanes all) {
    if (count == LANES) return store_lanes(to, all);
    for (int64_t i = 0; i < count; ++i) store(to[i], all[i]);
}

template <typename T>
void activate(const T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token, T *out,
              int64_t threads) {
    each_token(threads, tokens, [&](int64_t t, int64_t) {
        const T *from = z + t * width, *b = bias + row_of_token[t] * stride;
        T *to = out + t * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) store(to[i], gelu(load(from[i]) + load(b[i])));
    });
}

template <typename T>
void activate_back(const T *grad, const T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride, const int64_t *row_of_token,
                   T *grad_z, float *grad_bias, int64_t threads) {
    constexpr float density = 0.398942280f;  // the normal distribution's at zero
    each_token(threads, tokens, [&](int64_t t, int64_t) {
        const T *d = grad + t * width, *from = z + t * width, *b = bias + row_of_token[t] * stride;
        T *to = grad_z + t * width;
        each_register(width, [&](int64_t i, int64_t n) {
            const lanes x = load_some(from + i, n) + load_some(b + i, n);
            const lanes slope = normal(x) + x * density * exp_negative(x * x * -0.5f);
            store_some(to + i, n, load_some(d + i, n) * slope);
        });
    });
    if (grad_bias)
        add_by_row(threads, tokens, width, row_of_token, grad_bias, [=](int64_t t, int64_t i) { return load(grad_z[t * width + i]); });
}

// ---- attention ----

// Reduces a register by a binary operation, in halves.
template <typename Operation>
inline float together(lanes all, Operation operation) {
    float values[LANES];
    at(values) = all;
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; ++i) values[i] = operation(values[i], values[i + half]);
    return values[0];
}

// out [rows, columns] = a b for b [depth, columns]; element (r, k) of a is a[r * across + k * down].
inline void multiply(const float *a, int64_t across, int64_t down, const float *b, int64_t depth, float *out, int64_t rows, int64_t columns) {
    int64_t i = 0;
    for (; i + 2 * LANES <= columns; i += 2 * LANES) multiply_rows<2>(a, across, down, b + i, columns, depth, out + i, columns, rows);
    if (i < columns) multiply_rows<1>(a, across, down, b + i, columns, depth, out + i, columns, rows);
}

// One head of one sequence: its inputs as matrices [length, d] and transposed, rows padded to whole registers.
struct OneHead {
    OneHead(float *scratch, int64_t length, int64_t d)
        : length(length), d(d), keys(padded(length)), wide(padded(d)), q(scratch), k(q + length * wide), k_t(k + length * wide),
          v(k_t + d * keys), v_t(v + length * wide), g(v_t + d * keys), c(g + length * wide), p(c + length * wide), s(p + length * keys) {}
    static int64_t floats(int64_t length, int64_t d) {
        return 5 * length * padded(d) + 2 * d * padded(length) + 2 * length * padded(length);
    }

    // Queries with their bias and scale, keys and values.
    template <typename T>
    void read(const T *qkv, int64_t h, const T *b_q) {
        const float scale = 1 / std::sqrt(static_cast<float>(d));
        for (int64_t j = 0; j < length; ++j) {
            const T *from = qkv + j * 3 * h;
            float *const own[] = {q + j * wide, k + j * wide, v + j * wide};
#pragma omp simd
            for (int64_t i = 0; i < d; ++i) {
                own[0][i] = (load(from[i]) + load(b_q[i])) * scale;
                own[1][i] = load(from[h + i]);
                own[2][i] = load(from[2 * h + i]);
            }
            for (float *to : own) std::fill(to + d, to + wide, 0.0f);
        }
        transpose(k, k_t);
        transpose(v, v_t);
    }

    void transpose(const float *from, float *to) const {
        for (int64_t i = 0; i < d; ++i) {
            for (int64_t j = 0; j < length; ++j) to[i * keys + j] = from[j * wide + i];
            for (int64_t j = length; j < keys; ++j) to[i * keys + j] = 0;
        }
    }

    // Writes the probabilities [queries, keys] to `p`; zero past the last key.
    void attend(Beside beside) const {
        multiply(q, wide, 1, k_t, d, p, length, keys);
        for (int64_t r = 0; r < length; ++r) {
            float *own = p + r * keys;
            if (beside.added)
                for (int64_t j = 0; j < length; ++j) own[j] += beside.added[r - j];
            if (beside.window)
                for (int64_t j = 0; j < length; ++j)
                    if (std::abs(r - j) > beside.window) own[j] = FAR;
            for (int64_t j = length; j < keys; ++j) own[j] = own[0];
            lanes top = at(own), sum{};
            for (int64_t j = LANES; j < keys; j += LANES) top = larger(at(own + j), top);
            const float highest = together(top, [](float a, float b) { return a > b ? a : b; });
            for (int64_t j = 0; j < keys; j += LANES) at(own + j) = exp_negative(at(own + j) - highest);
            std::fill(own + length, own + keys, 0.0f);
            for (int64_t j = 0; j < keys; j += LANES) sum += at(own + j);
            const float share = 1 / together(sum, std::plus<float>());
            for (int64_t j = 0; j < keys; j += LANES) at(own + j) *= share;
        }
    }

    // Writes columns of a gradient or a context [length, d] to tokens `apart` numbers apart.
    template <typename T>
    void write(const float *from, float scale, T *to, int64_t apart) const {
        for (int64_t j = 0; j < length; ++j) {
#pragma omp simd
            for (int64_t i = 0; i < d; ++i) store(to[j * apart + i], from[j * wide + i] * scale);
        }
    }

    int64_t length, d, keys, wide;
    float *q, *k, *k_t, *v, *v_t, *g, *c, *p, *s;
};

// Attention's dropout numbers for each sequence: [heads, apart, apart], of which length × length are used.
struct Drawn {
    const std::int16_t *numbers;
    int64_t apart;
};

template <typename T>
struct Attention {
    const T *qkv;
    int64_t h, heads;
    const T *b_q;
    int64_t stride;
    const int64_t *row_of_token;
    const std::int32_t *edges;
    int64_t count;
    const Drawn *drawn;  // [count], or null without dropout
    Keep keep;
    const float *const *added;  // [count] tables for `of_distances`, or null
    int64_t most, window;
    int64_t threads;

    // Runs `work(head, first token, column, kept)` for every head of every sequence, with its probabilities in
    // `head.p`; kept(from, to) multiplies by the dropout mask.
    template <typename Work>
    void each(Work work) const {
        const int64_t d = h / heads;
        int64_t longest = 0;
        for (int64_t i = 0; i < count; ++i) longest = std::max<int64_t>(longest, edges[i + 1] - edges[i]);
        Scratch scratch(threads, OneHead::floats(longest, d));
        share(threads, count * heads, [&](int64_t unit, int64_t thread) {
            const int64_t i = unit / heads, turn = unit % heads, column = turn * d, start = edges[i];
            OneHead head(scratch.of(thread), edges[i + 1] - start, d);
            head.read(qkv + start * 3 * h + column, h, b_q + row_of_token[start] * stride + column);
            head.attend({added ? of_distances(added[i], turn, most) : nullptr, window});
            const std::int16_t *own = drawn ? drawn[i].numbers + turn * drawn[i].apart * drawn[i].apart : nullptr;
            const int64_t apart = drawn ? drawn[i].apart : 0;
            // Multiplies `from` by the mask, row by row.
            work(head, start, column, [&](const float *from, float *to) {
                for (int64_t r = 0; r < head.length; ++r) {
                    const float *a = from + r * head.keys;
                    float *b = to + r * head.keys;
#pragma omp simd
                    for (int64_t j = 0; j < head.length; ++j) b[j] = own ? a[j] * keep.of(own[r * apart + j]) : a[j];
                    std::fill(b + head.length, b + head.keys, 0.0f);
                }
            });
        });
    }
};

template <typename T>
void attend(const Attention<T> &a, T *out) {
    a.each([&](const OneHead &head, int64_t start, int64_t column, auto dropped) {
        dropped(head.p, head.s);
        multiply(head.s, head.keys, 1, head.v, head.length, head.c, head.length, head.wide);
        head.write(head.c, 1, out + start * a.h + column, a.h);
    });
}

template <typename T>
void attend_back(const Attention<T> &a, const T *grad, T *grad_qkv, float *grad_b) {
    a.each([&](const OneHead &head, int64_t start, int64_t column, auto dropped) {
        const int64_t length = head.length, keys = head.keys, wide = head.wide, h = a.h;
        T *to = grad_qkv + start * 3 * h + column;
        for (int64_t j = 0; j < length; ++j) {
            widen(grad + (start + j) * h + column, static_cast<const T *>(nullptr), head.d, head.g + j * wide);
            std::fill(head.g + j * wide + head.d, head.g + (j + 1) * wide, 0.0f);
        }
        dropped(head.p, head.s);
        multiply(head.s, 1, keys, head.g, length, head.c, length, wide);
        head.write(head.c, 1, to + 2 * h, 3 * h);
        multiply(head.g, wide, 1, head.v_t, head.d, head.s, length, keys);
        dropped(head.s, head.s);
        for (int64_t r = 0; r < length; ++r) {
            float *s = head.s + r * keys;
            const float *p = head.p + r * keys;
            lanes sum{};
            for (int64_t j = 0; j < keys; j += LANES) sum += at(s + j) * at(p + j);
            const float total = together(sum, std::plus<float>());
            for (int64_t j = 0; j < keys; j += LANES) at(s + j) = (at(s + j) - total) * at(p + j);
        }
        multiply(head.s, keys, 1, head.k, length, head.c, length, wide);
        head.write(head.c, 1 / std::sqrt(static_cast<float>(head.d)), to, 3 * h);
        multiply(head.s, 1, keys, head.q, length, head.c, length, wide);
        head.write(head.c, 1, to + h, 3 * h);
    });
    if (grad_b)
        add_by_row(a.threads, a.edges[a.count], a.h, a.row_of_token, grad_b, [&](int64_t t, int64_t i) { return load(grad_qkv[t * 3 * a.h + i]); });
}

}  // namespace

#define FOR_TYPE(NAME, T)                                                                                                            \
    int training_drop_##NAME(const T *x, int64_t count, const std::int16_t *drawn, Keep keep, T *out, int64_t threads) { \
        return status_of([&] { drop(x, count, drawn, keep, out, threads); });                                          \
    }                                                                                                                                \
    int training_norm_##NAME(T *y, const T *x, int64_t tokens, int64_t width, const T *bias, int64_t stride,                         \
                             const int64_t *row_of_token, const T *gain, int64_t gain_stride, const int64_t *gain_of_token,          \
                             float eps, T *out, float *scales, int64_t threads) {                                                    \
        return status_of([&] {                                                                                                       \
            norm(y, x, tokens, width, bias, stride, row_of_token, {gain, gain_stride, gain_of_token}, eps, out, scales, threads);    \
        });                                                                                                                          \
    }                                                                                                                                \
    int training_norm_back_##NAME(const T *grad, const T *normed, const float *scales, int64_t tokens, int64_t width,                \
                                  const int64_t *row_of_token, const T *gain, int64_t gain_stride, const int64_t *gain_of_token,     \
                                  T *grad_in, float *grad_bias, float *grad_gain, int64_t threads) {                                 \
        return status_of([&] {                                                                                                       \
            norm_back(grad, normed, scales, tokens, width, row_of_token, {gain, gain_stride, gain_of_token}, grad_in, grad_bias,     \
                      grad_gain, threads);                                                                                           \
        });                                                                                                                          \
    }                                                                                                                                \
    int training_activate_##NAME(const T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride,                           \
                                 const int64_t *row_of_token, T *out, int64_t threads) {                                             \
        return status_of([&] { activate(z, tokens, width, bias, stride, row_of_token, out, threads); });                             \
    }                                                                                                                                \
    int training_activate_back_##NAME(const T *grad, const T *z, int64_t tokens, int64_t width, const T *bias, int64_t stride,       \
                                      const int64_t *row_of_token, T *grad_z, float *grad_bias, int64_t threads) {                   \
        return status_of([&] { activate_back(grad, z, tokens, width, bias, stride, row_of_token, grad_z, grad_bias, threads); });    \
    }                                                                                                                                \
    int training_attend_##NAME(const Attention<T> *attention, T *out) { return status_of([&] { attend(*attention, out); }); }        \
    int training_attend_back_##NAME(const Attention<T> *attention, const T *grad, T *grad_qkv, float *grad_b) {                      \
        return status_of([&] { attend_back(*attention, grad, grad_qkv, grad_b); });                                                  \
    }

extern "C" {
FOR_TYPE(f32, float)
FOR_TYPE(bf16, bf16)
}
