"""What goes wrong in kernels beside dropped barriers: the table of tools/mutate_kernels.py."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCTS = "tests/cuda/test_products.py"
EXPERTS = "tests/cuda/test_experts.py"
ROWS = "tests/cuda/test_rows.py"
ATTENTION = "tests/cuda/test_attention.py"
TOP_K = "tests/cuda/test_top_k.py"


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # in cuda/kernels
    old: str
    new: str
    objects: tuple[str, ...] = ()  # sources in cuda/kernels whose code it changes; enough of them to notice
    tests: str = ""  # "": those of the file (mutations.py)
    select: str = ""  # pytest's -k; "": all of them
    variant: str = "plain"  # the first that notices it: plain, or asan


def on_product(name: str, file: str, old: str, new: str, type_name: str, variant: str = "plain") -> Mutation:
    """A fault in a header of the products, noticed with one format."""
    source = "product_floats.cu" if type_name in ("F32", "F16", "BF16") else f"product_{type_name.lower()}.cu"
    return Mutation(name, file, old, new, (source,), PRODUCTS, f"test_products and {type_name}", variant)


DP4A, FLOAT, ARGS = "product_dp4a.cuh", "product_float.cuh", "product_args.cuh"
MMA, FRAGMENTS = "product_mma.cuh", "mma_fragments.cuh"
W256, W32, WORDS = "weights256.cuh", "weights32.cuh", "weight_words.cuh"

TABLE = [
    # dp4a
    on_product(
        "padded blocks in the chain", DP4A, "min(kTerms, n_blocks * kPerBlock - pass * kTerms)", "kTerms", "MXFP4"
    ),
    on_product("minimum added", DP4A, "has_min ? -a : a", "a", "Q5_K"),
    on_product(
        "minimum with the other scale",
        DP4A,
        "has_min ? W::dmin(row, raw, block) : W::d(row, raw, block)",
        "W::d(row, raw, block)",
        "Q4_K",
    ),
    on_product(
        "half of the sub-blocks' words",
        DP4A,
        "if constexpr (W::kSub == 32) dot",
        "if constexpr (W::kSub == 64) dot",
        "IQ4_XS",
    ),
    on_product(
        "quad sums to the wrong lanes", DP4A, "return (odd ? second : first)", "return (odd ? first : second)", "Q4_0"
    ),
    on_product(
        "group beyond the row", DP4A, "min(pass * 8 + lane / 4, n_groups - 1)", "pass * 8 + lane / 4", "Q8_0", "asan"
    ),
    on_product(
        "weight rows beyond the matrix",
        DP4A,
        "(kPair ? r / 2 : r), args.rows - 1)",
        "(kPair ? r / 2 : r), args.rows)",
        "Q6_K",
        "asan",
    ),
    on_product(
        "the last row is left out",
        DP4A,
        "my_column < n_columns && row < args.rows;",
        "my_column < n_columns && row + 1 < args.rows;",
        "Q3_K",
    ),
    on_product(
        "no columns behind the first eight",
        DP4A,
        "% args.n_column_tiles * kColumns",
        "% args.n_column_tiles * 0",
        "Q2_K",
    ),
    on_product(
        "block sums of activations twice over",
        DP4A,
        "p[s] = __dp4a(kOnes, x[2 * s + 1], __dp4a(kOnes, x[2 * s], 0))",
        "p[s] = __dp4a(kOnes, x[2 * s], __dp4a(kOnes, x[2 * s], 0))",
        "Q5_1",
    ),
    Mutation(
        "gate and up change places",
        DP4A,
        "kPair ? gated_unit(args.unit, acc, up)",
        "kPair ? gated_unit(args.unit, up, acc)",
        ("product_q4_k.cu",),
        EXPERTS,
        "all_rows_on_one",
    ),
    # mma
    on_product(
        "fragment words change places",
        FRAGMENTS,
        "{w.a[2 * s], w.b[2 * s], w.a[2 * s + 1], w.b[2 * s + 1]}",
        "{w.a[2 * s], w.a[2 * s + 1], w.b[2 * s], w.b[2 * s + 1]}",
        "Q4_K",
    ),
    on_product(
        "activations' words change places", FRAGMENTS, "{x[2 * s], x[2 * s + 1]}", "{x[2 * s + 1], x[2 * s]}", "Q8_0"
    ),
    on_product(
        "rows' scales change places",
        FRAGMENTS,
        "byte_of(scales[i / 2].w[j / 4], j % 4)",
        "byte_of(scales[i % 2].w[j / 4], j % 4)",
        "Q6_K",
    ),
    on_product(
        "columns' scales change places",
        FRAGMENTS,
        "const float scale = scales[i % 2][s];",
        "const float scale = scales[i / 2][s];",
        "Q4_0",
    ),
    on_product("sums are kept from block to block", FRAGMENTS, "    out->sum[i] = 0;\n", "", "Q3_K"),
    on_product("minimums are kept from block to block", FRAGMENTS, "      out->min_sum[i] = 0;\n", "", "Q4_K"),
    on_product(
        "minimum added on tensor cores",
        FRAGMENTS,
        "__fmaf_rn(-__int2float_rn(out->min_sum[i])",
        "__fmaf_rn(__int2float_rn(out->min_sum[i])",
        "Q2_K",
    ),
    on_product("padded blocks on tensor cores", FRAGMENTS, "if (block >= n_blocks) break;", "", "Q5_0"),
    on_product("a block ends after every group", MMA, "if (t % 2 == 1) end_block", "end_block", "Q5_K"),
    on_product(
        "columns beyond the last are put out",
        MMA,
        "column >= n_columns || row >= args.rows",
        "row >= args.rows",
        "Q4_1",
        "asan",
    ),
    on_product(
        "rows beyond the last are put out",
        MMA,
        "column >= n_columns || row >= args.rows",
        "column >= n_columns",
        "IQ4_NL",
    ),
    on_product(
        "input rows are not clamped",
        MMA,
        "min(static_cast<int>(threadIdx.x), n_columns - 1)",
        "static_cast<int>(threadIdx.x)",
        "Q4_K",
        "asan",
    ),
    Mutation(
        "gate and up change places on tensor cores",
        MMA,
        "args.w[kPair ? 1 : 0]",
        "args.w[0]",
        ("product_q4_k.cu",),
        EXPERTS,
        "all_rows_on_one",
    ),
    # what both share
    on_product(
        "bias before the scale",
        ARGS,
        "  if (w.bias != nullptr) product = __fadd_rn(product,",
        "  if (w.bias != nullptr) product = __fadd_rn(__fmul_rn(product, 1.5f),",
        "Q4_K",
    ),
    Mutation(
        "bias of the first expert",
        ARGS,
        "static_cast<int64_t>(expert) * rows + row",
        "row",
        ("product_mxfp4.cu",),
        EXPERTS,
        "units_biases",
    ),
    Mutation(
        "scale of the first expert",
        ARGS,
        "w.scales[expert]",
        "w.scales[0]",
        ("product_mxfp4.cu",),
        EXPERTS,
        "units_biases",
    ),
    Mutation(
        "groups of too many rows run twice",
        ARGS,
        "group.count > args.max_rows",
        "group.count > args.max_rows + 1000",
        ("product_q4_k.cu",),
        EXPERTS,
        "all_rows_on_one and 9",
    ),
    Mutation(
        "unit without its clamp",
        ARGS,
        "canonical_swiglu_oai(gate, up)",
        "__fmul_rn(canonical_silu(gate), up)",
        ("product_q4_k.cu",),
        EXPERTS,
        "units_biases",
    ),
    # formats
    on_product(
        "scales of the second half",
        W256,
        "(head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u)",
        "head[3] & 0x0f0f0f0fu",
        "Q4_K",
    ),
    on_product("minimums of the second half", W256, "| (head[2] >> 2 & 0x30303030u)", "", "Q5_K"),
    on_product(
        "offset of six bits",
        W256,
        "minus<32>(codes_of<4>(raw.low, i) | codes_of<2>",
        "minus<31>(codes_of<4>(raw.low, i) | codes_of<2>",
        "Q6_K",
    ),
    on_product("high bits of three-bit scales", W256, "(high << 2 & 0x30303030u)", "(high << 4 & 0x30303030u)", "Q3_K"),
    on_product(
        "two-bit scales without their minimums",
        W256,
        "raw.scales.w[0] >> 4 & 0x0f0f0f0fu",
        "raw.scales.w[0] & 0x0f0f0f0fu",
        "Q2_K",
    ),
    on_product("high bits of table scales", W256, "(16 + group % 2 * 8)", "16", "IQ4_XS"),
    on_product(
        "fifth bit of the other half", W32, "codes_of<1>(raw.high, i) << 4", "codes_of<1>(raw.high, i ^ 1) << 4", "Q5_0"
    ),
    on_product(
        "table of another format",
        W32,
        "TableWeights<E8M0Scale>::words(raw, mxfp4_table(), w)",
        "TableWeights<E8M0Scale>::words(raw, iq4_table(), w)",
        "MXFP4",
    ),
    on_product("upper half of the table", WORDS, "0x3210u | (four & 0x8888u) >> 1", "0x3210u", "IQ4_NL"),
    on_product(
        "borrow between bytes",
        WORDS,
        "((bytes | 0x80808080u) - 0x01010101u * kOffset) ^ 0x80808080u",
        "bytes - 0x01010101u * kOffset",
        "Q6_K",
    ),
    on_product(
        "two blocks' scale for four",
        W32,
        "out.d[s] = half_at(four.w[s / 2], s % 2)",
        "out.d[s] = half_at(four.w[0], s % 2)",
        "Q8_0",
    ),
    # floats
    on_product("elements behind the row", FLOAT, "if (element >= args.k) break;", "", "F32", "asan"),
    on_product(
        "two roundings",
        FLOAT,
        "acc[r][i] = __fmaf_rn(W::at(piece[r], j), value, acc[r][i])",
        "acc[r][i] = __fadd_rn(__fmul_rn(W::at(piece[r], j), value), acc[r][i])",
        "F16",
    ),
    # packing, int8 rows
    Mutation(
        "nibbles of a pair change places",
        "pack_rows.cuh",
        "word % kWords * kBits",
        "(kWords - 1 - word % kWords) * kBits",
        ("pack_rows.cu",),
        PRODUCTS,
        "test_packing and Q4_K",
    ),
    Mutation(
        "padding is not zero",
        "pack_rows.cuh",
        "if (element >= k) continue;",
        "",
        ("pack_rows.cu",),
        PRODUCTS,
        "test_packing and Q8_0",
    ),
    Mutation(
        "rounds half away from zero",
        "int8_block.cuh",
        "__float2int_rn(__fmul_rn(x, inverse))",
        "static_cast<int>(__fadd_rn(__fmul_rn(x, inverse), x < 0 ? -0.5f : 0.5f))",
        ("quantize_rows.cu",),
        PRODUCTS,
        "test_quantize",
    ),
    Mutation(
        "infinity is not seen",
        "int8_block.cuh",
        "const bool finite = max_bits < kInfinityBits;",
        "const bool finite = max_bits <= kInfinityBits;",
        ("quantize_rows.cu",),
        PRODUCTS,
        "test_quantize",
    ),
    Mutation(
        "an inverse that overflows",
        "int8_block.cuh",
        "!finite || __float_as_int(inverse) >= kInfinityBits",
        "!finite",
        ("quantize_rows.cu",),
        PRODUCTS,
        "test_quantize",
    ),
    Mutation(
        "maximum of half a block",
        "quantize_rows.cu",
        "kBlock == 256 ? 32 : 8>",
        "kBlock == 256 ? 32 : 4>",
        ("quantize_rows.cu",),
        PRODUCTS,
        "test_quantize",
    ),
    # groups and sums
    Mutation(
        "missing experts are run",
        "group_slots.cu",
        "++(args.expert_data[first + i] != nullptr ? mine.active : mine.missing)",
        "++mine.active",
        ("group_slots.cu",),
        EXPERTS,
        "test_grouping",
    ),
    Mutation(
        "ranks from the last on",
        "sum_experts.cu",
        "row * args.n_used + rank;",
        "row * args.n_used + args.n_used - 1 - rank;",
        ("sum_experts.cu",),
        EXPERTS,
        "beside",
    ),
    Mutation(
        "rows beyond a call's are grouped",
        "group_slots.cu",
        "args.n_rows_device == nullptr ? args.n_slots : *args.n_rows_device * args.n_used",
        "args.n_slots",
        ("group_slots.cu",),
        EXPERTS,
        "test_grouping",
    ),
    # rows
    Mutation(
        "post norm's weight is left out",
        "rms_norm.cu",
        "__fmul_rn(__fmul_rn(a, inverse[0]), norm.post_norm[i])",
        "__fmul_rn(a, inverse[0])",
        ("rms_norm.cu",),
        ROWS,
        "residual",
    ),
    Mutation(
        "mean of one element too few",
        "rms_norm.cu",
        "*mean = __fdiv_rn(sum, static_cast<float>(n))",
        "*mean = __fdiv_rn(sum, static_cast<float>(n - 1))",
        ("rms_norm.cu",),
        ROWS,
        "norm",
    ),
    Mutation(
        "sine of the wrong sign",
        "rope.cu",
        "__fadd_rn(__fmul_rn(x1, c), __fmul_rn(x0, s))",
        "__fsub_rn(__fmul_rn(x1, c), __fmul_rn(x0, s))",
        ("rope.cu",),
        ROWS,
        "test_rope",
    ),
    Mutation(
        "elements that do not turn are not scaled",
        "rope.cu",
        "head[i] = __fmul_rn(head[i], scale);",
        "",
        ("rope.cu",),
        ROWS,
        "test_rope",
    ),
    Mutation(
        "ties go to the higher expert",
        "router.cu",
        "static_cast<unsigned>(~i)",
        "static_cast<unsigned>(i)",
        ("router.cu",),
        ROWS,
        "test_router",
    ),
    Mutation(
        "zeros of both signs differ",
        "router.cu",
        "__float_as_uint(__fadd_rn(x, 0.0f))",
        "__float_as_uint(x)",
        ("router.cu",),
        ROWS,
        "test_router",
    ),
    Mutation(
        "a group's best score alone",
        "router.cu",
        "group_scores[g] = __fadd_rn(best, second);",
        "group_scores[g] = best;",
        ("router.cu",),
        ROWS,
        "test_router",
    ),
    Mutation(
        "least sum of weights",
        "router.cu",
        "sum < kMinWeightSum ? kMinWeightSum : sum",
        "sum",
        ("router.cu",),
        ROWS,
        "test_router",
    ),
    Mutation(
        "damaged scores pass",
        "router.cu",
        ">= kInfinityBits) atomicExch",
        "> kInfinityBits) atomicExch",
        ("router.cu",),
        ROWS,
        "damaged",
    ),
    # attention
    Mutation(
        "tail from its second cell on",
        "attention_scratch.cuh",
        "tail[position - n_prefix]",
        "tail[position - n_prefix + 1]",
        ("attention_scores.cu", "attention_values.cu"),
        ATTENTION,
        "plain",
    ),
    Mutation(
        "window is not looked at",
        "attention_scratch.cuh",
        "a.first != nullptr ? a.first[row] : 0",
        "0",
        ("attention_scores.cu", "attention_weights.cu", "attention_values.cu"),
        ATTENTION,
        "window",
    ),
    Mutation(
        "key heads of the first group",
        "attention_scores.cu",
        "cell_begin(a.k, kv_head,",
        "cell_begin(a.k, 0,",
        ("attention_scores.cu",),
        ATTENTION,
        "three",
    ),
    Mutation(
        "heads share their maxima",
        "attention_weights.cu",
        "args.maxima + head * 2 * (args.n_tiles + 1)",
        "args.maxima",
        ("attention_weights.cu",),
        ATTENTION,
        "shared_memory",
    ),
    Mutation(
        "sinks have no share",
        "attention_weights.cu",
        "a.sinks != nullptr ? 1.0f : 0.0f",
        "0.0f",
        ("attention_weights.cu",),
        ATTENTION,
        "sinks",
    ),
    Mutation(
        "decay of the tile before",
        "attention_values.cu",
        "next_decay = decay[t + 1]",
        "next_decay = decay[t]",
        ("attention_values.cu",),
        ATTENTION,
        "long",
    ),
    Mutation(
        "scale of the tile before",
        "attention_values.cu",
        "scale_of((t + 1) * kTile + lane)",
        "scale_of(t * kTile + lane)",
        ("attention_values.cu",),
        ATTENTION,
        "Q8_0",
    ),
    Mutation(
        "scale of the head's first block",
        "cache_cells.cuh",
        "cells.scales + at / 32",
        "cells.scales + at / 32 / 2 * 2",
        ("attention_scores.cu", "attention_values.cu"),
        ATTENTION,
        "Q8_0",
    ),
    Mutation(
        "scale is copied as an element",
        "cache_cells.cu",
        "i % kBlockWords - 1] = from[i]",
        "i % kBlockWords - 1] = from[i - 1]",
        ("cache_cells.cu",),
        ATTENTION,
        "Q8_0",
    ),
    Mutation(
        "a broken block keeps what was there",
        "cache_cells.cu",
        "at + lane < args.head_dim ? x[at + lane] : 0.0f",
        "at + lane < args.head_dim ? x[at + lane] : x[at]",
        ("cache_cells.cu",),
        ROWS,
        "cells",
    ),
    Mutation(
        "tile used before it has come",
        "attention_values.cu",
        "gpu_cp_async_wait<kStages - 2>()",
        "gpu_cp_async_wait<kStages - 1>()",
        ("attention_values.cu",),
        ATTENTION,
        "long",
    ),
    Mutation(
        "ties of logits go to the higher id",
        "top_k.cu",
        "~static_cast<unsigned>(id)",
        "static_cast<unsigned>(id)",
        ("top_k.cu",),
        TOP_K,
        "300",
    ),
    Mutation(
        "infinity among logits is not told",
        "top_k.cu",
        "return value <= 3.402823466e38f",
        "return value == value",
        ("top_k.cu",),
        TOP_K,
        "no_number",
    ),
    Mutation(
        "infinity in the residual stream is not told",
        "rms_norm.cu",
        "!(fabsf(sum) <= kLargest)",
        "sum != sum",
        ("rms_norm.cu",),
        ROWS,
        "not_finite",
    ),
    Mutation(
        "a row more than there are",
        "row_count.cuh",
        "row < *n_rows_device",
        "row <= *n_rows_device",
        ("rms_norm.cu", "router.cu", "cache_cells.cu"),
        ROWS,
        "a_grid_for_more",
    ),
    Mutation(
        "a pass reads another row",
        "top_k.cu",
        "args.in[row * args.in_stride + at]",
        "args.in[at]",
        ("top_k.cu",),
        TOP_K,
        "9000",
    ),
]
