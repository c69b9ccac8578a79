// Root-mean-square normalisation and its gradient: see pytensor_rope/norm.py.

template <typename X, typename T> static inline T reciprocal_rms(const X *row, npy_intp n, T epsilon) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (npy_intp i = 0; i < n; i++) {
        const T value = load(row[i]);
        total += value * value;
    }
    return 1 / std::sqrt(total / n + epsilon);
}

// What the normalised value is multiplied by: the weight in x's dtype, or 1 + weight.
template <typename X, typename W, typename T>
static std::vector<T> scales(const W *weight, npy_intp n, bool unit_offset) {
    std::vector<T> scale(n);
    for (npy_intp i = 0; i < n; i++) {
        const T value = load(weight[i]);
        scale[i] = unit_offset ? 1 + value : (T)load(stored_as<X>::from(value));
    }
    return scale;
}

// Without an offset the normalised value is rounded to x's dtype before it is scaled.
template <typename X, typename T> static inline T rounded(T normalized, bool unit_offset) {
    return unit_offset ? normalized : (T)load(stored_as<X>::from(normalized));
}

template <typename X, typename T>
static inline void normalize_row(const X *__restrict x, const T *__restrict scale, X *__restrict out,
                                 npy_intp n, T epsilon, bool unit_offset) {
    const T r = reciprocal_rms(x, n, epsilon);
    for (npy_intp i = 0; i < n; i++)
        out[i] = stored_as<X>::from(rounded<X>((T)load(x[i]) * r, unit_offset) * scale[i]);
}

template <typename X, typename T>
static inline void normalize_row(const X *__restrict x, X *__restrict out, npy_intp n, T epsilon) {
    const T r = reciprocal_rms(x, n, epsilon);
    for (npy_intp i = 0; i < n; i++)
        out[i] = stored_as<X>::from((T)load(x[i]) * r);
}

// Returns the number of rows, or -1 where the weight doesn't fit them.
static npy_intp count_rows(PyArrayObject *x, PyArrayObject *weight) {
    const int last = PyArray_NDIM(x) - 1;
    if (weight != NULL && PyArray_DIM(weight, 0) != PyArray_DIM(x, last))
        return refuse("weight must have one value a feature of x");
    return product(PyArray_DIMS(x), last);
}

template <typename X, typename T>
static int rms_normalize(PyArrayObject *x, PyArrayObject **out, npy_float64 epsilon, bool) {
    Contiguous<X> rows(x);
    X *normalized = output<X>(out, PyArray_NDIM(x), PyArray_DIMS(x));
    if (rows.failed() || normalized == NULL)
        return -1;
    const npy_intp n = PyArray_DIM(x, PyArray_NDIM(x) - 1), n_row = count_rows(x, NULL);
    share_rows(n_row, 4.0 * sizeof(X) * n_row * n, [&](npy_intp row, npy_intp end) {
        for (; row < end; row++)
            normalize_row(rows.data() + row * n, normalized + row * n, n, (T)epsilon);
    });
    return 0;
}

template <typename X, typename T, typename W>
static int rms_normalize(PyArrayObject *x, PyArrayObject *weight, PyArrayObject **out, npy_float64 epsilon,
                         bool unit_offset) {
    const npy_intp n = PyArray_DIM(x, PyArray_NDIM(x) - 1), n_row = count_rows(x, weight);
    if (n_row < 0)
        return -1;
    Contiguous<X> rows(x);
    Contiguous<W> weights(weight);
    X *normalized = output<X>(out, PyArray_NDIM(x), PyArray_DIMS(x));
    if (rows.failed() || weights.failed() || normalized == NULL)
        return -1;
    try {
        const std::vector<T> scale = scales<X, W, T>(weights.data(), n, unit_offset);
        share_rows(n_row, 4.0 * sizeof(X) * n_row * n, [&](npy_intp row, npy_intp end) {
            for (; row < end; row++)
                normalize_row(rows.data() + row * n, scale.data(), normalized + row * n, n, (T)epsilon,
                              unit_offset);
        });
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

template <typename X, typename T>
static inline void gradient_row(const X *__restrict g, const X *__restrict x, const T *__restrict scale,
                                X *__restrict gx, T *__restrict gw, npy_intp n, T epsilon,
                                bool unit_offset) {
    const T r = reciprocal_rms(x, n, epsilon);
    T along = 0;
#pragma omp simd reduction(+ : along)
    for (npy_intp i = 0; i < n; i++)
        along += (T)load(g[i]) * scale[i] * ((T)load(x[i]) * r);
    along /= n;
    for (npy_intp i = 0; i < n; i++) {
        const T normalized = (T)load(x[i]) * r, g_i = load(g[i]);
        gx[i] = stored_as<X>::from(r * (g_i * scale[i] - normalized * along));
        gw[i] += g_i * rounded<X>(normalized, unit_offset);
    }
}

// Takes a scale and gives its gradient, both in the dtype that is computed in.
template <typename X, typename T>
static int gradient(PyArrayObject *g, PyArrayObject *x, const std::vector<T> &scale, std::vector<T> &gw,
                    PyArrayObject **gx, npy_float64 epsilon, bool unit_offset) {
    if (!PyArray_SAMESHAPE(g, x))
        return refuse("the cotangent must have x's shape");
    const npy_intp n = PyArray_DIM(x, PyArray_NDIM(x) - 1), n_row = count_rows(x, NULL);
    Contiguous<X> rows(x), g_rows(g);
    X *out = output<X>(gx, PyArray_NDIM(x), PyArray_DIMS(x));
    if (rows.failed() || g_rows.failed() || out == NULL)
        return -1;
    for (npy_intp row = 0; row < n_row; row++)
        gradient_row(g_rows.data() + row * n, rows.data() + row * n, scale.data(), out + row * n, gw.data(), n,
                     (T)epsilon, unit_offset);
    return 0;
}

template <typename X, typename T>
static int rms_normalize_gradient(PyArrayObject *g, PyArrayObject *x, PyArrayObject **gx, npy_float64 epsilon,
                                  bool unit_offset) {
    try {
        const npy_intp n = PyArray_DIM(x, PyArray_NDIM(x) - 1);
        std::vector<T> ones(n, 1), unused(n);
        return gradient<X, T>(g, x, ones, unused, gx, epsilon, unit_offset);
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
}

template <typename X, typename T, typename W>
static int rms_normalize_gradient(PyArrayObject *g, PyArrayObject *x, PyArrayObject *weight,
                                  PyArrayObject **gx, PyArrayObject **gw, npy_float64 epsilon,
                                  bool unit_offset) {
    if (count_rows(x, weight) < 0)
        return -1;
    Contiguous<W> weights(weight);
    W *out = output<W>(gw, 1, PyArray_DIMS(weight));
    if (weights.failed() || out == NULL)
        return -1;
    try {
        const npy_intp n = PyArray_DIM(weight, 0);
        const std::vector<T> scale = scales<X, W, T>(weights.data(), n, unit_offset);
        std::vector<T> total(n, 0);
        if (gradient<X, T>(g, x, scale, total, gx, epsilon, unit_offset) != 0)
            return -1;
        for (npy_intp i = 0; i < n; i++)
            out[i] = stored_as<W>::from(total[i]);
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}
