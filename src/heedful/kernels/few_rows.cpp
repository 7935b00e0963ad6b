// Few rows of tokens through the blocks of a stack on a CPU, as `heedful/kernels/few_rows.py` describes them.
//
// A step of decoding reads every weight once and computes little with it, so it should take the time that the memory
// needs. Weights stay in their own format (float32, bfloat16, float16, int8, int4) until they are in a register;
// norms, activations and sums are float32; rows are rounded where the processor multiplies small numbers. One parallel region computes the whole list of operations. A linear map has two
// layouts: rows of weights, for any processor, and interleaved ones for AVX512, where a lane is an output, so that one
// read of the weights serves many rows. Every sum of a row is in the same order whatever the other rows are.
//
// Shapes: R rows (one token each), K inputs, N outputs, H query heads, G key-value heads, S keys, E head size.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <omp.h>
#include <sched.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_TILE__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__F16C__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int STEP = 32;              // inputs that are read at a time; also the size of a group of int4
constexpr int PARTS = STEP / LANES;   // vectors in a step
constexpr int SPINS = 10000;       // looks at another thread's chunk before the processor is offered to others
constexpr int OUTPUTS = 4, ROWS = 4;  // of a tile, whose sums stay in registers

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef uint8_t Nibbles __attribute__((vector_size(LANES)));

template <class T> inline T load(const void* address) {
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}

inline float from_bits(uint32_t bits) { return load<float>(&bits); }
inline uint32_t bits_of(float number) { return load<uint32_t>(&number); }

// A float16 number, without the type _Float16: GCC knows it in C++ from version 12 or 13 on, by processor.
inline float float16_number(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff;
    if (size >= 0x7c00) return from_bits(sign | 0x7f800000u | size << 13);               // infinity, NaN
    if (size >= 0x0400) return from_bits(sign | ((size << 13) + ((127u - 15u) << 23)));  // the exponents' offsets
    return from_bits(sign | bits_of((float)size * 0x1p-24f));
}

