// Attention over a sink cache: see SinkAttention in pytensor_rope/attention.py.
//
// Keys are taken a tile at a time, for a block of queries held across the lanes of vectors. The softmax is
// built up as the tiles pass: when a tile raises a query's highest score, what was summed before is scaled
// down (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).

static const npy_intp TILE = 64;

// Keys of one key/value head that lie in one piece, their values, and their positions.
template <typename X> struct Run {
    const X *keys, *values;
    const npy_int32 *positions;
    npy_intp count;
    npy_intp sinks; // How many of the first keys may be sinks.
};

template <typename T>
static const T *as_computed(const half *source, npy_intp count, std::vector<T> &scratch) {
    widen(source, scratch.data(), count);
    return scratch.data();
}
template <typename T> static const T *as_computed(const T *source, npy_intp, std::vector<T> &) { return source; }

// A block of queries of one key/value head, one to a lane, and what they have attended to so far.
template <typename X, typename T, int LANES> class Block {
    // A score that isn't seen, and below which no highest score goes: far enough apart for a weight of 0.
    static constexpr T HIDDEN = std::numeric_limits<T>::lowest();
    static constexpr T LOWEST = HIDDEN / 2;

    const npy_intp head_dim;
    const T softcap; // 0 caps nothing.
    std::vector<T> queries, sink_queries;  // (head_dim, LANES)
    std::vector<T> attended;               // (LANES, head_dim)
    std::vector<T> scores;                 // (TILE, LANES)
    std::vector<T> key_scratch, value_scratch;
    npy_int32 first[LANES], last[LANES];   // The positions that a query sees, besides the sinks.
    npy_int32 highest_last, lowest_first;
    T highest[LANES], total[LANES];

    bool sees_any(const npy_int32 *positions, npy_intp count, npy_int64 sinks) const {
        for (npy_intp key = 0; key < count; key++) {
            const npy_int32 j = positions[key];
            if (j >= 0 && j <= highest_last && (j >= lowest_first || j < sinks))
                return true;
        }
        return false;
    }

    void score_for(const std::vector<T> &queries, const T *keys, npy_intp count, T *scores) const {
        if (LANES == 1) {
            for (npy_intp key = 0; key < count; key++)
                scores[key] = dot(keys + key * head_dim, queries.data(), head_dim);
            return;
        }
        std::fill(scores, scores + count * LANES, (T)0);
        multiply(keys, head_dim, (npy_intp)1, queries.data(), (npy_intp)LANES, scores, (npy_intp)LANES, count,
                 head_dim, (npy_intp)LANES);
    }

    void score(const T *keys, const npy_int32 *positions, npy_intp count, npy_intp maybe_sinks,
               npy_int64 sinks) {
        score_for(queries, keys, count, scores.data());
        for (npy_intp key = 0; key < maybe_sinks; key++) {
            if (positions[key] < 0 || positions[key] >= sinks)
                continue;
            score_for(sink_queries, keys + key * head_dim, 1, scores.data() + key * LANES);
        }
        if (softcap != 0)
            for (npy_intp i = 0; i < count * LANES; i++)
                scores[i] = softcap * std::tanh(scores[i] / softcap);
    }

    // Hides what isn't seen, and raises each lane's highest score.
    void hide(const npy_int32 *positions, npy_intp count, npy_int64 sinks, T *raised) {
        for (int lane = 0; lane < LANES; lane++)
            raised[lane] = highest[lane];
        for (npy_intp key = 0; key < count; key++) {
            T *of_key = scores.data() + key * LANES;
            const npy_int32 j = positions[key];
            // The window starts at 0 or later: a key that isn't there never lies in it, and a sink always.
            const npy_int32 in_window = j < 0 ? -1 : j < sinks ? std::numeric_limits<npy_int32>::max() : j;
#pragma omp simd
            for (int lane = 0; lane < LANES; lane++) {
                const bool seen = (j <= last[lane]) & (in_window >= first[lane]);
                of_key[lane] = seen ? of_key[lane] : HIDDEN;
                raised[lane] = of_key[lane] > raised[lane] ? of_key[lane] : raised[lane];
            }
        }
    }

    void scale_down(const T *raised) {
        for (int lane = 0; lane < LANES; lane++) {
            if (raised[lane] == highest[lane])
                continue;
            const T factor = exp_below_0(highest[lane] - raised[lane]);
            highest[lane] = raised[lane];
            total[lane] *= factor;
            for (npy_intp dim = 0; dim < head_dim; dim++)
                attended[lane * head_dim + dim] *= factor;
        }
    }

    void exponentiate(npy_intp count) {
        for (npy_intp key = 0; key < count; key++)
#pragma omp simd
            for (int lane = 0; lane < LANES; lane++)
                scores[key * LANES + lane] -= highest[lane];
        T *all = scores.data();
#pragma omp simd
        for (npy_intp i = 0; i < count * LANES; i++)
            all[i] = exp_below_0(all[i]);
        for (npy_intp key = 0; key < count; key++)
#pragma omp simd
            for (int lane = 0; lane < LANES; lane++)
                total[lane] += scores[key * LANES + lane];
    }

  public:
    Block(npy_intp head_dim, T softcap)
        : head_dim(head_dim), softcap(softcap), queries(head_dim * LANES), sink_queries(head_dim * LANES),
          attended(head_dim * LANES), scores(TILE * LANES),
          key_scratch(sizeof(X) == sizeof(T) ? 0 : TILE * head_dim), value_scratch(key_scratch.size()) {}

    void start(const X *q, const X *q_sink, npy_intp n_row, npy_intp first_row, const npy_int32 *positions,
               npy_intp seq, npy_int64 window, T scale) {
        std::fill(attended.begin(), attended.end(), (T)0);
        highest_last = -1;
        lowest_first = std::numeric_limits<npy_int32>::max();
        for (int lane = 0; lane < LANES; lane++) {
            const bool used = lane < n_row;
            const npy_int32 i = used ? positions[(first_row + lane) % seq] : -1;
            const npy_int64 farthest = (npy_int64)i - window + 1;
            last[lane] = i;
            first[lane] = (npy_int32)(farthest > 0 ? farthest : 0);
            highest_last = i > highest_last ? i : highest_last;
            if (i >= 0 && first[lane] < lowest_first)
                lowest_first = first[lane];
            highest[lane] = LOWEST;
            total[lane] = 0;
            for (npy_intp dim = 0; dim < head_dim; dim++) {
                const npy_intp at = (first_row + lane) * head_dim + dim;
                queries[dim * LANES + lane] = used ? (T)load(q[at]) * scale : 0;
                sink_queries[dim * LANES + lane] = used ? (T)load(q_sink[at]) * scale : 0;
            }
        }
    }

    void attend(const Run<X> &run, npy_int64 sinks) {
        for (npy_intp start = 0; start < run.count; start += TILE) {
            const npy_intp count = run.count - start < TILE ? run.count - start : TILE;
            const npy_int32 *positions = run.positions + start;
            if (!sees_any(positions, count, sinks))
                continue;
            const npy_intp candidates = run.sinks - start < count ? run.sinks - start : count;
            score(as_computed(run.keys + start * head_dim, count * head_dim, key_scratch), positions, count,
                  candidates, sinks);
            T raised[LANES];
            hide(positions, count, sinks, raised);
            scale_down(raised);
            exponentiate(count);
            multiply(scores.data(), (npy_intp)1, (npy_intp)LANES,
                     as_computed(run.values + start * head_dim, count * head_dim, value_scratch), head_dim,
                     attended.data(), head_dim, (npy_intp)LANES, count, head_dim);
        }
    }

    // The weights' total is at least 1 in a row that sees anything.
    void finish(X *out, npy_intp n_row) const {
        for (npy_intp row = 0; row < n_row; row++) {
            const T factor = total[row] == 0 ? 0 : 1 / total[row];
            for (npy_intp dim = 0; dim < head_dim; dim++)
                out[row * head_dim + dim] = stored_as<X>::from(attended[row * head_dim + dim] * factor);
        }
    }
};

