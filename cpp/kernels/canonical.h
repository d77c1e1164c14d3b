// The one canonical arithmetic. Every instruction set, and every device that promises equal bits, computes exactly
// what stands here; cpp/kernels/scalar is this text as code and is the oracle of the tests.
//
// C0  All floats are IEEE binary32 with round-to-nearest-even and subnormals kept. `a * b + c` is two roundings
//     unless it is written fma(a, b, c), which is one. Compilers run with contraction off.
//
// C1  Lanes. A float reduction over elements i = 0 .. n-1 uses kLanes = 16 accumulators, all starting at +0. Element i
//     goes to lane i % 16, in increasing i. A lane without a further element is left as it is. The lanes are combined
//     by the tree   for (h = 8; h >= 1; h /= 2) for (l = 0; l < h; ++l) lane[l] = lane[l] + lane[l + h];   result lane[0].
//       dot16(x, y):  lane = fma(x[i], y[i], lane)           sum16(x):  lane = lane + x[i]
//     The accumulators are one 512-bit register, two 256-bit ones, or half a GPU warp.
//
// C2  Float weights (F32, F16, BF16): decoded exactly to binary32, then dot16(w, x).
//
// C3  Activations for quantised weights: a row x of n elements is cut into blocks of B = 32 or 256. Per block
//       amax = max |x[i]|;  d = amax / 127;  id = amax == 0 ? 0 : 127 / amax;
//       q[i] = clamp(rint(x[i] * id), -127, 127);   rint rounds to even
//     A row never depends on its neighbours. sums16[j] is the integer sum of q over elements 16j .. 16j+15.
//     If amax is not finite, or 127 / amax overflows (amax below about 3.7e-37), then: not finite -> d = NaN and all
//     q = 0, so that the fault stays visible; too small -> d = 0 and all q = 0.
//
// C4  Quantised products. Inside one weight block everything is an exact int32: no float touches an element. With
//     blocks b = 0, 1, .. in order, ONE accumulator per output, starting at +0 (an output is an independent chain, so a
//     register or a thread per output needs no reduction; the integers inside a block may be summed in any order):
//       formats of 32 (Q4_0 Q5_0 Q8_0 IQ4_NL MXFP4):  S = sum of w_int * q
//           acc = fma(float(S), dw * dx, acc)
//       Q4_1 Q5_1:                                     S = sum of w_int * q, X = sum of q over the block
//           acc = fma(float(S), dw * dx, acc);  acc = fma(float(X), mw * dx, acc)
//       NVFP4 (groups of 16, a scale each):            S as above for each group; dx is that of the group's 32
//           acc = fma(float(S), dw * dx, acc)
//       formats of 256 (Q3_K Q6_K IQ* TQ*):            S = sum over sub-blocks j of sc[j] * sum(w_int * q)
//           acc = fma(float(S), dw * dx, acc)
//       Q2_K Q4_K Q5_K:                                S as above, M = sum over j of mn[j] * (sum of q over sub-block j)
//           acc = fma(float(S), dw * dx, acc);  acc = fma(-float(M), dmin * dx, acc)
//     w_int is the integer that the layout comment in cpp/tensor/blocks.h multiplies by the scales (offset removed, e.g.
//     q - 8; table value for IQ4 and FP4, grid value for IQ2 and IQ3, 8 * grid +- 1 for IQ1); IQ1 to IQ3 have
//     sc = 2 * stored + 1 and dw a power of two below the stored scale (cpp/tensor/integer_blocks.h); dw, mw, dmin are the stored scales decoded exactly to binary32; dw * dx is
//     rounded once; float(S) rounds an int32 to nearest even. |S| < 2^31 always (largest: Q6_K, 32*127*128*256 = 133e6).
//     A NaN scale gives a NaN output.
//
// C5  exp, log, SiLU: cpp/kernels/canonical_math.h, element by element. sin and cos of rotary angles come from tables
//     made once per model in double precision and rounded.
//
// C6  RMS norm: ss = dot16(x, x);  r = 1 / sqrt(ss / float(n) + eps);  y[i] = (x[i] * r) * w[i]; without a weight
//     y[i] = x[i] * r. A layer norm does the same with x[i] - sum16(x) / float(n).
//
// C7  Softmax over a row: m = max; e[i] = exp(x[i] - m); s = sum16(e); p[i] = e[i] / s.
//
// C8  Attention of one query head over the positions of its own path that it sees, position order, in tiles of
//     kAttentionTile positions from the first of them on. m = -inf, l = 0, acc[.] = 0; with a sink z: m = z, l = 1. For
//     each tile with positions j = 0 .. t-1:
//       s[j] = dot16(q, k[j]) * scale;   with a soft cap c: s[j] = softcap(s[j], c)
//       m2 = max(m, max_j s[j]);  c = exp(m - m2);  p[j] = exp(s[j] - m2)
//       l = fma(l, c, sum16(p over the tile));  acc[d] = acc[d] * c;  then in increasing j: acc[d] = fma(p[j], v[j][d], acc[d])
//       m = m2
//     out[d] = acc[d] * (1 / l). Which memory cell holds a position does not matter. (When c == 1 the products by c are
//     exact and may be skipped.) A query with no position is an error of the caller.
//
// C9  A row's expert outputs are kept apart and summed in rank order: y = 0; for rank r: y = fma(weight[r], out[r], y).
//
// C10 Causal convolution of one channel, taps t = 0 .. n-1 from the oldest to the current token:
//       y = 0; for t: y = fma(w[t], x[t], y)
//
// C11 Gated delta rule: one column of a head's state S, keys j = 0 .. n-1, one token (Yang et al., arXiv 2412.06464). A
//     column never depends on its neighbours, and tokens follow one another in order: there is no chunked form.
//       p = 0; for j: p = fma(k[j], S[j] * decay, p);   d = beta * (v - p)
//       o = 0; for j: S[j] = fma(k[j], d, S[j] * decay), o = fma(q[j], S[j], o);   out = o
//
// C12 Gated units, element by element, g the gate and u the up projection:
//       SwiGLU       silu(g) * u
//       GEGLU        t = max(g, -100);  z = (1.59576912f * t) * fma(0.044715f, t * t, 1);  (t / (1 + exp(-z))) * u
//                    (the tanh form of GELU, as 0.5 (1 + tanh(z / 2)) = 1 / (1 + exp(-z)))
//       SwiGLU-OAI   t = max(min(g, 7), -100);  v = max(min(u, 7), -7);  (t / (1 + exp(-(1.702f * t)))) * (v + 1)
//       ReGLU        max(g, 0) * u
//     min and max pass NaN on, as in canonical_math.h.
//
// C13 softcap(x, c) = c * (1 - 2 / (exp(x * (2 / c)) + 1)), which is c tanh(x / c).
//
// C14 Keys and values in cells are rounded once, when they are written, each row by itself; C8 reads them decoded.
//       F32   as they are
//       F16   to the nearest binary16, ties to even; decoded exactly
//       Q8_0  blocks of 32, the last filled up with zeros: q as in C3, d rounded to binary16 after that; decoded as
//             float(d) * float(q), which is exact
#pragma once

#include <cmath>
#include <cstdint>

namespace expertree {

constexpr int kLanes = 16;
constexpr int kAttentionTile = 32;

// Functions here are static on purpose: an object built for one instruction set must not export them (a weak symbol
// compiled for AVX-512 could win at link time and run on a CPU without it).

static inline float combine_lanes(float* lane) {  // float[16], destroyed
  for (int h = kLanes / 2; h >= 1; h /= 2) {
    for (int l = 0; l < h; ++l) lane[l] = lane[l] + lane[l + h];
  }
  return lane[0];
}

}  // namespace expertree