// Numbers of memory as float32. Intrinsics where there are some: GCC 12 converts short vectors in many instructions.
#if defined(__AVX512F__)
inline float sum(Vector v) { return _mm512_reduce_add_ps((__m512)v); }
inline Vector from_float16(const void* p) { return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Vector from_int8(const void* p) {
    return (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
}
#elif defined(__AVX2__) && defined(__F16C__)
inline float sum(Vector v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline Vector from_float16(const void* p) { return (Vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
inline Vector from_int8(const void* p) {
    return (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
}
#else
inline float sum(Vector v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}
inline Vector from_float16(const void* p) {
    const Bits half = __builtin_convertvector(load<Halves>(p), Bits), size = half & 0x7fff;
    const Bits large = (Bits)(size >= 0x7c00), normal = (Bits)(size >= 0x0400);
    const Vector small = __builtin_convertvector((Integers)size, Vector) * 0x1p-24f;
    const Bits shifted = ((size << 13) + ((127u - 15u) << 23)) | (large & 0x7f800000u);  // of infinity, NaN: the largest
    return (Vector)((half & 0x8000) << 16 | (normal & shifted) | (~normal & (Bits)small));
}
inline Vector from_int8(const void* p) {
    return __builtin_convertvector(__builtin_convertvector(load<Bytes>(p), Integers), Vector);
}
inline Vector from_bfloat16(const void* p) {
    return (Vector)(__builtin_convertvector(load<Halves>(p), Bits) << 16);
}
#endif

// -------------------------------------------------------------------------------------------- formats of weights
// read(k, out): STEP weights of a row from its input k on; one(k): a single weight, for the inputs after the last step

struct Float32 {
    const float* w;
    static constexpr int bits = 32;
    static constexpr bool scaled = false;
    Float32(const void* weights, const void*, int64_t row, int64_t inputs) : w((const float*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = load<Vector>(w + k + p * LANES);
    }
    float one(int64_t k) const { return w[k]; }
};

struct BFloat16 {
    const uint16_t* w;
    static constexpr int bits = 16;
    static constexpr bool scaled = false;
    BFloat16(const void* weights, const void*, int64_t row, int64_t inputs)
        : w((const uint16_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++)
            out[p] = from_bfloat16(w + k + p * LANES);
    }
    float one(int64_t k) const { return from_bits((uint32_t)w[k] << 16); }
};

struct Float16 {
    const uint16_t* w;
    static constexpr int bits = 16;
    static constexpr bool scaled = false;
    Float16(const void* weights, const void*, int64_t row, int64_t inputs)
        : w((const uint16_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = from_float16(w + k + p * LANES);
    }
    float one(int64_t k) const { return float16_number(w[k]); }
};

struct Int8 {  // w = scale q, one scale for each output
    const int8_t* w;
    static constexpr int bits = 8;
    static constexpr bool scaled = true;
    Int8(const void* weights, const void*, int64_t row, int64_t inputs) : w((const int8_t*)weights + row * inputs) {}
    void read(int64_t k, Vector* out) const {
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) out[p] = from_int8(w + k + p * LANES);
    }
    float one(int64_t k) const { return w[k]; }
};

struct Int4 {  // w = scale (q − 8) + middle in groups of STEP; a byte holds inputs i (lower half) and i + STEP / 2 of its group
    const uint8_t* w;
    const uint32_t* pairs;  // of each group the bfloat16 numbers scale (lower half) and middle
    static constexpr int bits = 4;
    static constexpr bool scaled = false;
    Int4(const void* weights, const void* groups, int64_t row, int64_t inputs)
        : w((const uint8_t*)weights + row * (inputs / 2)), pairs((const uint32_t*)groups + row * (inputs / STEP)) {}
    void read(int64_t k, Vector* out) const {
        const uint32_t pair = pairs[k / STEP];
        const float scale = from_bits(pair << 16), low = from_bits(pair & 0xffff0000u) - 8 * scale;
        for (int p = 0; p < PARTS / 2; p++) {
            const Nibbles both = load<Nibbles>(w + k / 2 + p * LANES), first = both & 15, second = both >> 4;
            out[p] = from_int8(&first) * scale + low;
            out[p + PARTS / 2] = from_int8(&second) * scale + low;
        }
    }
    float one(int64_t) const { return 0; }  // never called: K is a multiple of STEP
};

}  // namespace

// -------------------------------------------------------------------------------- what Python fills: see few_rows.py

extern "C" {

struct Operation {
    int64_t kind, x, y;  // x, y: offsets of buffers in the scratch memory, in floats a row
    int64_t inputs, outputs, format, activation, layer, accumulate;
    int64_t group;         // inputs of int8 with a common scale of x, a multiple of 64; int4 has scales of its own for STEP
    const void *weight, *groups;
    const float *scale, *bias;
    const float *query_norm, *key_norm;
    int64_t heads, kv_heads, head_size;
    double factor, epsilon, key_epsilon;
};

struct KeyValues {  // of one attention: (row b, head g, column s) is at b * row_stride + g * head_stride + s * E
    char *key, *value;
    int64_t row_stride, head_stride, columns, queries_per_source;
    const int64_t* slots;                // (R,) column of the new token, of several steps the first; null: the last
    const int64_t* rows;                 // (R,) row b of each row of the call, which may share one; null: in order
    int64_t in_order;                    // true if a row may not attend to the columns after its new one
    const float* bias;                   // (R or 1, H or 1, S); null: none
    int64_t bias_row_stride, bias_head_stride;
};

struct Progress {  // of an operation; fills a cache line, against false sharing
    std::atomic<int64_t> taken, done;
    int64_t unused[6];
};

struct Call {
    int64_t rows, threads, bfloat16_keys;
    float *scratch, *scores;    // scores: max_keys for each thread
    int64_t max_keys;
    const float *cosine, *sine;  // (R or 1, E); null: no rotation
    int64_t rotation_stride;
    const KeyValues* keys;    // two for each layer: self-attention, cross-attention
    Progress* progress;  // zeros, one for each operation of each step
    // of several steps, each with the token that the one before has chosen:
    int64_t step;            // number of this one: so many keys have joined each cache since the first
    int64_t step_rotation;   // distance in the tables of rotations from one step to the next
    int64_t* tokens;         // (steps + 1, R) tokens that are read, and chosen
    float* log_p;            // (steps, R) log p of the chosen ones; null: not wanted
    const float* positions;  // (steps, position_rows, D) that are added to the embedding; null: none
    int64_t position_rows;   // R, or 1 for all rows together
    const int64_t* ends;     // (end_count,) tokens that end a row
    int64_t end_count, without_end;  // at most MOST_ENDS; of the first steps none may be chosen
    uint8_t* has_ended;      // (steps + 1, R): after each step; the first row is 0
    int64_t enough;          // number of ended rows after which no further step is taken
    // of whole sequences:
    int64_t width;                    // D, of the residual stream, which is the first buffer
    int64_t bfloat16_attention;       // true if attention rounds what it multiplies to bfloat16
    int64_t causal;                   // true if a token attends to itself and those before it
    int64_t sequences, shared;        // buffers from the offset ``shared`` on are needed for some rows at a time
    const int64_t* starts;            // (sequences + 1,) first row of each, and R
    int64_t last_layer;               // whose attention has the queries ``selected`` alone
    const int64_t* selected;          // (M,) rows, ascending, which become the rows 0 to M - 1; null: all
    const int64_t* selected_starts;   // (sequences + 1,) first of each sequence, and M
};
}

namespace {

enum Kind { LAYER_NORM, RMS_NORM, LINEAR, APPEND, SELF_ATTENTION, CROSS_ATTENTION, MULTIPLY, ADD, EMBED, CHOOSE };
enum WeightFormat { FLOAT32, BFLOAT16, FLOAT16, INT8, INT4 };
enum Activation { NONE, RELU, GELU, GELU_TANH, SILU, TANH };

// e^x with an error of about one unit in the last place; 0 below e^−87, where float32 has no normal numbers.
inline Vector exponential(Vector x) {
    const float rounder = 12582912.0f;  // 1.5 · 2^23: a sum with it is a whole number, in the lowest bits
    const Vector shifted = x * 1.44269504088896341f + rounder, whole = shifted - rounder;
    const Vector rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;  // ln 2 in two parts
    Vector sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;  // the polynomial of Cephes' expf
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    const Vector power = (Vector)(((Bits)shifted + 127u) << 23);  // 2^whole
    return x < -87.0f ? Vector{} : x > 88.0f ? x * INFINITY : sum * power;
}

// erf x = x P(x²) / Q(x²) with an error of at most 4e-7; P and Q fit its values up to 3.92, where it is 1 in float32.
inline Vector error_function(Vector x) {
    const Vector most = Vector{} + 3.92f, near = x > most ? most : x < -most ? -most : x, square = near * near;
    Vector p = square * 2.025909e-06f + 2.84688344e-04f;
    p = p * square + 3.80817731e-03f;
    p = p * square + 5.28755002e-02f;
    p = p * square + 1.91550627e-01f;
    p = p * square + 1.12837911e+00f;
    Vector q = square * 3.78318437e-05f + 1.17072999e-03f;
    q = q * square + 1.50551219e-02f;
    q = q * square + 1.14559762e-01f;
    q = q * square + 5.03090024e-01f;
    q = q * square + 1.0f;
    const Vector y = near * p / q;
    return y > 1.0f ? Vector{} + 1.0f : y < -1.0f ? Vector{} - 1.0f : y;  // NaN stays
}

inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

inline Vector activated(Vector x, int64_t activation) {
    switch (activation) {
        case RELU: return x <= 0.0f ? Vector{} : x;  // NaN stays
        case GELU: return 0.5f * x * (1.0f + error_function(x * 0.70710678118654752f));
        case GELU_TANH: return x * sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
        case SILU: return x * sigmoid(x);
        case TANH:
            for (int i = 0; i < LANES; i++) x[i] = std::tanh(x[i]);
            return x;
        default: return x;
    }
}

// y = f(y) of ``count`` numbers.
template <class Function> inline void apply(float* y, int64_t count, const Function& f) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const Vector part = f(load<Vector>(y + i));
        std::memcpy(y + i, &part, sizeof part);
    }
    if (i < count) {
        Vector part = {};
        std::memcpy(&part, y + i, (count - i) * sizeof(float));
        part = f(part);
        std::memcpy(y + i, &part, (count - i) * sizeof(float));
    }
}

void activate(float* y, int64_t count, int64_t activation) {
    apply(y, count, [=](Vector x) { return activated(x, activation); });
}

// Buffers of a call, or of some of its rows.
struct Buffers {
    const Call& call;
    int64_t rows, first;  // rows to compute, and which of the call's rows is the first of them
    float* own;           // buffers of these rows alone, those from call.shared on, side by side; null: all are the call's
    int64_t own_width;    // of a row of them
    float* row(int64_t offset, int64_t width, int64_t r) const {
        if (own && offset >= call.shared) return own + r * own_width + offset - call.shared;
        return call.scratch + offset * call.rows + (first + r) * width;
    }
};

// ------------------------------------------------------------------------------------------------- linear maps

// The activation of up to ``width`` outputs of all rows, from n on.
void activate_rows(const Operation& op, const Buffers& buffers, int64_t n, int64_t width) {
    if (op.activation == NONE) return;
    width = std::min(width, op.outputs - n);
    for (int64_t r = 0; r < buffers.rows; r++) activate(buffers.row(op.y, op.outputs, r) + n, width, op.activation);
}

// Output n of row r, from its sum of products; the activation comes later.
inline void store(const Operation& op, const Buffers& buffers, int64_t n, int64_t r, float total) {
    total = op.bias ? total + op.bias[n] : total;
    float* y = buffers.row(op.y, op.outputs, r) + n;
    *y = op.accumulate ? *y + total : total;
}

template <class Format, int N, int R>
inline void tile(const Operation& op, const Buffers& buffers, int64_t n, int64_t r) {
    Vector sums[N][R] = {};
    const int64_t inputs = op.inputs, whole = inputs - inputs % STEP;
    const float* x = buffers.row(op.x, inputs, r);
    const auto weights = [&](int i) { return Format(op.weight, op.groups, n + i, inputs); };
    for (int64_t k = 0; k < whole; k += STEP) {
        Vector columns[R][PARTS];
#pragma GCC unroll 16
        for (int j = 0; j < R; j++)
#pragma GCC unroll 16
            for (int p = 0; p < PARTS; p++) columns[j][p] = load<Vector>(x + j * inputs + k + p * LANES);
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {
            Vector w[PARTS];
            const Format format = weights(i);
            format.read(k, w);
            for (int64_t line = 0; line < Format::bits * STEP / 8; line += 64)  // of the next tile
                __builtin_prefetch((const char*)format.w + (k + N * inputs) * Format::bits / 8 + line);
#pragma GCC unroll 16
            for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) sums[i][j] += w[p] * columns[j][p];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) {
            float total = sum(sums[i][j]);
            for (int64_t k = whole; k < inputs; k++) total += weights(i).one(k) * x[j * inputs + k];
            store(op, buffers, n + i, r + j, Format::scaled ? total * op.scale[n + i] : total);
        }
}

template <class Format, int N> inline void outputs(const Operation& op, const Buffers& buffers, int64_t n) {
    int64_t r = 0;
    for (; r + ROWS <= buffers.rows; r += ROWS) tile<Format, N, ROWS>(op, buffers, n, r);
    switch (buffers.rows - r) {
        case 3: tile<Format, N, 3>(op, buffers, n, r); break;
        case 2: tile<Format, N, 2>(op, buffers, n, r); break;
        case 1: tile<Format, N, 1>(op, buffers, n, r); break;
    }
}

// Interleaved weights: blocks of BLOCK outputs, one in each lane, so that no sum crosses lanes. A block holds its inputs in
// order, in lines of 64 bytes: an input of float32, two of 16 bits, four of 8 bits, eight of 4 bits for each output.
// Integer weights are multiplied by bytes, to which the rows of x are rounded first (Rows::read).
#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define IS_INTERLEAVED

constexpr int64_t BLOCK = 16;
constexpr int64_t BLOCKS = 4;     // of a tile of one or two rows
constexpr int64_t AHEAD = 1024;   // bytes of weights that are fetched before they are needed
constexpr int64_t MANY = 24;      // rows from which tiles have the shape that computes most, not the one that waits least

inline __mmask16 first_lanes(int64_t count) { return count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1); }

// Outputs n to n + 15 of a row, to ``y``, as `store`.
inline void store_block(const Operation& op, int64_t n, float* y, __m512 totals) {
    if (n + BLOCK <= op.outputs) {  // stores under a mask take many times as long
        if (op.bias) totals = _mm512_add_ps(totals, _mm512_loadu_ps(op.bias + n));
        if (op.accumulate) totals = _mm512_add_ps(_mm512_loadu_ps(y), totals);
        return _mm512_storeu_ps(y, totals);
    }
    const __mmask16 present = first_lanes(op.outputs - n);
    if (op.bias) totals = _mm512_add_ps(totals, _mm512_maskz_loadu_ps(present, op.bias + n));
    if (op.accumulate) totals = _mm512_add_ps(_mm512_maskz_loadu_ps(present, y), totals);
    _mm512_mask_storeu_ps(y, present, totals);
}

inline void store_block(const Operation& op, const Buffers& buffers, int64_t n, int64_t r, __m512 totals) {
    store_block(op, n, buffers.row(op.y, op.outputs, r) + n, totals);
}

// Rounds ``count`` numbers to bytes; returns their scale, which is NaN if a number is not finite.
inline float round_to_bytes(const float* x, int64_t count, int8_t* bytes, int32_t* total) {
    const auto part = [=](int64_t i) __attribute__((always_inline)) {
        return i + 16 <= count ? _mm512_loadu_ps(x + i) : _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    };
    __m512i sizes = _mm512_setzero_si512();  // as integers: a NaN is larger than infinity, and both than any number
    for (int64_t i = 0; i < count; i += 16)
        sizes = _mm512_max_epi32(sizes, _mm512_castps_si512(_mm512_abs_ps(part(i))));
    const int32_t size = _mm512_reduce_max_epi32(sizes);
    const bool is_finite = size < 0x7f800000;
    const float largest = from_bits((uint32_t)size);
    const __m512 factor = _mm512_set1_ps(is_finite && largest > 0 ? 127 / largest : 0);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 16) {
        const __m512i levels = _mm512_cvtps_epi32(_mm512_mul_ps(part(i), factor));
        sum = _mm512_add_epi32(sum, levels);
        _mm_storeu_si128((__m128i*)(bytes + i), _mm512_cvtsepi32_epi8(levels));
    }
    *total = is_finite ? _mm512_reduce_add_epi32(sum) : 0;
    return is_finite ? largest / 127 : NAN;
}

inline __m512i four_bytes(const int8_t* bytes) { return _mm512_set1_epi32(load<int32_t>(bytes)); }

// sums += Σ of four products of bytes in each lane. GCC 12 copies every sum if it is an intrinsic.
inline void add_products(__m512i& sums, __m512i weights, __m512i x) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(x));
}

struct Int8Block {  // w = scale (byte − 128)
    struct Rows {
        int64_t stride, groups;        // of a row: bytes with zeros up to a whole group, and their groups
        std::vector<int8_t> bytes;
        std::vector<float> scales;
        std::vector<int32_t> offsets;  // −128 Σ x of each group, which makes its bytes signed

        void read(const Operation& op, const Buffers& buffers) {
            const int64_t count = buffers.rows;
            groups = (op.inputs + op.group - 1) / op.group;
            stride = groups * op.group;
            bytes.resize(count * stride);
            scales.resize(count * groups);
            offsets.resize(count * groups);
            for (int64_t r = 0; r < count; r++) {
                std::memset(&bytes[r * stride + op.inputs], 0, stride - op.inputs);
                for (int64_t g = 0; g < groups; g++) {
                    const int64_t first = g * op.group, own = r * groups + g;
                    const float* x = buffers.row(op.x, op.inputs, r) + first;
                    int8_t* y = &bytes[r * stride + first];
                    scales[own] = round_to_bytes(x, std::min(op.group, op.inputs - first), y, &offsets[own]);
                    offsets[own] *= -128;
                }
            }
        }
    };

    static constexpr int BLOCKS_OF_8_ROWS = 1;  // whose sums stay in registers
    static constexpr int MANY_BLOCKS = 4, MANY_ROWS = 6;
    static int64_t size(int64_t inputs) { return (inputs + 63) / 64 * 1024; }  // bytes of a block: whole tiles

    // dots (N, R) = x W of N blocks, ``bytes`` each, and ``lines`` of them. Of many rows the weights are in the cache, and
    // those that come next are fetched: a line at ``next`` and the following, ``step`` from each other. Inlined, the sums
    // would lose their registers.
    template <int N, int R>
    __attribute__((noinline)) static void multiply(const char* weights, int64_t bytes, const int8_t* x, int64_t stride,
                                                   int64_t lines, __m512i* dots, const char* next, int64_t step) {
        __m512i sums[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_si512();
        for (int64_t k = 0; k < lines; k++, next += step) {
            __m512i w[N];
            if (is_of_many<N, R>) _mm_prefetch(next, _MM_HINT_T1);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                if (!is_of_many<N, R>) _mm_prefetch(weights + i * bytes + k * 64 + AHEAD, _MM_HINT_T0);
                w[i] = _mm512_loadu_si512(weights + i * bytes + k * 64);
            }
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) {
                const __m512i four = four_bytes(x + j * stride + 4 * k);
#pragma GCC unroll 16
                for (int i = 0; i < N; i++) add_products(sums[i][j], w[i], four);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) _mm512_store_si512(dots + i * R + j, sums[i][j]);
    }

    template <int N, int R> static constexpr bool is_of_many = N * R >= MANY_BLOCKS * MANY_ROWS;

    template <int N, int R>
    static void tile(const Operation& op, const Buffers& buffers, const Rows& rows, int64_t block, int64_t r) {
        const int64_t fours = (op.inputs + 3) / 4, bytes = size(op.inputs), step = r / R * fours * 64 < N * bytes ? 64 : 0;
        const char *weights = (const char*)op.weight + block * bytes, *next = weights + N * bytes + r / R * fours * step;
        __m512 sums[N][R];
        __m512i dots[N * R];
        const auto signed_dot = [&](int i, int j, __m512i offset) {
            return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_load_si512(dots + i * R + j), offset));
        };
        for (int64_t g = 0; g < rows.groups; g++) {
            const int64_t first = g * op.group / 4, lines = std::min(op.group / 4, fours - first);
            const int8_t* x = &rows.bytes[r * rows.stride + first * 4];
            multiply<N, R>(weights + first * 64, bytes, x, rows.stride, lines, dots, next + first * step, step);
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) {
                const int64_t own = (r + j) * rows.groups + g;
                const __m512i offset = _mm512_set1_epi32(rows.offsets[own]);
                const __m512 scale = _mm512_set1_ps(rows.scales[own]);
#pragma GCC unroll 16
                for (int i = 0; i < N; i++) {
                    const __m512 dot = signed_dot(i, j, offset);
                    sums[i][j] = g ? _mm512_fmadd_ps(dot, scale, sums[i][j]) : _mm512_mul_ps(dot, scale);
                }
            }
        }
        const int64_t n = block * BLOCK;
        float* y = buffers.row(op.y, op.outputs, r) + n;
        const int64_t y_stride = buffers.row(op.y, op.outputs, r + 1) + n - y;
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {
            const __m512 scale = _mm512_maskz_loadu_ps(first_lanes(op.outputs - n - i * BLOCK), op.scale + n + i * BLOCK);
#pragma GCC unroll 16
            for (int j = 0; j < R; j++)
                store_block(op, n + i * BLOCK, y + j * y_stride + i * BLOCK, _mm512_mul_ps(sums[i][j], scale));
        }
    }
};