template <typename X> struct Problem {
    const X *q, *q_sink, *k, *v, *keys, *values;
    const npy_int32 *positions, *slot_positions;
    npy_intp batch, n_head, n_kv_head, seq, head_dim, slots;
    npy_int64 sinks, window;
    double scale, softcap;
};

// Attends with one block of queries of one head.
template <typename X, typename T, int LANES>
static void attend_with(Block<X, T, LANES> &block, const Problem<X> &p, npy_intp head, npy_intp row, X *out) {
    const npy_intp n_row = p.n_head / p.n_kv_head * p.seq; // Queries of one key/value head.
    const npy_intp b = head / p.n_kv_head, chunk = head * p.seq * p.head_dim,
                   cached = head * p.slots * p.head_dim, queries = head * n_row * p.head_dim;
    const npy_int32 *positions = p.positions + b * p.seq;
    const Run<X> cache = {p.keys + cached, p.values + cached, p.slot_positions + b * p.slots, p.slots, p.sinks};
    // A single token sees of its chunk only itself, at distance 0 either way.
    const Run<X> own = {p.k + chunk, p.v + chunk, positions, p.seq, p.seq > 1 ? p.sinks : 0};
    const npy_intp used = n_row - row < LANES ? n_row - row : LANES;
    block.start(p.q + queries, p.q_sink + queries, used, row, positions, p.seq, p.window, (T)p.scale);
    block.attend(cache, p.sinks);
    block.attend(own, p.sinks);
    block.finish(out + queries + row * p.head_dim, used);
}

