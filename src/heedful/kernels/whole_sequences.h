// Whole sequences through the blocks of a stack: encoders, images, and the prompts of decoders.
//
// A part of `few_rows.cpp`, for processors with AVX512-VNNI. Between two attentions every operation computes each row by
// itself. So a thread takes some rows through all of them, in buffers that stay in its cache, and threads wait for each
// other only before and after an attention. Attention is computed for a head of a sequence at a time.
//
// Shapes: T queries, S keys, E head size, a multiple of 16. A word has 32 bits: a float32, or two bfloat16 numbers.

constexpr int64_t ROWS_AT_ONCE = 72;  // most rows that a thread takes at a time

// -------------------------------------------------------------------------------------------------------- products

// How an attention multiplies: words of 16 columns by a word of a row.
struct FloatWords {
    static constexpr int NUMBERS = 1;  // in a word
    static __m512 add(__m512 sum, __m512i columns, __m512i x) {
        return _mm512_fmadd_ps(_mm512_castsi512_ps(columns), _mm512_castsi512_ps(x), sum);
    }
    static void store(uint32_t* words, __m512 numbers) { _mm512_storeu_ps(words, numbers); }
    // a pair of rows is a row here: there is no second
    static __m512i pair(__m512 first, __m512) { return _mm512_castps_si512(first); }
};

#if defined(__AVX512BF16__)
struct BFloat16Words {
    static constexpr int NUMBERS = 2;
    static __m512 add(__m512 sum, __m512i columns, __m512i x) {
        return _mm512_dpbf16_ps(sum, (__m512bh)columns, (__m512bh)x);
    }
    static void store(uint32_t* words, __m512 numbers) {
        _mm256_storeu_si256((__m256i*)words, (__m256i)_mm512_cvtneps_pbh(numbers));
    }
    static __m512i pair(__m512 first, __m512 second) {  // two rows of 16 columns
        const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(first));
        const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(second));
        return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
};
#else
typedef FloatWords BFloat16Words;
#endif

// y (R, 16 N) = x W, with x (R, lines) and W (lines, …) in words, of which the first 16 N columns are multiplied.
template <class Words, int N, int R>
inline void multiply(const uint32_t* x, int64_t x_stride, const uint32_t* w, int64_t w_stride, int64_t lines, float* y,
                     int64_t y_stride) {
    __m512 sums[N][R];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) sums[i][j] = _mm512_setzero_ps();
    for (int64_t line = 0; line < lines; line++) {
        __m512i columns[N];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) columns[i] = _mm512_loadu_si512(w + line * w_stride + 16 * i);
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) {
            const __m512i word = _mm512_set1_epi32((int)x[j * x_stride + line]);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++) sums[i][j] = Words::add(sums[i][j], columns[i], word);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
#pragma GCC unroll 16
        for (int j = 0; j < R; j++) _mm512_storeu_ps(y + j * y_stride + 16 * i, sums[i][j]);
}

template <class Words, int R>
void multiply_rows(const uint32_t* x, int64_t x_stride, const uint32_t* w, int64_t w_stride, int64_t columns, int64_t lines,
                   float* y, int64_t y_stride) {
    int64_t n = 0;
    for (; n + 64 <= columns; n += 64) multiply<Words, 4, R>(x, x_stride, w + n, w_stride, lines, y + n, y_stride);
    for (; n < columns; n += 16) multiply<Words, 1, R>(x, x_stride, w + n, w_stride, lines, y + n, y_stride);
}

// ------------------------------------------------------------------------------------------------------- attention

constexpr int QUERIES = 6;  // whose sums stay in registers

// The transpose of 16 rows of 16 words.
inline void transpose(__m512i* rows) {
    __m512i pairs[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            rows[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
            rows[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
        }
    // rows[4 i + c]: in its quarter q the rows 4 i to 4 i + 3 of the column 4 q + c
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512i a = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0x44), b = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0x44);
        const __m512i d = _mm512_shuffle_i32x4(rows[c], rows[c + 4], 0xee), e = _mm512_shuffle_i32x4(rows[c + 8], rows[c + 12], 0xee);
        pairs[c] = _mm512_shuffle_i32x4(a, b, 0x88);
        pairs[c + 4] = _mm512_shuffle_i32x4(a, b, 0xdd);
        pairs[c + 8] = _mm512_shuffle_i32x4(d, e, 0x88);
        pairs[c + 12] = _mm512_shuffle_i32x4(d, e, 0xdd);
    }
    for (int i = 0; i < 16; i++) rows[i] = pairs[i];
}