// w = scale (q − 8) + middle. A group's product has the scale of its weights times that of its x; rounding x adds a
// tenth of their error.
struct Int4Block {
    struct Rows {
        int64_t stride, groups;  // of a row: bytes, and their groups
        std::vector<int8_t> bytes;
        std::vector<float> scales, sums;
        std::vector<int32_t> offsets;  // −8 Σ x of each group

        void read(const Operation& op, const Buffers& buffers) {
            const int64_t count = buffers.rows;
            groups = op.inputs / STEP;
            stride = op.inputs;
            bytes.resize(count * stride);
            scales.resize(count * groups);
            sums.resize(count * groups);
            offsets.resize(count * groups);
            for (int64_t g = 0; g < count * groups; g++) {
                const float* x = buffers.row(op.x, op.inputs, g / groups) + g % groups * STEP;
                scales[g] = round_to_bytes(x, STEP, &bytes[g * STEP], &offsets[g]);
                sums[g] = scales[g] * offsets[g];  // of what is multiplied
                offsets[g] *= -8;
            }
        }
    };

    static constexpr int BLOCKS_OF_8_ROWS = 1, MANY_BLOCKS = 1, MANY_ROWS = 8;
    static int64_t size(int64_t inputs) { return inputs / STEP * 256; }

    // Of each group four lines of bytes: line k has inputs 4 k to 4 k + 3 in the lower halves, those 16 on in the upper.
    template <int N, int R>
    static void tile(const Operation& op, const Buffers& buffers, const Rows& rows, int64_t block, int64_t r) {
        const int64_t groups = op.inputs / STEP, bytes = size(op.inputs);
        const char *weights = (const char*)op.weight + block * bytes, *pairs = (const char*)op.groups + block * groups * 64;
        const __m512i low_half = _mm512_set1_epi8(15);
        __m512 sums[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
        for (int64_t g = 0; g < groups; g++) {
            __m512i dots[N][R];
#pragma GCC unroll 16
            for (int i = 0; i < N; i++)
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) dots[i][j] = _mm512_set1_epi32(rows.offsets[(r + j) * rows.groups + g]);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
#pragma GCC unroll 16
                for (int i = 0; i < N; i++) {
                    const char* line = weights + i * bytes + g * 256 + k * 64;
                    _mm_prefetch(line + AHEAD, _MM_HINT_T0);
                    const __m512i both = _mm512_loadu_si512(line), low = _mm512_and_si512(both, low_half);
                    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half);
#pragma GCC unroll 16
                    for (int j = 0; j < R; j++) {
                        const int8_t* x = &rows.bytes[(r + j) * rows.stride + g * STEP + 4 * k];
                        dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], low, four_bytes(x));
                        dots[i][j] = _mm512_dpbusd_epi32(dots[i][j], high, four_bytes(x + STEP / 2));
                    }
                }
            }
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                const char* line = pairs + (i * groups + g) * 64;
                _mm_prefetch(line + AHEAD / 4, _MM_HINT_T0);
                const __m512i pair = _mm512_loadu_si512(line);
                const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
                const __m512 middle = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000u)));
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) {
                    const int64_t own = (r + j) * rows.groups + g;
                    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[own]));
                    sums[i][j] = _mm512_fmadd_ps(middle, _mm512_set1_ps(rows.sums[own]), sums[i][j]);
                    sums[i][j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][j]), factor, sums[i][j]);
                }
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) store_block(op, buffers, (block + i) * BLOCK, r + j, sums[i][j]);
    }
};