template <typename X, typename T, int LANES> static bool attend_in_blocks(const Problem<X> &p, X *out) {
    const npy_intp n_row = p.n_head / p.n_kv_head * p.seq, n_block = (n_row + LANES - 1) / LANES;
    const double operations = 4.0 * p.batch * p.n_head * p.seq * p.head_dim * (p.slots + p.seq);
    return share(p.batch * p.n_kv_head * n_block, operations, [&](auto take, npy_intp n) {
        Block<X, T, LANES> block(p.head_dim, (T)p.softcap);
        for (npy_intp at = take(); at < n; at = take())
            attend_with(block, p, at / n_block, at % n_block * LANES, out);
    });
}

static bool has_shape(PyArrayObject *array, npy_intp a, npy_intp b, npy_intp c, npy_intp d) {
    const npy_intp shape[] = {a, b, c, d};
    return PyArray_NDIM(array) == 4 && PyArray_CompareLists(PyArray_DIMS(array), shape, 4);
}

static bool has_shape(PyArrayObject *array, npy_intp a, npy_intp b) {
    return PyArray_NDIM(array) == 2 && PyArray_DIM(array, 0) == a && PyArray_DIM(array, 1) == b;
}

// The inputs' sizes, or -1 with an exception where they don't fit together. Without a cache, keys is NULL.
template <typename X>
static int measure(Problem<X> &p, PyArrayObject *q, PyArrayObject *q_sink, PyArrayObject *k, PyArrayObject *v,
                   PyArrayObject *positions, PyArrayObject *keys, PyArrayObject *values,
                   PyArrayObject *slot_positions) {
    p.batch = PyArray_DIM(q, 0), p.n_head = PyArray_DIM(q, 1);
    p.seq = PyArray_DIM(q, 2), p.head_dim = PyArray_DIM(q, 3);
    p.n_kv_head = PyArray_DIM(k, 1);
    p.slots = keys == NULL ? 0 : PyArray_DIM(keys, 2);
    if (!has_shape(q_sink, p.batch, p.n_head, p.seq, p.head_dim))
        return refuse("q_sink must have q's shape");
    if (!has_shape(k, p.batch, p.n_kv_head, p.seq, p.head_dim))
        return refuse("k must have q's batch, seq and head_dim");
    if (!PyArray_SAMESHAPE(k, v))
        return refuse("v must have k's shape");
    if (!has_shape(positions, p.batch, p.seq))
        return refuse("positions must be (batch, seq)");
    if (p.n_kv_head == 0 ? p.n_head != 0 : p.n_head % p.n_kv_head != 0)
        return refuse("k's heads must divide q's");
    if (keys == NULL)
        return 0;
    if (!has_shape(keys, p.batch, p.n_kv_head, p.slots, p.head_dim))
        return refuse("the cached keys must have k's batch, heads and head_dim");
    if (!PyArray_SAMESHAPE(keys, values))
        return refuse("the cached values must have the cached keys' shape");
    if (!has_shape(slot_positions, p.batch, p.slots))
        return refuse("the slots' positions must be (batch, slots)");
    return 0;
}

