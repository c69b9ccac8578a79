// Positions to cosines and sines, with the phase in fixed point: see Angles in pytensor_rope/angles.py.

// The angle of `magnitude` positions, and the sign that folding it by half a turn leaves behind.
static inline npy_float32 folded_angle(npy_uint64 magnitude, npy_uint64 f, npy_uint64, npy_float32 *sign) {
    const npy_uint32 phase = (npy_uint32)((magnitude * f) >> 32);
    const npy_uint32 fold = (phase + (1u << 30)) >> 31;
    *sign = fold ? -1.0f : 1.0f;
    return (npy_float32)(npy_int32)(phase - (fold << 31)) * (npy_float32)(2 * NPY_PI / 4294967296.0);
}

static inline npy_float64 folded_angle(npy_uint64 magnitude, npy_uint64 f_hi, npy_uint64 f_lo,
                                       npy_float64 *sign) {
    const npy_uint64 phase = magnitude * f_hi + ((magnitude * f_lo) >> 24);
    *sign = 1.0;
    return (npy_float64)(npy_int64)phase * (2 * NPY_PI / 18446744073709551616.0);
}

// `turns` holds f's high words in its first row and its low words in its second.
template <typename P, typename T>
static int angles(PyArrayObject *position_ids, PyArrayObject *turns, PyArrayObject **cos,
                  PyArrayObject **sin) {
    Contiguous<P> positions(position_ids);
    Contiguous<npy_uint64> f(turns);
    if (positions.failed() || f.failed())
        return -1;
    const int ndim = PyArray_NDIM(position_ids) + 1;
    if (ndim > NPY_MAXDIMS)
        return refuse("position_ids has too many dimensions");
    const npy_intp n_pair = PyArray_DIM(turns, 1);
    npy_intp shape[NPY_MAXDIMS];
    for (int axis = 0; axis < ndim - 1; axis++)
        shape[axis] = PyArray_DIM(position_ids, axis);
    shape[ndim - 1] = n_pair;
    T *cosines = output<T>(cos, ndim, shape), *sines = output<T>(sin, ndim, shape);
    if (cosines == NULL || sines == NULL)
        return -1;
    const npy_intp n_position = PyArray_SIZE(position_ids);
    const double operations = 100.0 * n_position * n_pair; // A sine and a cosine each.
    share_rows(n_position, operations, [&](npy_intp first, npy_intp end) {
        for (npy_intp t = first; t < end; t++) {
            const P position = positions.data()[t];
            const bool negative = position < 0;
            const npy_uint64 magnitude = negative ? 0 - (npy_uint64)position : (npy_uint64)position;
            for (npy_intp i = 0; i < n_pair; i++) {
                T sign;
                const T angle = folded_angle(magnitude, f.data()[i], f.data()[n_pair + i], &sign);
                cosines[t * n_pair + i] = std::cos(angle) * sign;
                sines[t * n_pair + i] = std::sin(angle) * (negative ? -sign : sign);
            }
        }
    });
    return 0;
}