// Weights of float32, bfloat16 or float16. read(line, w): the INPUTS of a line of 16 outputs, as float32.
struct Float32Line {
    static constexpr int INPUTS = 1;
    static void read(const char* line, __m512* w) { w[0] = _mm512_loadu_ps(line); }
};

struct BFloat16Line {
    static constexpr int INPUTS = 2;
    static void read(const char* line, __m512* w) {
        const __m512i both = _mm512_loadu_si512(line);
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
    }
};

struct Float16Line {
    static constexpr int INPUTS = 2;
    static void read(const char* line, __m512* w) {
        const __m512i both = _mm512_loadu_si512(line);
        w[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
        w[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
    }
};

template <class Line> struct FloatBlock {
    struct Rows {
        const float* x;
        int64_t stride;
        void read(const Operation& op, const Buffers& buffers) {
            x = buffers.row(op.x, op.inputs, 0);
            stride = buffers.row(op.x, op.inputs, 1) - x;
        }
    };

    static constexpr int INPUTS = Line::INPUTS, BLOCKS_OF_8_ROWS = 2, MANY_BLOCKS = 4, MANY_ROWS = 6;
    static int64_t size(int64_t inputs) { return INPUTS == 1 ? inputs * 64 : (inputs + 31) / 32 * 1024; }  // whole tiles

    template <int N, int R>
    static void tile(const Operation& op, const Buffers& buffers, const Rows& rows, int64_t block, int64_t r) {
        const int64_t bytes = size(op.inputs), lines = op.inputs / INPUTS;
        const char* weights = (const char*)op.weight + block * bytes;
        __m512 sums[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
        const auto add = [&](int64_t line, int count) __attribute__((always_inline)) {
            __m512 w[N][INPUTS];
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                _mm_prefetch(weights + i * bytes + line * 64 + AHEAD, _MM_HINT_T0);
                Line::read(weights + i * bytes + line * 64, w[i]);
            }
#pragma GCC unroll 2
            for (int p = 0; p < count; p++)
#pragma GCC unroll 16
                for (int j = 0; j < R; j++) {
                    const __m512 x = _mm512_set1_ps(rows.x[(r + j) * rows.stride + line * INPUTS + p]);
#pragma GCC unroll 16
                    for (int i = 0; i < N; i++) sums[i][j] = _mm512_fmadd_ps(w[i][p], x, sums[i][j]);
                }
        };
        for (int64_t line = 0; line < lines; line++) add(line, INPUTS);
        if (op.inputs % INPUTS) add(lines, 1);
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) store_block(op, buffers, (block + i) * BLOCK, r + j, sums[i][j]);
    }
};

#if defined(__AVX512BF16__)
struct BFloat16Rows {
    int64_t stride;
    std::vector<uint16_t> numbers;  // zeros up to a whole tile

    void read(const Operation& op, const Buffers& buffers) {
        stride = (op.inputs + 31) / 32 * 32;
        numbers.assign(buffers.rows * stride, 0);
        for (int64_t r = 0; r < buffers.rows; r++)
            for (int64_t i = 0; i < op.inputs; i += 16) {
                const float* x = buffers.row(op.x, op.inputs, r) + i;
                const __m512 part = _mm512_maskz_loadu_ps(first_lanes(op.inputs - i), x);
                _mm256_storeu_si256((__m256i*)&numbers[r * stride + i], (__m256i)_mm512_cvtneps_pbh(part));
            }
    }
};

// As FloatBlock<BFloat16Line>, with rows rounded to bfloat16, of which an instruction multiplies two inputs.
struct BFloat16Block {
    typedef BFloat16Rows Rows;
    static constexpr int BLOCKS_OF_8_ROWS = 2, MANY_BLOCKS = 4, MANY_ROWS = 6;
    static int64_t size(int64_t inputs) { return (inputs + 31) / 32 * 1024; }

    template <int N, int R>
    static void tile(const Operation& op, const Buffers& buffers, const Rows& rows, int64_t block, int64_t r) {
        const int64_t bytes = size(op.inputs), lines = (op.inputs + 1) / 2;
        const char* weights = (const char*)op.weight + block * bytes;
        const uint16_t* x = &rows.numbers[r * rows.stride];
        __m512 sums[N][R];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
        for (int64_t line = 0; line < lines; line++) {
            __m512bh w[N];
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) {
                _mm_prefetch(weights + i * bytes + line * 64 + AHEAD, _MM_HINT_T0);
                w[i] = (__m512bh)_mm512_loadu_si512(weights + i * bytes + line * 64);
            }
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) {
                const __m512bh pair = (__m512bh)_mm512_set1_epi32(load<int32_t>(x + j * rows.stride + 2 * line));
#pragma GCC unroll 16
                for (int i = 0; i < N; i++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], w[i], pair);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
#pragma GCC unroll 16
            for (int j = 0; j < R; j++) store_block(op, buffers, (block + i) * BLOCK, r + j, sums[i][j]);
    }
};
#endif

thread_local const Operation* rounded = nullptr;  // of the present call, whose rows this thread has rounded