// Keys and values of a head of a sequence, as they are multiplied: keys as columns, values as rows.
template <class Words> struct HeadOfSequence {
    int64_t columns, size, words;  // S in whole vectors; E, and E in whole vectors of words
    std::vector<uint32_t> key, value, query;
    std::vector<float> scores;

    // ``k`` and ``v`` are those of the first key; ``stride`` is the distance to the next.
    void read(const float* k, const float* v, int64_t stride, int64_t count, int64_t head_size) {
        constexpr int64_t numbers = Words::NUMBERS, vector = 16 * numbers;
        columns = (count + 15) / 16 * 16, size = head_size, words = (size + vector - 1) / vector * 16;
        key.resize(words * columns);
        value.resize(columns / numbers * size);
        query.resize(QUERIES * words);
        scores.resize(QUERIES * columns);
        for (int64_t s = 0; s < columns; s += 16)
            for (int64_t word = 0; word < words; word += 16) {
                __m512i rows[16];
                for (int64_t i = 0; i < 16; i++) {
                    uint32_t line[16] = {};
                    for (int64_t part = 0; part < vector && s + i < count && word * numbers + part < size; part += 16)
                        Words::store(line + part / numbers, _mm512_loadu_ps(k + (s + i) * stride + word * numbers + part));
                    rows[i] = _mm512_loadu_si512(line);
                }
                transpose(rows);
                for (int64_t i = 0; i < 16; i++) _mm512_storeu_si512(&key[(word + i) * columns + s], rows[i]);
            }
        for (int64_t s = 0; s < columns; s += numbers)
            for (int64_t n = 0; n < size; n += 16) {
                const auto row = [&](int64_t i) { return i < count ? _mm512_loadu_ps(v + i * stride + n) : _mm512_setzero_ps(); };
                _mm512_storeu_si512(&value[s / numbers * size + n], Words::pair(row(s), numbers > 1 ? row(s + 1) : _mm512_setzero_ps()));
            }
    }

    // y = softmax(factor q kᵀ) v of R queries, the first of which attends to ``first`` keys, each other to ``more`` more.
    template <int R> void attend(const float* const* q, float factor, int64_t first, int64_t more, float* const* y) {
        constexpr int64_t numbers = Words::NUMBERS;
        const int64_t used = (first + (R - 1) * more + 15) / 16 * 16;
        for (int j = 0; j < R; j++)
            for (int64_t i = 0; i < words * numbers; i += 16)
                Words::store(&query[j * words + i / numbers], i < size ? _mm512_loadu_ps(q[j] + i) : _mm512_setzero_ps());
        multiply_rows<Words, R>(query.data(), words, key.data(), columns, used, words, scores.data(), columns);
        float shares[R], mixed[R * 64];
        for (int j = 0; j < R; j++) shares[j] = softmax(&scores[j * columns], factor, first + j * more, used);
        const uint32_t* weights = (const uint32_t*)scores.data();
        for (int64_t n = 0; n < size; n += 64) {
            const int64_t width = std::min<int64_t>(64, size - n);
            multiply_rows<Words, R>(weights, columns, &value[n], size, width, used / numbers, mixed, 64);
            for (int j = 0; j < R; j++)
                for (int64_t i = 0; i < width; i++) y[j][n + i] = mixed[j * 64 + i] * shares[j];
        }
    }

    // The numerators of softmax(factor x) over ``count`` keys take the place of x, as words, with zeros up to ``used``;
    // returns the reciprocal of their sum.
    static float softmax(float* x, float factor, int64_t count, int64_t used) {
        const __m512 low = _mm512_set1_ps(-INFINITY);
        __m512 most = low;
        for (int64_t s = 0; s < count; s += 16)
            most = _mm512_max_ps(most, _mm512_mask_loadu_ps(low, first_lanes(count - s), x + s));
        const Vector scale = Vector{} + factor, largest = Vector{} + factor * _mm512_reduce_max_ps(most);
        Vector sums = {};
        uint32_t* words = (uint32_t*)x;
        for (int64_t s = 0; s < used; s += 16) {
            const __m512 part = (__m512)exponential(load<Vector>(x + s) * scale - largest);
            const __m512 present = _mm512_maskz_mov_ps(first_lanes(std::max<int64_t>(0, count - s)), part);
            sums += (Vector)present;
            Words::store(words + s / Words::NUMBERS, present);
        }
        return 1.0f / sum(sums);
    }
};

