// Packs weights that change at every step, or their transposes, with all threads; the tiles then multiply as for frozen
// weights.
#include <algorithm>

#include "scratch.h"
#include "team.h"
#include "tiles.h"

namespace {

// Swaps blocks of `half` × `half` numbers in LANES registers; with half = 8, 4, 2 and 1 in turn, rows become columns.
// Registers of eight lanes have no blocks of 8.
template <int half>
inline void swap_blocks(lanes *r) {
    if constexpr (half < LANES) {
        ints left{}, right{};
        for (int n = 0; n < LANES; ++n) left[n] = n & half ? LANES + n - half : n, right[n] = n & half ? LANES + n : n + half;
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            if (!(i & half)) {
                const lanes above = r[i], below = r[i + half];
                r[i] = __builtin_shuffle(above, below, left);
                r[i + half] = __builtin_shuffle(above, below, right);
            }
    }
}

// to [columns, rows] = transpose of from [rows, columns], with rows `to_apart` and `apart` numbers apart.
inline void transpose(const float *from, int64_t apart, int64_t rows, int64_t columns, float *to, int64_t to_apart) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            if (rows - r < LANES || columns - c < LANES) {
                for (int64_t i = r; i < std::min(rows, r + LANES); ++i)
                    for (int64_t j = c; j < std::min(columns, c + LANES); ++j) to[j * to_apart + i] = from[i * apart + j];
                continue;
            }
            lanes block[LANES];
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) block[i] = at(from + (r + i) * apart + c);
            swap_blocks<8>(block), swap_blocks<4>(block), swap_blocks<2>(block), swap_blocks<1>(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) at(to + (c + i) * to_apart + r) = block[i];
        }
}

// packed [panels][in][PANEL] of w [out, in]; element (o, k) is w[o * across + k * down], where one of both is 1.
void pack(const float *w, int64_t out, int64_t in, int64_t across, int64_t down, float *packed, int64_t threads) {
    Phase phase;
    Team::own().call(threads, [&](int64_t) {
        phase.run(panels(out), [&](int64_t p) {
            const float *from = w + p * PANEL * across;
            const int64_t columns = std::min(PANEL, out - p * PANEL);
            float *to = packed + p * PANEL * in;
            if (down == 1) transpose(from, across, columns, in, to, PANEL);
            else
                for (int64_t k = 0; k < in; ++k) std::copy_n(from + k * down, columns, to + k * PANEL);
            if (columns < PANEL)
                for (int64_t k = 0; k < in; ++k) std::fill(to + k * PANEL + columns, to + (k + 1) * PANEL, 0.0f);
        });
    });
}

void turn(const float *from, int64_t rows, int64_t columns, float *to, int64_t threads) {
    Phase phase;
    Team::own().call(threads, [&](int64_t) {
        phase.run((columns + PANEL - 1) / PANEL, [&](int64_t unit) {
            const int64_t c = unit * PANEL;
            transpose(from + c, columns, rows, std::min(PANEL, columns - c), to + c * rows, rows);
        });
    });
}

}  // namespace

extern "C" {
int pack_trained(const float *w, int64_t out, int64_t in, int64_t across, int64_t down, float *packed, int64_t threads) {
    return status_of([&] { pack(w, out, in, across, down, packed, threads); });
}
int transpose(const float *from, int64_t rows, int64_t columns, float *to, int64_t threads) {
    return status_of([&] { turn(from, rows, columns, to, threads); });
}
}