template <class Format, int N>
inline void blocks(const Operation& op, const Buffers& buffers, const typename Format::Rows& rows, int64_t block) {
    const int64_t count = buffers.rows;
    int64_t r = 0;
    constexpr int of_8 = std::min(N, Format::BLOCKS_OF_8_ROWS), of_4 = std::min(N, 2 * Format::BLOCKS_OF_8_ROWS);
    for (; r + 8 <= count; r += 8)
        for (int i = 0; i < N; i += of_8) Format::template tile<of_8, 8>(op, buffers, rows, block + i, r);
    for (; r + 4 <= count; r += 4)
        for (int i = 0; i < N; i += of_4) Format::template tile<of_4, 4>(op, buffers, rows, block + i, r);
    for (; r + 2 <= count; r += 2) Format::template tile<N, 2>(op, buffers, rows, block, r);
    if (r < count) Format::template tile<N, 1>(op, buffers, rows, block, r);
}

// Of many rows, N blocks: the largest tiles whose sums stay in registers.
template <class Format, int N>
inline void blocks_of_many(const Operation& op, const Buffers& buffers, const typename Format::Rows& rows, int64_t block) {
    const int64_t count = buffers.rows;
    int64_t r = 0;
    for (; r + Format::MANY_ROWS <= count; r += Format::MANY_ROWS)
        Format::template tile<N, Format::MANY_ROWS>(op, buffers, rows, block, r);
    for (; r + 4 <= count; r += 4) Format::template tile<N, 4>(op, buffers, rows, block, r);
    for (; r + 2 <= count; r += 2) Format::template tile<N, 2>(op, buffers, rows, block, r);
    if (r < count) Format::template tile<N, 1>(op, buffers, rows, block, r);
    activate_rows(op, buffers, block * BLOCK, N * BLOCK);
}

// Products in tiles (AMX): 16 lines of weights, of up to four blocks, times up to 32 rows.
#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define HAS_TILES

constexpr int64_t TILED = 5;  // rows of int8 from which tiles are faster than vectors; both give the same bits

// Linux gives a process the registers on request.
bool has_tiles() {
    static const bool granted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return granted;
}

struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Registers: 0 to 3 sums, 4 and 5 the first and the other rows of x, 6 and 7 weights.
struct Tiles {
    static constexpr int ROWS = 16, MOST = 32;
    int count, wide;  // rows; blocks at a time: 4 of up to 16 rows, 2 of more
    alignas(64) int32_t sums[4][ROWS][16];

    explicit Tiles(int64_t rows) : count((int)rows), wide(rows > ROWS ? 2 : 4) {
        const uint8_t first = (uint8_t)std::min(count, ROWS), rest = (uint8_t)(count - first);
        TileShapes shapes;
        for (int t = 0; t < 8; t++) {
            const bool is_second = rest && (t == 2 || t == 3 || t == 5);
            shapes.rows[t] = t > 5 ? 16 : is_second ? rest : first;
            shapes.bytes[t] = 64;
        }
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }

    // sums = x W of ``blocks`` blocks, whose sizes are ``bytes``, and ``steps`` tiles of inputs.
    template <bool is_bytes>
    void multiply(const char* x, int64_t stride, const char* weights, int64_t bytes, int64_t blocks, int64_t steps) {
#define MULTIPLY(c, a, b)                 \
    if constexpr (is_bytes)               \
        _tile_dpbsud(c, a, b);            \
    else                                  \
        _tile_dpbf16ps(c, a, b);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < steps; step++, x += 64, weights += 1024) {
            for (int64_t i = 0; i < blocks; i++)
                for (int64_t line = 0; line < 1024; line += 64)
                    _mm_prefetch(weights + i * bytes + 2 * AHEAD + line, _MM_HINT_T0);
            _tile_loadd(4, x, stride);
            _tile_loadd(6, weights, 64);
            MULTIPLY(0, 4, 6)
            if (blocks > 1) {
                _tile_loadd(7, weights + bytes, 64);
                MULTIPLY(1, 4, 7)
            }
            if (wide == 2) {
                _tile_loadd(5, x + ROWS * stride, stride);
                MULTIPLY(2, 5, 6)
                if (blocks > 1) MULTIPLY(3, 5, 7)
                continue;
            }
            if (blocks > 2) {
                _tile_loadd(6, weights + 2 * bytes, 64);
                MULTIPLY(2, 4, 6)
            }
            if (blocks > 3) {
                _tile_loadd(7, weights + 3 * bytes, 64);
                MULTIPLY(3, 4, 7)
            }
        }
#undef MULTIPLY
        _tile_stored(0, sums[0], 64);
        if (blocks > 1) _tile_stored(1, sums[1], 64);
        if (wide == 2 || blocks > 2) _tile_stored(2, sums[2], 64);
        if (wide == 2 ? blocks > 1 : blocks > 3) _tile_stored(3, sums[3], 64);
    }

    // Sums of a row of a block.
    const int32_t* of(int64_t i, int64_t r) const { return r < ROWS ? sums[i][r] : sums[i + 2][r - ROWS]; }
};

void bfloat16_tiles(const Operation& op, const Buffers& buffers, int64_t block, int64_t end) {
    static thread_local BFloat16Rows rows;
    if (rounded != &op) rows.read(op, buffers);
    rounded = &op;
    const int64_t count = buffers.rows, stride = rows.stride * 2, bytes = rows.stride / 32 * 1024;
    for (int64_t r = 0; r < count; r += Tiles::MOST) {
        Tiles tiles(std::min<int64_t>(count - r, Tiles::MOST));
        const char* x = (const char*)&rows.numbers[r * rows.stride];
        for (int64_t b = block; b < end; b += tiles.wide) {
            const int64_t blocks = std::min<int64_t>(tiles.wide, end - b);
            tiles.multiply<false>(x, stride, (const char*)op.weight + b * bytes, bytes, blocks, rows.stride / 32);
            for (int64_t i = 0; i < blocks; i++)
                for (int64_t j = 0; j < tiles.count; j++)
                    store_block(op, buffers, (b + i) * BLOCK, r + j, _mm512_load_ps((const float*)tiles.of(i, j)));
        }
    }
}

void int8_tiles(const Operation& op, const Buffers& buffers, const Int8Block::Rows& rows, int64_t block, int64_t end) {
    const int64_t count = buffers.rows, bytes = Int8Block::size(op.inputs);
    for (int64_t r = 0; r < count; r += Tiles::MOST) {
        Tiles tiles(std::min<int64_t>(count - r, Tiles::MOST));
        for (int64_t b = block; b < end; b += tiles.wide) {
            const int64_t blocks = std::min<int64_t>(tiles.wide, end - b);
            __m512 sums[4][Tiles::ROWS];
            const auto sum = [&](int64_t i, int64_t j) -> __m512& {
                return j < Tiles::ROWS ? sums[i][j] : sums[i + 2][j - Tiles::ROWS];
            };
            for (int64_t g = 0; g < rows.groups; g++) {
                const char *x = (const char*)&rows.bytes[r * rows.stride + g * op.group];
                const char* weights = (const char*)op.weight + b * bytes + g * (op.group / 64 * 1024);
                const int64_t steps = (std::min(op.group, op.inputs - g * op.group) + 63) / 64;
                tiles.multiply<true>(x, rows.stride, weights, bytes, blocks, steps);
                for (int64_t j = 0; j < tiles.count; j++) {
                    const __m512i offset = _mm512_set1_epi32(rows.offsets[(r + j) * rows.groups + g]);
                    const __m512 scale = _mm512_set1_ps(rows.scales[(r + j) * rows.groups + g]);
                    for (int64_t i = 0; i < blocks; i++) {
                        const __m512i dots = _mm512_add_epi32(_mm512_load_si512(tiles.of(i, j)), offset);
                        const __m512 before = g ? sum(i, j) : _mm512_setzero_ps();
                        sum(i, j) = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, before);
                    }
                }
            }
            for (int64_t i = 0; i < blocks; i++) {
                const int64_t n = (b + i) * BLOCK;
                const __m512 scale = _mm512_maskz_loadu_ps(first_lanes(op.outputs - n), op.scale + n);
                for (int64_t j = 0; j < tiles.count; j++)
                    store_block(op, buffers, n, r + j, _mm512_mul_ps(sum(i, j), scale));
            }
        }
    }
}
#endif

