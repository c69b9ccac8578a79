// Put tokens of a chunk into the slots of a cache: see WriteTokens in pytensor_rope/write_tokens.py.

static void copy_row(const char *from, npy_intp from_stride, char *to, npy_intp to_stride, npy_intp n,
                     npy_intp size) {
    if (from_stride == size && to_stride == size) {
        memcpy(to, from, n * size);
        return;
    }
    for (npy_intp i = 0; i < n; i++)
        memcpy(to + i * to_stride, from + i * from_stride, size);
}

static int write_tokens(PyArrayObject *rows, PyArrayObject *chunk, PyArrayObject *source, PyArrayObject **out,
                        bool in_place) {
    const npy_intp *to = PyArray_DIMS(rows), *from = PyArray_DIMS(chunk);
    if (from[0] != to[0] || from[1] != to[1] || from[3] != to[3])
        return refuse("the chunk must have the cache's batch, heads and head_dim");
    if (PyArray_DIM(source, 0) != to[0] || PyArray_DIM(source, 1) != to[2])
        return refuse("source must be (batch, slots)");
    Contiguous<npy_int32> tokens(source);
    if (tokens.failed())
        return -1;
    for (npy_intp i = 0; i < to[0] * to[2]; i++)
        if (tokens.data()[i] >= from[2])
            return refuse("source names a token that is not in the chunk");
    PyArrayObject *written = in_place ? (Py_INCREF(rows), rows) : (PyArrayObject *)PyArray_NewCopy(rows, NPY_CORDER);
    if (written == NULL)
        return -1;
    Py_XDECREF(*out);
    *out = written;
    const npy_intp *to_stride = PyArray_STRIDES(written), *from_stride = PyArray_STRIDES(chunk);
    for (npy_intp b = 0; b < to[0]; b++)
        for (npy_intp slot = 0; slot < to[2]; slot++) {
            const npy_int32 token = tokens.data()[b * to[2] + slot];
            for (npy_intp head = 0; token >= 0 && head < to[1]; head++)
                copy_row(PyArray_BYTES(chunk) + b * from_stride[0] + head * from_stride[1] + token * from_stride[2],
                         from_stride[3],
                         PyArray_BYTES(written) + b * to_stride[0] + head * to_stride[1] + slot * to_stride[2],
                         to_stride[3], to[3], PyArray_ITEMSIZE(rows));
        }
    return 0;
}