template <class Words>
void attend_head(const Operation& op, const Buffers& buffers, bool selects, int64_t sequence, int64_t h) {
    static thread_local HeadOfSequence<Words> head;
    const Call& call = buffers.call;
    const int64_t size = op.head_size, group = h / (op.heads / op.kv_heads);
    const int64_t first = call.starts[sequence], count = call.starts[sequence + 1] - first;
    const int64_t from = selects ? call.selected_starts[sequence] : first;
    const int64_t to = selects ? call.selected_starts[sequence + 1] : first + count;
    if (count == 0 || from == to) return;
    const float* k = buffers.row(op.x, op.inputs, first) + (op.heads + group) * size;
    head.read(k, k + op.kv_heads * size, op.inputs, count, size);
    float *q[QUERIES], *y[QUERIES];
    for (int64_t i = from; i < to; i += QUERIES) {
        const int64_t present = std::min<int64_t>(QUERIES, to - i), row = selects ? call.selected[i] : i;
        for (int64_t j = 0; j < present; j++) {
            const int64_t own = selects ? call.selected[i + j] : i + j;
            q[j] = buffers.row(op.x, op.inputs, own) + h * size;
            normalise_and_rotate(q[j], op, op.query_norm, (float)op.epsilon, call, own);
            y[j] = buffers.row(op.y, op.heads * size, i + j) + h * size;
        }
        // rows that are selected under causality follow each other, too
        const int64_t keys = call.causal ? row - first + 1 : count, more = call.causal;
        switch (present) {
            case 6: head.template attend<6>(q, (float)op.factor, keys, more, y); break;
            case 5: head.template attend<5>(q, (float)op.factor, keys, more, y); break;
            case 4: head.template attend<4>(q, (float)op.factor, keys, more, y); break;
            case 3: head.template attend<3>(q, (float)op.factor, keys, more, y); break;
            case 2: head.template attend<2>(q, (float)op.factor, keys, more, y); break;
            default: head.template attend<1>(q, (float)op.factor, keys, more, y);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- program

inline bool is_of_rows(const Operation& op) {
    return op.kind == LAYER_NORM || op.kind == RMS_NORM || op.kind == LINEAR || op.kind == MULTIPLY || op.kind == ADD || op.kind == APPEND;
}

// The keys of a row, normed and rotated; with a cache they join it, and the values.
void append_row(const Operation& op, const Buffers& buffers, int64_t r) {
    const Call& call = buffers.call;
    for (int64_t g = 0; g < op.kv_heads; g++) {
        if (!call.keys)
            normalise_and_rotate(buffers.row(op.x, op.inputs, r) + (op.heads + g) * op.head_size, op, op.key_norm,
                                 (float)op.key_epsilon, call, buffers.first + r);
        else if (call.bfloat16_keys)
            append<BFloat16Cache>(op, buffers, call.keys[2 * op.layer], r * op.kv_heads + g);
        else
            append<FloatCache>(op, buffers, call.keys[2 * op.layer], r * op.kv_heads + g);
    }
}

// The part of a thread.
void compute_sequences(const Operation* operations, int64_t count, const Call& call) {
    int64_t rows = call.rows, end_of_buffers = call.shared;
    for (const Operation* op = operations; op < operations + count; op++)
        if (is_of_rows(*op) && op->kind != APPEND)
            end_of_buffers = std::max(end_of_buffers, op->y + (op->kind == LINEAR ? op->outputs : op->inputs));
    static thread_local std::vector<float> own;
    const int64_t own_width = end_of_buffers - call.shared + 16;  // not a multiple of 4 KiB: rows have lines of the cache
    own.resize((ROWS_AT_ONCE + 1) * own_width);
    for (int64_t i = 0; i < count;) {
        const Operation& op = operations[i];
        if (op.kind == SELF_ATTENTION) {
            const bool selects = call.selected && op.layer == call.last_layer;
            const int64_t heads = call.sequences * op.heads;
            const Buffers buffers{call, rows, 0, nullptr, 0};
            share(call.progress[i], heads + selects, [&](int64_t chunk) {
                if (chunk == heads) {  // the other operations compute the selected rows alone
                    for (int64_t r = 0; r < call.selected_starts[call.sequences]; r++)
                        std::memmove(buffers.row(0, call.width, r), buffers.row(0, call.width, call.selected[r]),
                                     call.width * sizeof(float));
                    return;
                }
                if (call.bfloat16_attention)
                    attend_head<BFloat16Words>(op, buffers, selects, chunk / op.heads, chunk % op.heads);
                else
                    attend_head<FloatWords>(op, buffers, selects, chunk / op.heads, chunk % op.heads);
            });
            if (selects) rows = call.selected_starts[call.sequences];
            i++;
            continue;
        }
        int64_t end = i;
        while (end < count && is_of_rows(operations[end])) end++;
        const int64_t each = call.threads * ROWS_AT_ONCE, chunks = std::min(rows, (rows + each - 1) / each * call.threads);
        share(call.progress[i], chunks, [&](int64_t chunk) {
            const int64_t first = rows * chunk / chunks, last = rows * (chunk + 1) / chunks;
            const Buffers buffers{call, last - first, first, own.data(), own_width};
            for (int64_t j = i; j < end; j++) {
                const Operation& own_op = operations[j];
                if (own_op.kind == LINEAR) {
                    rounded = nullptr;
                    linear_of_format(own_op, buffers, 0, 1);
                    continue;
                }
                for (int64_t r = 0; r < buffers.rows; r++)
                    own_op.kind == APPEND ? append_row(own_op, buffers, r) : compute_row(own_op, buffers, r);
            }
        });
        i = std::max(end, i + 1);
    }
}