template <class Format>
void interleaved_linear(const Operation& op, const Buffers& buffers, int64_t first, int64_t end) {
    static thread_local typename Format::Rows rows;
    if (rounded != &op) rows.read(op, buffers);
    rounded = &op;
    int64_t block = first / BLOCK;
    const int64_t last = (end + BLOCK - 1) / BLOCK;
#ifdef HAS_TILES
    if constexpr (std::is_same<Format, Int8Block>::value)
        if (buffers.rows >= TILED && has_tiles()) {
            int8_tiles(op, buffers, rows, block, last);
            return activate_rows(op, buffers, first, end - first);
        }
#endif
    if (buffers.rows >= MANY) {
        constexpr int wide = Format::MANY_BLOCKS;
        for (; block + wide <= last; block += wide) blocks_of_many<Format, wide>(op, buffers, rows, block);
        for (; block < last; block++) blocks_of_many<Format, 1>(op, buffers, rows, block);
        return;
    }
    for (; block + BLOCKS <= last; block += BLOCKS) {
        blocks<Format, BLOCKS>(op, buffers, rows, block);
        activate_rows(op, buffers, block * BLOCK, BLOCKS * BLOCK);
    }
    for (; block < last; block++) {
        blocks<Format, 1>(op, buffers, rows, block);
        activate_rows(op, buffers, block * BLOCK, BLOCK);
    }
}

#endif

template <class Format> void linear(const Operation& op, const Buffers& buffers, int64_t first, int64_t end) {
    int64_t n = first;
    for (; n + OUTPUTS <= end; n += OUTPUTS) outputs<Format, OUTPUTS>(op, buffers, n);
    for (; n < end; n++) outputs<Format, 1>(op, buffers, n);
    activate_rows(op, buffers, first, end - first);
}

#ifdef IS_INTERLEAVED
constexpr int64_t UNIT = BLOCK * BLOCKS;  // outputs, in which an operation is divided among threads
#else
constexpr int64_t UNIT = OUTPUTS;
#endif

void linear_of_format(const Operation& op, const Buffers& buffers, int64_t chunk, int64_t chunks) {
    const int64_t tiles = (op.outputs + UNIT - 1) / UNIT;
    const int64_t first = tiles * chunk / chunks * UNIT;
    const int64_t end = std::min(tiles * (chunk + 1) / chunks * UNIT, op.outputs);
    switch (op.format) {
#ifdef IS_INTERLEAVED
        case FLOAT32: interleaved_linear<FloatBlock<Float32Line>>(op, buffers, first, end); break;
        case BFLOAT16:
#ifdef HAS_TILES
            if (has_tiles()) {
                bfloat16_tiles(op, buffers, first / BLOCK, (end + BLOCK - 1) / BLOCK);
                activate_rows(op, buffers, first, end - first);
                break;
            }
#endif
#if defined(__AVX512BF16__)
            interleaved_linear<BFloat16Block>(op, buffers, first, end);
#else
            interleaved_linear<FloatBlock<BFloat16Line>>(op, buffers, first, end);
#endif
            break;
        case FLOAT16: interleaved_linear<FloatBlock<Float16Line>>(op, buffers, first, end); break;
        case INT8: interleaved_linear<Int8Block>(op, buffers, first, end); break;
        case INT4: interleaved_linear<Int4Block>(op, buffers, first, end); break;
#else
        case FLOAT32: linear<Float32>(op, buffers, first, end); break;
        case BFLOAT16: linear<BFloat16>(op, buffers, first, end); break;
        case FLOAT16: linear<Float16>(op, buffers, first, end); break;
        case INT8: linear<Int8>(op, buffers, first, end); break;
        case INT4: linear<Int4>(op, buffers, first, end); break;
#endif
    }
}

// ------------------------------------------------------------------------------------------------------ norms

void rms_norm(const float* x, float* y, int64_t width, const float* weight, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += x[i] * x[i];
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++) y[i] = x[i] * factor * (weight ? weight[i] : 1.0f);
}

void layer_norm(const float* x, float* y, int64_t width, const float* weight, const float* bias, float epsilon) {
    float mean = 0, squares = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t i = 0; i < width; i++) mean += x[i];
    mean /= width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
    const float factor = 1.0f / std::sqrt(squares / width + epsilon);
    for (int64_t i = 0; i < width; i++)
        y[i] = (x[i] - mean) * factor * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

// -------------------------------------------------------------------------------------------------- attention

struct FloatCache {
    typedef float Number;
    static Vector read(const Number* p) { return load<Vector>(p); }
    static float one(Number x) { return x; }
    static Number stored(float x) { return x; }
};

struct BFloat16Cache {
    typedef uint16_t Number;
    static Vector read(const Number* p) { return from_bfloat16(p); }
    static float one(Number x) { return from_bits((uint32_t)x << 16); }
    static Number stored(float x) {  // to the nearest, ties to even
        const uint32_t bits = load<uint32_t>(&x);
        return (uint16_t)(x == x ? (bits + 0x7fffu + (bits >> 16 & 1)) >> 16 : 0x7fc0u);
    }
};

// x in place: its norm, then the rotation (a, b) → (a cos − b sin, b cos + a sin) of its halves a and b
void normalise_and_rotate(float* x, const Operation& op, const float* norm, float epsilon, const Call& call, int64_t r) {
    const int64_t size = op.head_size, half = size / 2;
    if (norm) rms_norm(x, x, size, norm, epsilon);
    if (!call.cosine) return;
    const float *cosine = call.cosine + r * call.rotation_stride, *sine = call.sine + r * call.rotation_stride;
    for (int64_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] + b * sine[i];
        x[i + half] = b * cosine[i + half] + a * sine[i + half];
    }
}

template <class Cache>
float dot(const float* q, const typename Cache::Number* k, int64_t size) {
    Vector sums = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) sums += load<Vector>(q + i) * Cache::read(k + i);
    float total = sum(sums);
    for (; i < size; i++) total += q[i] * Cache::one(k[i]);
    return total;
}

// One query head of a row: softmax(factor q kᵀ + bias) v; zeros if no key may be attended to.
template <class Cache>
void attend(const float* q, const KeyValues& keys, const Operation& op, int64_t step, int64_t r, int64_t h, float* scores,
            float* y) {
    typedef typename Cache::Number Number;
    const int64_t size = op.head_size, head = h / (op.heads / op.kv_heads);
    const int64_t columns = step + (keys.in_order ? keys.slots[r] + 1 : keys.columns);
    const int64_t source = r / keys.queries_per_source;
    const int64_t first = (keys.rows ? keys.rows[r] : source) * keys.row_stride + head * keys.head_stride;
    const Number *key = (const Number*)keys.key + first, *value = (const Number*)keys.value + first;
    const float* bias = keys.bias ? keys.bias + source * keys.bias_row_stride + h * keys.bias_head_stride : nullptr;
    float largest = -INFINITY;
    for (int64_t s = 0; s < columns; s++) {
        scores[s] = (float)op.factor * dot<Cache>(q, key + s * size, size) + (bias ? bias[s] : 0.0f);
        largest = std::max(largest, scores[s]);
    }
    std::fill(y, y + size, 0.0f);
    const auto is_masked = [](float score) { return score == -INFINITY; };  // not NaN, which stays
    if (largest == -INFINITY && std::all_of(scores, scores + columns, is_masked)) return;
    apply(scores, columns, [=](Vector x) { return exponential(x - largest); });
    float total = 0;
    for (int64_t s = 0; s < columns; s++) total += scores[s];
    const float share = 1.0f / total;
    int64_t i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) {
        Vector sums[4] = {};
        for (int64_t s = 0; s < columns; s++)
            for (int p = 0; p < 4; p++) sums[p] += scores[s] * Cache::read(value + s * size + i + p * LANES);
        for (int p = 0; p < 4; p++) {
            sums[p] *= share;
            std::memcpy(y + i + p * LANES, &sums[p], sizeof(Vector));
        }
    }
    for (; i + LANES <= size; i += LANES) {
        Vector sums = {};
        for (int64_t s = 0; s < columns; s++) sums += scores[s] * Cache::read(value + s * size + i);
        sums *= share;
        std::memcpy(y + i, &sums, sizeof(Vector));
    }
    for (; i < size; i++) {
        for (int64_t s = 0; s < columns; s++) y[i] += scores[s] * Cache::one(value[s * size + i]);
        y[i] *= share;
    }
}