// A negative `window` hides nothing; without `scaled` the scale is 1 / sqrt(head_dim).
template <typename X, typename T>
static int sink_attention(PyArrayObject *q, PyArrayObject *q_sink, PyArrayObject *k, PyArrayObject *v,
                          PyArrayObject *positions, PyArrayObject *keys, PyArrayObject *values,
                          PyArrayObject *slot_positions, PyArrayObject **out, npy_int64 sinks,
                          npy_int64 window, npy_float64 scale, bool scaled, npy_float64 softcap) {
    Problem<X> p;
    if (measure(p, q, q_sink, k, v, positions, keys, values, slot_positions) != 0)
        return -1;
    const bool has_cache = keys != NULL;
    Contiguous<X> q_data(q), q_sink_data(q_sink), k_data(k), v_data(v);
    Contiguous<X> keys_data(has_cache ? keys : k), values_data(has_cache ? values : v);
    Contiguous<npy_int32> positions_data(positions), slots_data(has_cache ? slot_positions : positions);
    X *attended = output<X>(out, 4, PyArray_DIMS(q));
    if (q_data.failed() || q_sink_data.failed() || k_data.failed() || v_data.failed() ||
        keys_data.failed() || values_data.failed() || positions_data.failed() || slots_data.failed() ||
        attended == NULL)
        return -1;
    p.q = q_data.data(), p.q_sink = q_sink_data.data(), p.k = k_data.data(), p.v = v_data.data();
    p.keys = keys_data.data(), p.values = values_data.data();
    p.positions = positions_data.data(), p.slot_positions = slots_data.data();
    p.sinks = sinks;
    p.window = window < 0 ? (npy_int64)1 << 31 : window; // No two positions are as far apart.
    p.softcap = softcap;
    p.scale = scaled ? scale : 1 / std::sqrt((double)p.head_dim);
    if (PyArray_SIZE(q) == 0)
        return 0;
    const npy_intp n_row = p.n_head / p.n_kv_head * p.seq;
    const bool done = n_row == 1   ? attend_in_blocks<X, T, 1>(p, attended)
                      : n_row <= 4 ? attend_in_blocks<X, T, 4>(p, attended)
                      : n_row <= 8 ? attend_in_blocks<X, T, 8>(p, attended)
                                   : attend_in_blocks<X, T, 32>(p, attended);
    if (!done)
        PyErr_NoMemory();
    return done ? 0 : -1;
}

template <typename X, typename T>
static int sink_attention(PyArrayObject *q, PyArrayObject *q_sink, PyArrayObject *k, PyArrayObject *v,
                          PyArrayObject *positions, PyArrayObject **out, npy_int64 sinks, npy_int64 window,
                          npy_float64 scale, bool scaled, npy_float64 softcap) {
    return sink_attention<X, T>(q, q_sink, k, v, positions, NULL, NULL, NULL, out, sinks, window, scale,
                                scaled, softcap);
}
