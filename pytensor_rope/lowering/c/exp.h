// exp(x) for x that is 0 or below, or NaN, in a form that loops over it are vectorized with. What is below
// the smallest normal number is 0.

static inline npy_float64 exp_below_0(npy_float64 x) {
    const npy_float64 smallest = -708.0, shift = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer.
    const npy_float64 bounded = x < smallest ? smallest : x;
    const npy_float64 shifted = bounded * 1.4426950408889634 + shift, n = shifted - shift;
    const npy_float64 rest = bounded - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    // The Taylor series of exp(r), to which the next term adds nothing where |r| <= ln(2) / 2.
    npy_float64 series = 1 / 6227020800.0;
    series = series * rest + 1 / 479001600.0;
    series = series * rest + 1 / 39916800.0;
    series = series * rest + 1 / 3628800.0;
    series = series * rest + 1 / 362880.0;
    series = series * rest + 1 / 40320.0;
    series = series * rest + 1 / 5040.0;
    series = series * rest + 1 / 720.0;
    series = series * rest + 1 / 120.0;
    series = series * rest + 1 / 24.0;
    series = series * rest + 1 / 6.0;
    series = series * rest + 0.5;
    series = series * rest * rest + rest + 1.0;
    const npy_float64 power =
        same_bits<npy_float64>((same_bits<npy_uint64>(shifted) << 52) + ((npy_uint64)1023 << 52));
    return x < smallest ? 0.0 : series * power;
}

static inline npy_float32 exp_below_0(npy_float32 x) {
    const npy_float32 smallest = -87.0f, shift = 12582912.0f; // 1.5 * 2^23, likewise.
    const npy_float32 bounded = x < smallest ? smallest : x;
    const npy_float32 shifted = bounded * 1.44269504f + shift, n = shifted - shift;
    const npy_float32 rest = bounded - n * 0.693359375f + n * 2.12194440e-4f;
    // The Taylor series of exp(r), its coefficients fitted to |r| <= ln(2) / 2 (Cephes, expf).
    npy_float32 series = 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    const npy_float32 power = same_bits<npy_float32>((same_bits<npy_uint32>(shifted) << 23) + (127u << 23));
    return x < smallest ? 0.0f : series * power;
}