// The key and value of a row in a group of heads join the cache.
template <class Cache>
void append(const Operation& op, const Buffers& buffers, const KeyValues& keys, int64_t unit) {
    typedef typename Cache::Number Number;
    const int64_t size = op.head_size, r = unit / op.kv_heads, g = unit % op.kv_heads;
    const int64_t row = buffers.first + r;
    float *k = buffers.row(op.x, op.inputs, r) + (op.heads + g) * size, *v = k + op.kv_heads * size;
    normalise_and_rotate(k, op, op.key_norm, (float)op.key_epsilon, buffers.call, row);
    const int64_t column = buffers.call.step + (keys.slots ? keys.slots[row] : keys.columns - 1);
    const int64_t place = (keys.rows ? keys.rows[row] : row) * keys.row_stride + g * keys.head_stride + column * size;
    for (int64_t i = 0; i < size; i++) {
        ((Number*)keys.key)[place + i] = Cache::stored(k[i]);
        ((Number*)keys.value)[place + i] = Cache::stored(v[i]);
    }
}

// Self-attention of a row (q, k, v) in a group of heads, whose key and value join the cache first, unless rows share
// one: then all have joined before; cross-attention of q.
template <class Cache>
void attention(const Operation& op, const Buffers& buffers, const KeyValues& keys, bool is_self, int64_t unit, int thread) {
    const Call& call = buffers.call;
    const int64_t size = op.head_size, group = op.heads / op.kv_heads;
    const int64_t r = unit / op.kv_heads, g = unit % op.kv_heads;
    float* scores = call.scores + thread * call.max_keys;
    float* x = buffers.row(op.x, op.inputs, r);
    if (is_self && !keys.rows) append<Cache>(op, buffers, keys, unit);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        float* q = x + h * size;
        if (is_self)
            normalise_and_rotate(q, op, op.query_norm, (float)op.epsilon, call, r);
        else if (op.query_norm)
            rms_norm(q, q, size, op.query_norm, (float)op.epsilon);
        attend<Cache>(q, keys, op, is_self ? call.step : 0, r, h, scores, buffers.row(op.y, op.heads * size, r) + h * size);
    }
}

// ------------------------------------------------------------------------------------- the first and the last operation

// The embedding of a row's token, times a factor, plus the row of its position.
void embed(const Operation& op, const Buffers& buffers, int64_t r) {
    const Call& call = buffers.call;
    const float* from = (const float*)op.weight + call.tokens[call.step * call.rows + r] * op.inputs;
    const int64_t place = call.step * call.position_rows + (call.position_rows > 1 ? r : 0);
    const float* position = call.positions ? call.positions + place * op.inputs : nullptr;
    float *y = buffers.row(op.y, op.inputs, r), factor = (float)op.factor;
    for (int64_t i = 0; i < op.inputs; i++) y[i] = from[i] * factor;
    for (int64_t i = 0; position && i < op.inputs; i++) y[i] += position[i];
}

constexpr int MOST_ENDS = 16;

// The first of the best logits of a row, NaN before all others; and its log p = x − log Σ exp, of all logits.
void choose(const Operation& op, const Buffers& buffers, int64_t r) {
    const Call& call = buffers.call;
    const int64_t count = op.inputs, block = 64 * LANES, whole = count - count % LANES;
    float *x = buffers.row(op.x, count, r), forbidden[MOST_ENDS];
    const int64_t forbids = call.step < call.without_end ? call.end_count : 0;
    for (int64_t e = 0; e < forbids; e++) {
        forbidden[e] = x[call.ends[e]];
        x[call.ends[e]] = -INFINITY;
    }
    const auto is_better = [](float a, float b) { return a > b || (a != a && b == b); };
    float largest = -INFINITY;
    int64_t first = 0, best = 0;  // of the best block; in it
    for (int64_t begin = 0; begin < count; begin += block) {
        const int64_t end = std::min(begin + block, count);
        Vector most = Vector{} - INFINITY;
        int64_t i = begin;
        for (; i + LANES <= end; i += LANES) {
            const Vector part = load<Vector>(x + i);
            most = (part <= most) | (most != most) ? most : part;  // NaN comes, and stays
        }
        float own = -INFINITY;
        for (int l = 0; l < LANES; l++) own = is_better(most[l], own) ? most[l] : own;
        for (; i < end; i++) own = is_better(x[i], own) ? x[i] : own;
        if (is_better(own, largest)) largest = own, first = begin;
    }
    for (best = first; best < count - 1 && x[best] != largest && x[best] == x[best]; best++) {
    }
    const int64_t place = call.step * call.rows + r;
    call.tokens[place + call.rows] = best;
    call.has_ended[place + call.rows] = call.has_ended[place];
    for (int64_t e = 0; e < call.end_count; e++) call.has_ended[place + call.rows] |= best == call.ends[e];
    if (!call.log_p) return;
    Vector sums = {};
    for (int64_t i = 0; i < whole; i += LANES) sums += exponential(load<Vector>(x + i) - largest);
    float total = sum(sums);
    const auto share = [=](float logit) { return exponential(Vector{} + (logit - largest))[0]; };
    for (int64_t i = whole; i < count; i++) total += share(x[i]);
    for (int64_t e = 0; e < forbids; e++) total += share(forbidden[e]);
    call.log_p[place] = -(float)std::log((long double)total);  // of old C libraries too: see GLIBC in hatch_build.py
}

// Number of independent chunks of an operation.
int64_t chunks_of(const Operation& op, const Call& call) {
    switch (op.kind) {
        case LINEAR: return std::min((op.outputs + UNIT - 1) / UNIT, 8 * call.threads);
        case APPEND: return call.keys[2 * op.layer].rows ? call.rows * op.kv_heads : 0;
        case SELF_ATTENTION:
        case CROSS_ATTENTION: return call.rows * op.kv_heads;
        default: return call.rows;
    }
}

// An operation that computes each row by itself, of row r.
void compute_row(const Operation& op, const Buffers& buffers, int64_t r) {
    const float* x = buffers.row(op.x, op.inputs, r);
    float* y = buffers.row(op.y, op.inputs, r);
    switch (op.kind) {
        case LAYER_NORM: layer_norm(x, y, op.inputs, (const float*)op.weight, op.bias, (float)op.epsilon); break;
        case RMS_NORM: rms_norm(x, y, op.inputs, (const float*)op.weight, (float)op.epsilon); break;
        case MULTIPLY:
            for (int64_t i = 0; i < op.inputs; i++) y[i] *= x[i];
            break;
        case ADD:
            for (int64_t i = 0; i < op.inputs; i++) y[i] += x[i];
            break;
    }
}

void compute(const Operation& op, const Call& call, int64_t chunk, int64_t chunks, int thread) {
    const Buffers buffers{call, call.rows, 0, nullptr, 0};
    switch (op.kind) {
        case LINEAR: linear_of_format(op, buffers, chunk, chunks); return;
        case APPEND:
            if (call.bfloat16_keys)
                append<BFloat16Cache>(op, buffers, call.keys[2 * op.layer], chunk);
            else
                append<FloatCache>(op, buffers, call.keys[2 * op.layer], chunk);
            return;
        case SELF_ATTENTION:
        case CROSS_ATTENTION: {
            const bool is_self = op.kind == SELF_ATTENTION;
            const KeyValues& keys = call.keys[2 * op.layer + !is_self];
            if (call.bfloat16_keys)
                attention<BFloat16Cache>(op, buffers, keys, is_self, chunk, thread);
            else
                attention<FloatCache>(op, buffers, keys, is_self, chunk, thread);
            return;
        }
    }
    if (op.kind == EMBED) return embed(op, buffers, chunk);
    if (op.kind == CHOOSE) return choose(op, buffers, chunk);
    compute_row(op, buffers, chunk);
}

// Each thread takes chunks until none is left, and waits only for chunks that another one has taken: on a busy machine a
// thread that does not run holds nobody up.
template <class Function> inline void share(Progress& progress, int64_t chunks, const Function& compute_chunk) {
    for (;;) {
        const int64_t chunk = progress.taken.fetch_add(1, std::memory_order_relaxed);
        if (chunk >= chunks) break;
        compute_chunk(chunk);
        progress.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; progress.done.load(std::memory_order_acquire) < chunks; spins++)
        if (spins > SPINS) sched_yield();
}

