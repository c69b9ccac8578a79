// Attention over a sink cache: see SinkAttention in pytensor_rope/attention.py.
//
// Keys are taken a tile at a time, for a block of queries held across the lanes of vectors. The softmax is
// built up as the tiles pass: when a tile raises a query's highest score, what was summed before is scaled
// down (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).

static const npy_intp TILE = 64;

// Bytes that keys and values are fetched ahead: a page, where the processor stops to look ahead on its own. What is
// widened has been read by then.
static const int PAGE = 4096;

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

    // Few queries are multiplied with each key one by one, more of them in the lanes of a vector.
    static constexpr bool ONE_BY_ONE = LANES <= 4;
    static constexpr int AHEAD = sizeof(X) == sizeof(T) ? PAGE : 0;

    const npy_intp head_dim;
    const T softcap; // 0 caps nothing.
    std::vector<T> queries, sink_queries;  // (LANES, head_dim) one by one, else (head_dim, LANES)
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
        if (ONE_BY_ONE) {
            for (npy_intp key = 0; key < count; key++)
                multiply_each<LANES, AHEAD>(keys + key * head_dim, queries.data(), head_dim, scores + key * LANES);
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
                const npy_intp from = (first_row + lane) * head_dim + dim;
                const npy_intp to = ONE_BY_ONE ? lane * head_dim + dim : dim * LANES + lane;
                queries[to] = used ? (T)load(q[from]) * scale : 0;
                sink_queries[to] = used ? (T)load(q_sink[from]) * scale : 0;
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
            multiply<AHEAD>(scores.data(), (npy_intp)1, (npy_intp)LANES,
                            as_computed(run.values + start * head_dim, count * head_dim, value_scratch),
                            head_dim, attended.data(), head_dim, (npy_intp)LANES, count, head_dim);
        }
    }

    // What another block needs to go on from this one: of each query the highest score, the total, the sum.
    npy_intp saved_size() const { return LANES * (head_dim + 2); }

    void save(T *saved) const {
        std::copy(highest, highest + LANES, saved);
        std::copy(total, total + LANES, saved + LANES);
        std::copy(attended.begin(), attended.end(), saved + 2 * LANES);
    }

    void take_in(const T *saved) {
        T raised[LANES];
        for (int lane = 0; lane < LANES; lane++)
            raised[lane] = std::max(highest[lane], saved[lane]);
        scale_down(raised);
        for (int lane = 0; lane < LANES; lane++) {
            const T factor = exp_below_0(saved[lane] - highest[lane]);
            total[lane] += factor * saved[LANES + lane];
            for (npy_intp dim = 0; dim < head_dim; dim++)
                attended[lane * head_dim + dim] += factor * saved[2 * LANES + lane * head_dim + dim];
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

    npy_intp rows() const { return n_head / n_kv_head * seq; } // Queries of one key/value head.

    // The multiplications and additions of all queries with all keys and values.
    double operations() const { return 4.0 * batch * n_head * seq * head_dim * (slots + seq); }
};

// What a block does with the queries, keys and values of one head, counted over all batches.
template <typename X, typename T, int LANES> struct Head {
    Block<X, T, LANES> &block;
    const Problem<X> &p;
    const npy_intp head, batch;

    Head(Block<X, T, LANES> &block, const Problem<X> &p, npy_intp head)
        : block(block), p(p), head(head), batch(head / p.n_kv_head) {}

    void start(npy_intp row) {
        const npy_intp queries = head * p.rows() * p.head_dim;
        block.start(p.q + queries, p.q_sink + queries, used(row), row, p.positions + batch * p.seq, p.seq,
                    p.window, (T)p.scale);
    }

    void attend_to_slots(npy_intp first, npy_intp count) {
        const npy_intp from = (head * p.slots + first) * p.head_dim;
        block.attend({p.keys + from, p.values + from, p.slot_positions + batch * p.slots + first, count,
                      (npy_intp)p.sinks - first},
                     p.sinks);
    }

    // A single token sees of its chunk only itself, at distance 0 either way.
    void attend_to_chunk() {
        const npy_intp from = head * p.seq * p.head_dim;
        block.attend({p.k + from, p.v + from, p.positions + batch * p.seq, p.seq,
                      p.seq > 1 ? (npy_intp)p.sinks : 0},
                     p.sinks);
    }

    void finish(npy_intp row, X *out) const {
        block.finish(out + (head * p.rows() + row) * p.head_dim, used(row));
    }

    npy_intp used(npy_intp row) const { return std::min(p.rows() - row, (npy_intp)LANES); }
};

template <typename X, typename T, int LANES> static bool attend_in_blocks(const Problem<X> &p, X *out) {
    const npy_intp n_block = (p.rows() + LANES - 1) / LANES;
    return share(p.batch * p.n_kv_head * n_block, p.operations(), [&](auto take, npy_intp n) {
        Block<X, T, LANES> block(p.head_dim, (T)p.softcap);
        for (npy_intp at = take(); at < n; at = take()) {
            const npy_intp row = at % n_block * LANES;
            Head<X, T, LANES> head(block, p, at / n_block);
            head.start(row);
            head.attend_to_slots(0, p.slots);
            head.attend_to_chunk();
            head.finish(row, out);
        }
    });
}

// Slots that are attended to in one piece.
static const npy_intp PART = 4 * TILE;

// The same for queries that fit into one block of each head: what there is to share are the slots.
template <typename X, typename T, int LANES> static bool attend_in_parts(const Problem<X> &p, X *out) {
    const npy_intp n_head = p.batch * p.n_kv_head, n_part = std::max(p.slots / PART, (npy_intp)1);
    Block<X, T, LANES> whole(p.head_dim, (T)p.softcap);
    std::vector<T> saved(n_head * n_part * whole.saved_size());
    const bool done = share(n_head * n_part, p.operations(), [&](auto take, npy_intp n) {
        Block<X, T, LANES> block(p.head_dim, (T)p.softcap);
        for (npy_intp at = take(); at < n; at = take()) {
            const npy_intp part = at % n_part, first = part * PART;
            const bool is_last = part == n_part - 1;
            Head<X, T, LANES> head(block, p, at / n_part);
            head.start(0);
            head.attend_to_slots(first, is_last ? p.slots - first : PART);
            if (is_last)
                head.attend_to_chunk();
            block.save(saved.data() + at * block.saved_size());
        }
    });
    for (npy_intp at = 0; at < n_head; at++) {
        Head<X, T, LANES> head(whole, p, at);
        head.start(0);
        for (npy_intp part = 0; part < n_part; part++)
            whole.take_in(saved.data() + (at * n_part + part) * whole.saved_size());
        head.finish(0, out);
    }
    return done;
}

template <typename X, typename T> static bool attend(const Problem<X> &p, X *out) {
    try {
        return p.rows() == 1   ? attend_in_parts<X, T, 1>(p, out)
               : p.rows() <= 4 ? attend_in_parts<X, T, 4>(p, out)
               : p.rows() <= 8 ? attend_in_parts<X, T, 8>(p, out)
                               : attend_in_blocks<X, T, 32>(p, out);
    } catch (const std::bad_alloc &) {
        return false;
    }
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
    if (attend<X, T>(p, attended))
        return 0;
    PyErr_NoMemory();
    return -1;
}

template <typename X, typename T>
static int sink_attention(PyArrayObject *q, PyArrayObject *q_sink, PyArrayObject *k, PyArrayObject *v,
                          PyArrayObject *positions, PyArrayObject **out, npy_int64 sinks, npy_int64 window,
                          npy_float64 scale, bool scaled, npy_float64 softcap) {
    return sink_attention<X, T>(q, q_sink, k, v, positions, NULL, NULL, NULL, out, sinks, window, scale,
                                scaled, softcap);
}
