"""A program with every rule of the grammar."""

EVERYTHING = """\
# everything that the grammar has
gemm(A: e4m3[m, k], B: e4m3[n, k],)
in  scale_a: f32[m], scale_b: f32[n],
    bias: bf16[n], per_row[m?]
in  alpha: f32 = 1.0, beta = -2.5e-3, flag = +1
out D: bf16[m, n], amax: f32, E[n, m]
def hardmish(x) = x / 2 * min(2, max(0, x + 2)); def one() = 1
z = scale_a * (scale_b * acc) + bias
D = hardmish(z) + gelu'(z) + gelu''(z) - -z ** 2 ** 3
amax = max[m, n](abs(z)); E = where(!(z < 1) && z >= 2 || z != 3, clamp(z, min=0, max=1,), C[l, m, n])
y[n, m] = f16(
    acc   # a comment inside
    + a[]
)
"""