#ifdef IS_INTERLEAVED
#include "whole_sequences.h"
#endif

}  // namespace

// Returns 1 if weights must be interleaved, 2 if there are also tiles (AMX), else 0.
extern "C" int64_t interleaved() {
#if defined(HAS_TILES)
    return 1 + has_tiles();
#elif defined(IS_INTERLEAVED)
    return 1;
#else
    return 0;
#endif
}

// Rows (``count``, ``bytes`` each) in lines of 16 fours of bytes, one of each row of a block: weights, interleaved.
// ``row`` and ``four`` are the distances in bytes from one row and four to the next; ``lines`` are those of a block.
extern "C" void interleave(const char* rows, int64_t count, int64_t bytes, int64_t row, int64_t four, char* out,
                           int64_t lines, int64_t threads) {
    const int64_t blocks = (count + 15) / 16, whole = bytes / 4;
#pragma omp parallel for num_threads(threads)
    for (int64_t block = 0; block < blocks; block++) {
        char* to = out + block * lines * 64;
        const char* from = rows + block * 16 * row;
        const int64_t present = std::min<int64_t>(16, count - block * 16);
        if (present < 16 || whole < lines) std::memset(to, 0, lines * 64);
        for (int64_t first = 0; first < whole; first += 16)
            for (int64_t r = 0; r < present; r++)
                for (int64_t k = first; k < std::min(first + 16, whole); k++)
                    std::memcpy(to + k * 64 + r * 4, from + r * row + k * four, 4);
        for (int64_t r = 0; bytes % 4 && r < present; r++)
            std::memcpy(to + whole * 64 + r * 4, from + r * row + whole * 4, bytes % 4);
    }
}

// ------------------------------------------------------------------------------------------- rounding of weights

namespace {

// Calls f(first row, how many, their numbers, their distance) for 16 rows of a weight at a time, wherever they lie:
// ``row`` and ``input`` are the distances in memory from one row and input to the next.
template <class Function>
void for_rows(const float* weight, int64_t outputs, int64_t inputs, int64_t row, int64_t input, int64_t threads,
              const Function& f) {
    const int64_t stride = inputs + 16;  // not a multiple of 4 KiB: rows have lines of the cache
#pragma omp parallel for num_threads(threads)
    for (int64_t first = 0; first < outputs; first += 16) {
        static thread_local std::vector<float> rows;
        rows.resize(16 * stride);
        const int64_t count = std::min<int64_t>(16, outputs - first);
        const float* from = weight + first * row;
        if (input == 1)
            for (int64_t r = 0; r < count; r++) std::memcpy(&rows[r * stride], from + r * row, inputs * sizeof(float));
        else
            for (int64_t k = 0; k < inputs; k++)
                for (int64_t r = 0; r < count; r++) rows[r * stride + k] = from[r * row + k * input];
        f(first, count, rows.data(), stride);
    }
}

// max |x|, NaN if one is there: a number's bits without its sign are in the order of the numbers, and NaN's are the last.
inline float largest_of(const float* x, int64_t count) {
    uint32_t largest = 0;
    for (int64_t k = 0; k < count; k++) largest = std::max(largest, bits_of(x[k]) & 0x7fffffffu);
    return from_bits(largest);
}

constexpr float TINY = 0x1p-126f;  // the least normal number

}  // namespace

// Levels (out, in) and scales (out,) of a weight, the numbers of Int8Linear: s = max |w| / most, q = w / s.
extern "C" void round8(const float* weight, int64_t outputs, int64_t inputs, int64_t row, int64_t input, int64_t most,
                       int8_t* levels, float* scales, int64_t threads) {
    for_rows(weight, outputs, inputs, row, input, threads, [=](int64_t first, int64_t count, const float* rows, int64_t stride) {
        for (int64_t r = 0; r < count; r++) {
            const float* x = rows + r * stride;
            float scale = largest_of(x, inputs) / most;
            scale = scale < TINY ? TINY : scale;
            scales[first + r] = scale;
            int8_t* q = levels + (first + r) * inputs;
            for (int64_t k = 0; k < inputs; k++) q[k] = (int8_t)(int32_t)__builtin_rintf(x[k] / scale);
        }
    });
}

// Levels (out, in), scales and middles (out, in / 32) of a weight, the numbers of Int4Linear.
extern "C" void round4(const float* weight, int64_t outputs, int64_t inputs, int64_t row, int64_t input, uint8_t* levels,
                       uint16_t* scales, uint16_t* middles, int64_t threads) {
    for_rows(weight, outputs, inputs, row, input, threads, [=](int64_t first, int64_t count, const float* rows, int64_t stride) {
        for (int64_t r = 0; r < count; r++)
            for (int64_t g = 0; g < inputs / STEP; g++) {
                const float *x = rows + r * stride + g * STEP, largest = largest_of(x, STEP);
                float low = x[0], high = x[0];
                for (int64_t k = 1; k < STEP; k++) low = std::min(low, x[k]), high = std::max(high, x[k]);
                if (largest != largest) low = high = largest;
                const float wide = (high - low) / 15;
                const int64_t place = (first + r) * (inputs / STEP) + g;
                scales[place] = BFloat16Cache::stored(wide < TINY ? TINY : wide);
                const float scale = BFloat16Cache::one(scales[place]);
                middles[place] = BFloat16Cache::stored(low + 8 * scale);
                const float middle = BFloat16Cache::one(middles[place]);
                uint8_t* q = levels + (first + r) * inputs + g * STEP;
                for (int64_t k = 0; k < STEP; k++) {
                    const float level = __builtin_rintf((x[k] - middle) / scale) + 8;
                    q[k] = (uint8_t)(int32_t)(level < 0 ? 0.0f : level > 15 ? 15.0f : level);
                }
            }
    });
}

// A number of ``bytes`` of memory: Σ (a + 2i) (b + 2i + 1) over its pairs (a, b) of 32 bits, numbered from 0.
extern "C" uint64_t checksum(const char* memory, int64_t bytes, int64_t threads) {
    const int64_t pairs = bytes / 8;
    uint64_t total = 0;
#pragma omp parallel for simd num_threads(threads) reduction(+ : total)
    for (int64_t i = 0; i < pairs; i++) {
        const uint64_t pair = load<uint64_t>(memory + 8 * i);
        total += (uint64_t)(uint32_t)((uint32_t)pair + 2 * (uint32_t)i) * ((uint32_t)(pair >> 32) + 2 * (uint32_t)i + 1);
    }
    uint64_t rest = 0;
    if (bytes % 8) std::memcpy(&rest, memory + 8 * pairs, bytes % 8);
    return total * 31 + rest;
}

// Computes the operations one after another. Of several steps each reads what the one before has chosen, until enough
// rows have ended; returns the number of steps.
extern "C" int64_t run(const Operation* operations, int64_t count, const Call* call, int64_t steps) {
#pragma omp parallel num_threads(call->threads)
    {
        const int thread = omp_get_thread_num();
        Call own = *call;
        for (own.step = 0; own.step < steps; own.step++) {
#ifdef IS_INTERLEAVED
            rounded = nullptr;
#endif
            for (int64_t i = 0; i < count; i++) {
                const int64_t chunks = chunks_of(operations[i], own);
                share(call->progress[own.step * count + i], chunks, [&](int64_t chunk) {
                    compute(operations[i], own, chunk, chunks, thread);
                });
            }
            const uint8_t* ended = own.has_ended + (own.step + 1) * own.rows;
            if (own.end_count && std::count(ended, ended + own.rows, 1) >= own.enough) break;
            if (own.cosine) own.cosine += own.step_rotation, own.sine += own.step_rotation;
        }
    }
    int64_t done = 0;
    while (done < steps && call->progress[(done + 1) * count - 1].done.load() > 0) done++;
    return done;
}

// Computes the operations for whole sequences, whose rows ``call.starts`` tells; see whole_sequences.h.
extern "C" void run_sequences([[maybe_unused]] const Operation* operations, [[maybe_unused]] int64_t count,
                              [[maybe_unused]] const Call* call) {
#ifdef IS_INTERLEAVED
#pragma omp parallel num_threads(call->threads)
    compute_sequences(operations, count, *call);
#endif
}
