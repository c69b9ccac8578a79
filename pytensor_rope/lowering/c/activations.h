// Activation functions, element by element: see pytensor_rope/activations.py.

template <typename T> static inline T logistic(T x) {
    const T e = exp_below_0(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}

struct SiLU {
    template <typename T> static inline T of(T x) { return x * logistic(x); }
};

// (1 + tanh(z)) / 2 is the logistic function of 2 z.
struct TanhGELU {
    template <typename T> static inline T of(T x) {
        return x * logistic((T)1.5957691216057308 * (x + (T)0.044715 * (x * x * x)));
    }
};

template <typename Function, typename T>
static inline void activate_row(const T *__restrict x, T *__restrict out, npy_intp n) {
#pragma omp simd
    for (npy_intp i = 0; i < n; i++)
        out[i] = Function::of(x[i]);
}

template <typename Function> static inline void activate_row(const half *x, half *out, npy_intp n) {
    npy_float32 wide[256], activated[256];
    for (npy_intp start = 0; start < n; start += 256) {
        const npy_intp count = n - start < 256 ? n - start : 256;
        widen(x + start, wide, count);
        activate_row<Function>(wide, activated, count);
        narrow(activated, out + start, count);
    }
}

template <typename Function, typename X, typename T>
static int activate(PyArrayObject *x, PyArrayObject **out) {
    X *activated = output<X>(out, PyArray_NDIM(x), PyArray_DIMS(x));
    if (activated == NULL)
        return -1;
    // Rows that lie apart, as those of one part of a wider matrix do, need no copy.
    const int last = PyArray_NDIM(x) - 1;
    int n_long = 0, rows = 0;
    for (int axis = 0; axis < last; axis++)
        if (PyArray_DIM(x, axis) != 1)
            n_long++, rows = axis;
    if (n_long == 1 && PyArray_STRIDE(x, last) == (npy_intp)sizeof(X)) {
        const npy_intp n = PyArray_DIM(x, last);
        for (npy_intp row = 0; row < PyArray_DIM(x, rows); row++)
            activate_row<Function>((const X *)(PyArray_BYTES(x) + row * PyArray_STRIDE(x, rows)),
                                   activated + row * n, n);
        return 0;
    }
    Contiguous<X> values(x);
    if (values.failed())
        return -1;
    activate_row<Function>(values.data(), activated, PyArray_SIZE(x));
    return 0;
}
