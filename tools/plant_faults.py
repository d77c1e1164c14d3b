#!/usr/bin/env python3
"""Plants known faults, one at a time, and checks that the tests named for each one fail.

    python tools/plant_faults.py [--list] [--only NAME ...] [--jobs N] [--keep FOLDER]

Works on a copy of the tree in a temporary folder (or in FOLDER, which is kept, so that the next run compiles little);
the checkout is never touched. One build serves all faults: only the files that a fault changes are compiled again.
Prints a line per fault, caught or MISSED with the first test that failed, and ends with status 1 if any was missed.
Faults in kernels that this CPU cannot run are skipped.
The table in docs/testing.md is this program's output.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from test_build import environment, make_overlay

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("CMakeLists.txt", "pyproject.toml", "cpp", "cuda", "docs", "python", "tests")
SECONDS = 600  # for the tests of one fault

EXACT = "tests/equivalence/test_exactness.py"
SESSION = "tests/unit/test_session.py"
MOE = "tests/unit/test_moe_cases.py"
GOLDEN = "tests/golden/test_conformance.py"
ISA = "tests/isa/test_kernels.py"
BENCH = "tests/unit/test_bench.py"
CACHE_ROWS = "tests/isa/test_cache_rows.py"
CACHE_TYPES = "tests/equivalence/test_cache_types.py"
THREADS = "tests/unit/test_thread_pool.py"
READS = "tests/unit/test_async_reader.py"
CACHE = "tests/unit/test_cache_policies.py"
POLICY_PLUG = "tests/unit/test_cache_policy_plug.py"
PAGER = "tests/unit/test_pager.py"
PAGING = "tests/equivalence/test_paging.py"
HITS = "tests/unit/test_expert_hits.py"
SPECULATION = "tests/equivalence/test_speculation.py"
GUARD = "tests/unit/test_guard.py"
PRICES = "tests/unit/test_measured_cost.py"
BY_HAND = "tests/unit/test_selectors_by_hand.py"
MERGED_DRAFTERS = "tests/unit/test_merged_drafters.py"
JOINT = "tests/equivalence/test_joint_steps.py"
DRAFTING = "tests/unit/test_drafting.py"
RECURRENT = "tests/unit/test_recurrent_state.py"
HYBRID = "tests/unit/test_hybrid_variants.py"
VARIANTS = "tests/golden/test_variants.py"
MTP = "tests/unit/test_mtp.py"
MOESPEC = "tests/unit/test_moespec.py"
TRACE = "tests/unit/test_speculation_trace.py"
COMPARISON = "tests/unit/test_comparison.py"
PROFILE = "tests/unit/test_profile.py"
PROFILE_FILES = "tests/unit/test_profile_files.py"
VRAM = "tests/cuda/test_vram.py"
VRAM_FAULTS = "tests/cuda/test_vram_faults.py"
VRAM_ATTENTION = "tests/cuda/test_vram_attention.py"
VRAM_BLOCKS = "tests/cuda/test_vram_blocks.py"
VRAM_MIXTURES = "tests/cuda/test_vram_mixtures.py"
VRAM_GRAPHS = "tests/cuda/test_vram_graphs.py"
VRAM_DENSE = "tests/cuda/test_vram_dense.py"
SAMPLER = "tests/unit/test_sampler.py"
VRAM_HEAD = "tests/cuda/test_vram_head.py"
DEVICE_DENSE = "tests/cuda/test_device_dense.py"
REPORT = "tests/unit/test_report.py"
REPORT_PAGE = "tests/unit/test_report_page.py"
STREAMS = "tests/unit/test_cli_streams.py"
LIVE = "tests/unit/test_live_view.py"


@dataclass(frozen=True)
class Fault:
    claim: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FORWARD = "cpp/model/forward.cpp"
STATE = "cpp/model/sequence_state.cpp"
RECURRENT_STATE = "cpp/model/recurrent_state.cpp"
DELTA_NET = "cpp/model/delta_net.cpp"
MIXTURE = "cpp/model/moe_block.cpp"
CHUNK = "cpp/model/row_chunk.cpp"
ROUTER = "cpp/model/router.cpp"
ENGINE = "cpp/engine/session.cpp"
MERGED = "cpp/spec/drafters/merged.cpp"
SESSION_STEP = "cpp/engine/session_step.cpp"
VERIFIER = "cpp/spec/verifier.cpp"
BACKEND = "cpp/backend/cpu_backend.cpp"
POOL = "cpp/base/thread_pool.cpp"
READ_SOURCE = "cpp/io/read_source.cpp"
EXPERT_CACHE = "cpp/experts/expert_cache.cpp"
EXPERT_PAGER = "cpp/experts/expert_pager.cpp"
AVX512 = "cpp/kernels/avx512/"
WALK = "cpp/kernels/attention_walk.h"
TILE = "cpp/kernels/attention_tile.h"
CACHE_FORMATS = "cpp/model/cache_types.cpp"
SCALAR = "cpp/kernels/scalar/"

# fmt: off
FAULTS = [Fault(*row) for row in (
    # Prefill: any chunking, any other rows in the batch.
    ("chunking", "position counted from the chunk's first row", CHUNK,
     "pass.batch->depths[at], pass", "pass.batch->depths[at - static_cast<size_t>(begin)], pass", (EXACT,)),
    ("chunking", "attention path of the chunk's row, not the batch's", "cpp/model/row_chunk.h",
     "row(r).state->path(row(r).index)", "row(r).state->path(r)", (EXACT,)),
    ("chunking", "attention tiles start anew after the contiguous cells", SCALAR + "attention.cpp",
     "std::min<int64_t>(kAttentionTile, n - begin);",
     "std::min<int64_t>(kAttentionTile, (begin < args.n_prefix ? args.n_prefix : n) - begin);", (EXACT,)),
    ("batch", "a large batch skips the rounding of activations", BACKEND,
     "if (mode_ == ActivationMode::kReference) {\n    matmul",
     "if (mode_ == ActivationMode::kReference || args.n_columns > 8) {\n    matmul", (EXACT,)),
    ("batch", "int8 activations of an earlier batch are used again", "cpp/backend/activations.cpp",
     "q8_32_.valid = false;", "q8_32_.valid = q8_32_.valid && rows == 1;", (EXACT,)),
    ("batch", "rows that attend together see the last one's path", WALK,
     "tile_at<Isa>(args, args.first + begin, &decoded_);",
     "tile_at<Isa>(rows_[n_rows_ - 1], args.first + begin, &decoded_);", (EXACT,)),
    ("batch", "a row's decoded cells take the place of those that another row still needs", WALK,
     "if (takes_slots(args, args.first + begin, decoded_)) {", "if (false) {", (CACHE_ROWS,)),
    ("batch", "rows whose windows begin at different positions share a tile", TILE,
     "return a.first == b.first && end", "return end", (CACHE_ROWS,)),
    ("chunking", "the last layer goes on with the first rows, not with those that are asked about", FORWARD,
     "(piece.at + piece.n - n) * h_.n_embd;", "piece.at * h_.n_embd;", (EXACT,)),
    ("chunking", "rows that are asked about turn by the angles of the chunk's first ones", FORWARD,
     "  rotary_angles(asked);\n", "", (EXACT,)),
    # Trees.
    ("tree", "position = committed length + row number", CHUNK,
     "pass.batch->depths[at], pass", "i, pass", (EXACT,)),
    ("tree", "a row continues the row before it, not its parent", STATE,
     "path = paths_[static_cast<size_t>(parent)];", "path = paths_[static_cast<size_t>(r - 1)];", (EXACT,)),
    ("tree", "a later root sees the first one's cell", STATE,
     "if (path.tail.empty() && path.n_prefix == cell(r)) {", "if (path.tail.empty()) {", (EXACT,)),
    ("commit", "moving a cell forgets its values", STATE,
     "  move(v_planes_, v_.data());\n", "", (EXACT,)),
    ("commit", "cells are moved last one first", STATE,
     "  for (const int32_t row : path) {\n    if (cell(row) != to) {\n      move_cell(cell(row), to);\n"
     "      if (device_cells_ != nullptr) device_cells_->changed(to);\n    }\n    ++to;\n  }",
     "  for (size_t i = path.size(); i-- > 0;) move_cell(cell(path[i]), to + static_cast<int64_t>(i));\n"
     "  to += static_cast<int64_t>(path.size());", (EXACT,)),
    ("commit", "the next token comes from the first row's logits", ENGINE,
     "static_cast<size_t>(path.back()) * n_vocab", "static_cast<size_t>(path.front()) * n_vocab", (EXACT,)),
    ("rollback", "the rolled back rows keep their paths", STATE,
     "  parents_.clear();\n  paths_.clear();", "  parents_.clear();", (EXACT,)),
    ("truncate", "the logits of the dropped last token are kept", ENGINE,
     "  last_logits_ = {};\n  state_.truncate(std::max<int64_t>(0, std::ssize(tokens_) - 1));",
     "  state_.truncate(std::ssize(tokens_));",
     (EXACT,)),
    ("branch", "the branch has no logits of its last token", ENGINE,
     "  copy->last_logits_ = last_logits_;\n",
     "  copy->last_logits_.logits.assign(last_logits_.logits.size(), 0.0f);\n", (EXACT,)),
    ("branch", "the branch forgets the pending tokens", ENGINE,
     "  copy->pending_ = pending_;\n", "  copy->pending_.assign(pending_.size(), 0);\n", (EXACT,)),
    ("branch", "the pending rows' cells are not copied", STATE,
     "const int64_t used = n_committed_ + n_pending();", "const int64_t used = n_committed_;", (EXACT,)),
    # Keys and values in F16 and Q8_0.
    ("cache", "what lies decoded in a slot is taken for any cell", TILE,
     "decoded->cell[slot] != cell;", "decoded->cell[slot] < 0;", (CACHE_ROWS, CACHE_TYPES)),
    ("cache", "Q8_0: a head's last, shorter block is not written", CACHE_FORMATS,
     "begin < n; begin += kBlock", "begin + kBlock <= n; begin += kBlock", (CACHE_ROWS,)),
    ("cache", "what is too large for the format becomes infinity", CACHE_FORMATS,
     "  if (!fits) require_not_finite(x, head_dim, type);\n", "", (CACHE_ROWS,)),
    ("cache", "F16 keys are cut off instead of rounded", AVX512 + "elementwise.cpp",
     "_mm512_cvtps_ph(load(x + i, mask), _MM_FROUND_TO_NEAREST_INT)",
     "_mm512_cvtps_ph(load(x + i, mask), _MM_FROUND_TO_ZERO)", (CACHE_ROWS,)),
    ("cache", "a branched session keeps F32", STATE,
     "SequenceState copy(h, n_ctx_, cache_types());", "SequenceState copy(h, n_ctx_, {});", (CACHE_TYPES,)),
    ("cache", "values are kept as keys are", "cpp/model/model.cpp",
     "cache_types_(cache_types)", "cache_types_({cache_types.keys, cache_types.keys})", (BENCH,)),
    # Threads.
    ("threads", "a product's last, smaller task is dropped", BACKEND,
     "for (int64_t r = 0; r < rows; r += step) {", "for (int64_t r = 0; r == 0 || r + step <= rows; r += step) {",
     (EXACT,)),
    ("threads", "the pool does not wait for its workers", POOL,
     "      work(thread);\n      job_.fetch_sub(1);", "      job_.fetch_sub(1);\n      work(thread);", (THREADS,)),
    ("threads", "two threads may take the same task", POOL,
     "range.next.fetch_add(1, std::memory_order_relaxed);", "range.next.load(); range.next.store(task + 1);",
     (THREADS,)),
    ("threads", "the order of a sum depends on the number of threads", MIXTURE,
     "const int64_t slot = r * n_used + i;",
     "const int64_t slot = r * n_used + (backend_.pool().n_threads() > 2 ? n_used - 1 - i : i);", (EXACT,)),
    ("threads", "two sessions run in one model at once", "cpp/model/model.cpp",
     "  std::lock_guard<std::mutex> lock(mutex_);\n  forward_->run(sequences);", "  forward_->run(sequences);",
     (SESSION,)),
    ("threads", "a draft model's pool serves two sessions at once", "cpp/spec/drafters/model.cpp",
     "    const auto lock = model_->lock_backend();", "    ;", (DRAFTING,)),
    ("stop", "a draft model runs the whole prompt, whatever is asked", "cpp/spec/drafters/model.cpp",
     "  request.check_stop = check_stop;\n", "", (DRAFTING,)),
    ("policy", "what experts are worth does not count", "cpp/experts/policies/values.cpp",
     "std::tuple((*values)[i], last_use_[i])", "std::tuple(0.0f * (*values)[i], last_use_[i])", (POLICY_PLUG,)),
    ("policy", "a guess pushes out what is worth more", "cpp/experts/policies/values.cpp",
     "return (*values)[static_cast<size_t>(victim)] <= (*values)[static_cast<size_t>(guess)];",
     "return (*values)[static_cast<size_t>(victim)] + (*values)[static_cast<size_t>(guess)] >= 0.0f;", (POLICY_PLUG,)),
    ("moespec", "groups that hold too few experts stay closed", ROUTER,
     ">= n_used) selection = std::move(open);", ">= 0) selection = std::move(open);", (MOESPEC,)),
    ("price", "what every row adds is forgotten", "cpp/spec/measured_cost.cpp",
     "correction_.wait_seconds() + static_cast<double>(n_rows - 1) * correction_.row_seconds();",
     "correction_.wait_seconds() + static_cast<double>(n_rows - 1) * 0.0;", (PRICES,)),
    ("price", "predictions keep their weight, whatever they are worth", "cpp/spec/correction_fit.cpp",
     "constexpr double kTrustedPasses = 4.0;", "constexpr double kTrustedPasses = 4e6;", (PRICES,)),
    ("price", "five nodes decide what a drafter is worth", "cpp/spec/acceptance_fit.h",
     "kPriorNodes = 24.0;", "kPriorNodes = 2.0;", (BY_HAND,)),
    # Instruction sets.
    ("isa", "AVX-512 adds the lanes in another order", AVX512 + "vector.h",
     "  const __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));\n  return _mm_cvtss_f32(_mm_add_ss(h2, "
     "_mm_movehdup_ps(h2)));",
     "  const __m128 h2 = _mm_add_ps(h4, _mm_movehdup_ps(h4));\n  return _mm_cvtss_f32(_mm_add_ss(h2, "
     "_mm_movehl_ps(h2, h2)));", (ISA,)),
    ("isa", "AVX-512 reads past a row that is no multiple of 16", AVX512 + "matmul_float.cpp",
     "const __mmask16 mask = first_lanes(k - i);", "const __mmask16 mask = 0xffff;", (ISA,)),
    ("isa", "AVX-512 SiLU by a product with the reciprocal", AVX512 + "vector.h",
     "_mm512_div_ps(t, _mm512_add_ps(set1(1.0f), exp_16(minus_t)));",
     "_mm512_mul_ps(t, _mm512_div_ps(set1(1.0f), _mm512_add_ps(set1(1.0f), exp_16(minus_t))));", (ISA,)),
    ("isa", "AVX-512 takes the last of four entries of IQ2_S", AVX512 + "look_up.h",
     "_mm512_add_epi8(quad, and_bytes(index, 3))", "_mm512_add_epi8(quad, and_bytes(quad, 3))", (ISA,)),
    ("isa", "AVX2 rounds activations towards zero", "cpp/kernels/avx2/elementwise.cpp",
     "_mm256_cvtps_epi32(_mm256_mul", "_mm256_cvttps_epi32(_mm256_mul", (ISA,)),
    ("isa", "AVX2 adds more products in 16 bits than fit", "cpp/kernels/avx2/panel.h",
     "<= INT16_MAX) steps", "<= 2 * INT16_MAX) steps", (ISA,)),
    ("isa", "AVX2 leaves out the blocks after a row's last eight", "cpp/kernels/avx2/matmul_q32.cpp",
     "if (j < n) sum_blocks<0>", "if (j < 0) sum_blocks<0>", (ISA,)),
    ("isa", "NEON adds the lanes in another order", "cpp/kernels/neon/vector.h",
     "vaddq_f32(lanes.v[0], lanes.v[2]), vaddq_f32(lanes.v[1], lanes.v[3])",
     "vaddq_f32(lanes.v[0], lanes.v[1]), vaddq_f32(lanes.v[2], lanes.v[3])", (ISA,)),
    ("isa", "NEON forgets that five-bit weights have an offset", "cpp/kernels/neon/kernel_q32.h",
     "subtract(five_bits(block), 16)", "five_bits(block)", (ISA,)),
    ("isa", "scalar RMS norm without fused multiply-add", SCALAR + "elementwise.cpp",
     "std::fma(x[i], x[i], lane[i % kLanes])", "x[i] * x[i] + lane[i % kLanes]", (ISA,)),
    # Experts.
    ("experts", "outputs are summed last rank first", MIXTURE,
     "const int64_t slot = r * n_used + i;", "const int64_t slot = r * n_used + n_used - 1 - i;", (MOE,)),
    ("experts", "qwen3moe does not renormalise", "cpp/model/arch/qwen3moe.cpp",
     "renormalize = true", "renormalize = false", (MOE,)),
    ("experts", "ties go to the higher id", ROUTER, ": a < b;", ": a > b;", (MOE,)),
    ("experts", "a group's rows are counted by rank", MIXTURE,
     "h_.moe.weighs_input ? s : s / n_used", "h_.moe.weighs_input ? s : s % chunk.n", (MOE,)),
    ("experts", "gate and up are exchanged", MIXTURE,
     "m_.experts_->weights(w.moe_layer, e, p);",
     "m_.experts_->weights(w.moe_layer, e, p == kGate ? kUp : p == kUp ? kGate : p);", (MOE,)),
    ("experts", "a router's NaN goes unnoticed", ROUTER, "if (!std::isfinite(scores[e])) refuse_scores(layer);", "",
     (MOE,)),
    # Reading in the background.
    ("reads", "a direct read lands where its block should begin", READ_SOURCE,
     "offset - before, whole, out - before,", "offset - before, whole, out,", (READS,)),
    ("reads", "io_uring: a short read counts as whole", "cpp/io/ring_reader.cpp",
     "const bool complete = result >= static_cast<int64_t>(operation.range.needed_bytes);",
     "const bool complete = result >= 0;", (READS,)),
    ("reads", "buffered reads stay in the page cache", READ_SOURCE,
     "if (!was_cached && file_.descriptor() >= 0) {", "if (false) {", (READS,)),
    ("reads", "a file that was written to is not noticed", READ_SOURCE,
     "read_buffered(offset, size, out);\n  file_.check_unchanged();\n", "read_buffered(offset, size, out);\n",
     (PAGER,)),
    # Experts that come and go.
    ("slots", "a pinned slot is taken", EXPERT_CACHE, "slot.n_pins > 0 ||", "slot.n_pins > 1 ||", (CACHE,)),
    ("slots", "a guess evicts what the last step used", EXPERT_CACHE,
     "return collect_covered(size_class) || collect(size_class, step_ - 1, true);",
     "return collect_covered(size_class) || collect(size_class, step_, true);",
     (CACHE,)),
    ("slots", "a late hint counts as one in time", EXPERT_CACHE,
     "++(slot.state == SlotState::kReady ? hints_.n_in_time : hints_.n_late);", "++hints_.n_in_time;", (CACHE,)),
    ("slots", "the plan exceeds its budget by a slot", "cpp/experts/slot_layout.cpp",
     "plan.n_slots[c] >= n_experts[c] || plan.bytes + slot_bytes[c] > budget",
     "plan.n_slots[c] >= n_experts[c] || plan.bytes > budget", (CACHE,)),
    ("policy", "Belady gives up what is needed first", "cpp/experts/policies/belady.cpp",
     "if (next > best_next) {", "if (best_next < 0 || next < best_next) {", (CACHE,)),
    ("policy", "frequencies never fade", "cpp/experts/policies/lfu_decay.cpp",
     "weight_ *= std::exp2(static_cast<double>(n_rows) / kHalfLifeRows);", "", (CACHE,)),
    ("paging", "an expert is handed out before it has arrived", "cpp/experts/expert_lease.cpp",
     "== SlotState::kReady) {", "!= SlotState::kFailed) {", (PAGING,)),
    ("paging", "an expert is ready after two of its three reads", EXPERT_PAGER,
     "if (--fill.n_pieces_left > 0) return;", "if (--fill.n_pieces_left != 1) return;", (PAGING,)),
    ("paging", "a failed read goes unnoticed", EXPERT_PAGER, "  if (fill.error) {", "  if (false) {", (PAGER,)),
    ("paging", "hints never switch themselves off", "cpp/experts/hint_gate.h",
     "return closed_until_step_ <= step_;", "return true;", (PAGER,)),
    ("device", "outputs of the device go to the rows in the order in which experts are numbered",
     "cpp/model/device_mixture.cpp", "for (const int32_t e : on_device_) {",
     "std::sort(on_device_.begin(), on_device_.end());\n  for (const int32_t e : on_device_) {", (VRAM,)),
    ("device", "an expert that left the device is still said to be there", "cpp/experts/vram_tier.cpp",
     "    pager_.set_on_device(evicted_layer, taken.evicted - cache_.key(evicted_layer, 0), false);\n", "", (VRAM,)),
    ("device", "experts that run on the device may lose their slots to others", "cpp/experts/vram_step.cpp",
     "    tier.cache_.pin(slot);\n", "", (VRAM,)),
    ("device", "after a failure the tier trusts what it held", "cpp/experts/vram_tier.cpp",
     "  cache_.clear();\n", "", (VRAM_FAULTS,)),
    ("device", "RAM gives up what the device holds last", "cpp/experts/expert_cache.cpp",
     "if (n_covered_ == 0) return false;", "return false;", (CACHE,)),
    ("device", "biases of the layer's first expert for all", "cuda/runtime/cuda_experts.cpp",
     "upload(to.biases[m], matrix.biases, layer.n_experts * matrix.rows)",
     "upload(to.biases[m], matrix.biases, matrix.rows)", (VRAM,)),
    ("device", "a batch larger than its buffers is not cut", "cpp/model/device_mixture.cpp",
     "if (!step.has_room(n_pending + n)) {", "if (!step.has_room(n)) {", (VRAM,)),
    ("device", "a call's inputs are taken for quantised since the call before", "cuda/runtime/cuda_dense.cpp",
     "  std::fill_n(has_form_, kRowForms, false);\n", "", (DEVICE_DENSE,)),
    ("device", "biases of dense matrices stay behind", "cuda/runtime/cuda_dense.cpp",
     "w.scale, device_.biases[m]};", "w.scale, nullptr};", (VRAM_DENSE,)),
    ("device", "pieces of a matrix are packed from its first row on", "cuda/kernels/pack_rows.cu",
     "args.layout.offset[p] += first * args.layout.row_bytes[p]", "args.layout.offset[p] += 0", (DEVICE_DENSE,)),
    ("device", "experts go there before dense parts", "cpp/model/open_vram.cpp",
     "from.place(budget - std::min(budget, from.experts.least_bytes))",
     "from.place(budget - std::min(budget, from.experts.all_bytes))", (VRAM_DENSE,)),
    ("device", "a part goes there if one of its formats has kernels", "cpp/model/dense_parts.cpp",
     "return std::ranges::all_of(part.matrices", "return std::ranges::any_of(part.matrices", (VRAM_DENSE,)),
    ("device", "outputs that come in several calls lie one over the other", "cpp/model/products.cpp",
     "product.y + (first + r) * product.y_stride", "product.y + r * product.y_stride", (VRAM_DENSE,)),
    ("device", "a device that is lost to products is not lost to experts", "cpp/model/forward.cpp",
     "    m_.share_loss();\n", "", (VRAM_DENSE,)),
    ("device", "cells that a commit has moved are taken for the device's own", STATE,
     "      if (device_cells_ != nullptr) device_cells_->changed(to);\n", "", (VRAM_ATTENTION,)),
    ("device", "cells that the CPU has written are taken for the device's own", "cpp/model/attention_block.cpp",
     "    if (state.device_cells() != nullptr) state.device_cells()->changed(layer, state.cell(piece.begin));\n", "",
     (VRAM_ATTENTION,)),
    ("device", "a sequence keeps its cells when it ends", "cpp/model/cell_pool.h",
     "~DeviceCells() { pool_->give_back(base_); }", "~DeviceCells() {}", (VRAM_ATTENTION,)),
    ("device", "rows of a tree see the prefix of the first one", "cpp/model/attention_rows.cpp",
     "n_prefix_.push_back(static_cast<int32_t>(path.n_prefix));",
     "n_prefix_.push_back(static_cast<int32_t>(state.path(begin).n_prefix));", (VRAM_ATTENTION,)),
    ("device", "values come back as keys", "cpp/model/device_trip.cpp",
     "of_block + at.keys, of_block + at.values);", "of_block + at.keys, of_block + at.keys);", (VRAM_ATTENTION,)),
    ("device", "layers of a round trip leave the keys of its first one", "cpp/model/device_trip.cpp",
     "    of_block += at.size;\n", "", (VRAM_BLOCKS,)),
    ("device", "a round trip goes on beyond a layer whose input is wanted", "cpp/model/device_trip.cpp",
     " || is_tapped(chunk, end)) break;", ") break;", (VRAM_BLOCKS,)),
    ("device", "a round trip ends in logits though the last hidden states are wanted", "cpp/model/device_trip.cpp",
     "    if (piece.request().last_hidden) return false;\n", "", (VRAM_BLOCKS,)),
    ("device", "the last layer of a round trip is blamed for what the first one gave", "cpp/model/device_trip.cpp",
     "bool is_sound = not_finite == 0 &&", "bool is_sound = true ||", (VRAM_BLOCKS,)),
    ("device", "a layer counts as whole when one of its experts is gone", "cpp/experts/vram_tier.cpp",
     "    --n_there_[static_cast<size_t>(evicted_layer)];\n", "", (VRAM_MIXTURES,)),
    ("device", "where a layer's experts lie is said once and for all", "cpp/experts/vram_tier.cpp",
     "    published_[static_cast<size_t>(evicted_layer)] = false;\n", "", (VRAM_MIXTURES,)),
    ("device", "the scores of a round trip's routers are not looked at", "cpp/model/device_trip.cpp",
     "if (run.mixture) std::memcpy(&not_finite,", "if (false) std::memcpy(&not_finite,", (VRAM_BLOCKS,)),
    ("device", "what a round trip's routers chose is not counted", "cpp/model/device_trip.cpp",
     "    if (run.mixture) note_mixture(chunk, i);\n", "", (VRAM_MIXTURES,)),
    ("device", "MoE-Spec's budget of experts does not keep layers from a round trip", "cpp/model/device_trip.cpp",
     "  if (std::ranges::any_of(chunk.pieces, is_cut)) return false;\n", "", (VRAM_MIXTURES,)),
    ("device", "shared experts are left out of a round trip", "cuda/runtime/cuda_block.cpp",
     ".beside = has_shared ? attention_.added : nullptr,", ".beside = nullptr,", (VRAM_MIXTURES,)),
    ("device", "layers with a window are turned as the others", "cuda/runtime/cuda_attention.cpp",
     "layer.windowed ? tables_.windowed : tables_.angles", "tables_.angles", (VRAM_ATTENTION,)),
    ("device", "the head reads rows without their norm", "cuda/runtime/cuda_head.cpp",
     "n, device_.head_weight, device_.head_bias,", "n, nullptr, nullptr,", (VRAM_HEAD,)),
    ("device", "logits that are not numbers are passed over", "cpp/model/products.cpp",
     "  if (not_sound != 0) return false;\n", "", (VRAM_HEAD,)),
    ("device", "a sampler takes the logits that another one asked for", "cpp/engine/session_step.cpp",
     "if (session_.can_sample()) return sample();", "if (true) return sample();", (VRAM_HEAD,)),
    ("device", "the filter is not shown that a row has more than it keeps", "cpp/sample/sampler.cpp",
     "options.top_k + 1 : 0;", "options.top_k : 0;", (SAMPLER,)),
    ("device", "the norm behind the rotation is left out", "cuda/runtime/cuda_attention.cpp",
     "  norm();\n  rope.n_pairs = 0;", "  rope.n_pairs = 0;", (VRAM_ATTENTION,)),
    ("device", "cells that come back to the device are those of the first head", "cpp/model/device_block.cpp",
     "std::copy_n(state.key(layer, head, begin + c)", "std::copy_n(state.key(layer, 0, begin + c)", (VRAM_ATTENTION,)),
    ("device", "a sequence's ancestors are those of the pool's first cells", "cpp/model/attention_rows.cpp",
     "tails_.push_back(static_cast<int32_t>(base + cell))", "tails_.push_back(cell)", (VRAM_GRAPHS,)),
    ("device", "the norm behind attention is left out", "cuda/runtime/cuda_block.cpp",
     "add_to_residual(block, block.post_attention_norm,", "add_to_residual(block, nullptr,", (VRAM_ATTENTION,)),
    ("device", "a router with a norm of its own reads what experts read", "cuda/runtime/cuda_block.cpp",
     "if (router.own_norm) {", "if (false) {", (VRAM_ATTENTION,)),
    ("device", "a layer norm is an RMS norm there", "cuda/runtime/cuda_block.cpp",
     "n_rows_, n, device_.inputs.x, n, stream, block.layer_norm));",
     "n_rows_, n, device_.inputs.x, n, stream, false));", (VRAM_ATTENTION,)),
    ("device", "a layer's own scale is left out there", "cpp/model/block_plan.cpp",
     "    if (!w.output_scale.empty()) block.output_scale = w.output_scale[0];\n", "", (VRAM_BLOCKS,)),
    ("device", "a feed-forward part that runs beside experts is taken for the layer's", "cpp/model/dense_parts.cpp",
     "parts[p].kind == Kind::kFeedForward && !has_experts", "parts[p].kind == Kind::kFeedForward", (VRAM_ATTENTION,)),
    ("device", "scores that are not numbers choose", "cpp/model/device_block.cpp",
     "    if (not_finite != 0) refuse_scores(layer);\n", "", (VRAM_BLOCKS,)),
    ("device", "rows with a budget of experts choose from the layer before", "cpp/model/device_block.cpp",
     "    scores_.assign(outputs + at.scores,", "    if (scores_.empty()) scores_.assign(outputs + at.scores,",
     (VRAM_BLOCKS,)),
    ("device", "keys are not clamped", "cuda/runtime/cuda_attention.cpp",
     "  CUDA_CHECK(launch_clamp(k, n_rows_ * layer.k_width(), layer.limit, stream));\n", "", (VRAM_ATTENTION,)),
    ("device", "a graph is found whatever positions its grid is made for", "cuda/runtime/call_shape.h",
     "  auto operator<=>(const CallShape&) const = default;\n",
     "  auto operator<=>(const CallShape& o) const {\n    return std::tie(n_rows, k, sends_tables, tables, work) <=>"
     " std::tie(o.n_rows, o.k, o.sends_tables, o.tables, o.work);\n  }\n", (VRAM_GRAPHS,)),
    ("device", "a graph is found whatever its tables have room for", "cuda/runtime/call_shape.h",
     "  auto operator<=>(const CallShape&) const = default;\n",
     "  auto operator<=>(const CallShape& o) const {\n    return std::tie(n_rows, k, sends_tables, n_positions, work)"
     " <=> std::tie(o.n_rows, o.k, o.sends_tables, o.n_positions, o.work);\n  }\n", (VRAM_GRAPHS,)),
    ("device", "a graph keeps the rows' tables of its capture", "cuda/runtime/cuda_dense.cpp",
     "  if (shape_.sends_tables) send_tables();\n",
     "  cudaStreamCaptureStatus status;\n  CUDA_CHECK(cudaStreamIsCapturing(stream, &status));\n"
     "  if (shape_.sends_tables && status == cudaStreamCaptureStatusNone) send_tables();\n", (VRAM_GRAPHS,)),
    ("device", "rows that a call has room for are taken for its own", "cuda/runtime/cuda_dense.cpp",
     "*pinned_.inputs.n_rows = static_cast<int32_t>(n_rows);",
     "*pinned_.inputs.n_rows = static_cast<int32_t>(shape_.n_rows);", (VRAM_GRAPHS,)),
    ("device", "rows that are not there leave keys", "cuda/runtime/cuda_attention.cpp",
     "block.keys, stream, device_.inputs.n_rows));", "block.keys, stream));", (VRAM_GRAPHS,)),
    ("device", "experts of all layers share graphs", "cuda/runtime/cuda_experts.cpp",
     "ExpertRunShape shape{layer_,", "ExpertRunShape shape{0,", (VRAM_GRAPHS,)),
    ("device", "a graph of experts is found whatever pairs it has room for", "cuda/runtime/cuda_experts.h",
     "  auto operator<=>(const ExpertRunShape&) const = default;\n",
     "  auto operator<=>(const ExpertRunShape& o) const {\n    return std::tie(layer, n_inputs, n_active, max_rows) <=>"
     " std::tie(o.layer, o.n_inputs, o.n_active, o.max_rows);\n  }\n", (VRAM_GRAPHS,)),
    ("device", "a capture that failed goes on", "cuda/runtime/call_graphs.cpp",
     "    give_up_capture(stream);\n", "", (VRAM_FAULTS,)),
    ("paging", "the simulation counts nothing", "cpp/experts/cache_simulation.cpp",
     "      cache.count(layer, experts, 1);\n", "", (PAGER,)),
    ("paging", "a draft's rows count before they are kept", "cpp/engine/session_step.cpp",
     "wanted_.provisional = true;", "wanted_.provisional = false;", (TRACE,)),
    ("paging", "a draft's kept rows are not counted", "cpp/engine/speculation.cpp",
     "if (!result.expert_ids.empty()) model_->keep_rows", "if (false) model_->keep_rows", (TRACE,)),
    ("paging", "rows of a pass count once", "cpp/experts/expert_cache.cpp",
     "++n_rows_of_[static_cast<size_t>(expert)];", "n_rows_of_[static_cast<size_t>(expert)] = 1;", (CACHE,)),
    ("record", "a damaged record is taken", "python/expertree/expert_record.py",
     "if binascii.crc32(raw) != body[check]:", "if False:", (PAGER,)),
    ("record", "a short run forgets what longer ones measured", "python/expertree/expert_record.py",
     "if not any(getattr(self, name) for name in group)", "if False", (PAGER,)),
    ("record", "a use is judged by a count that it is part of", "python/expertree/expert_hits.py",
     "    without = counts - 1\n", "    without = counts\n", (HITS,)),
    ("record", "what was used last is left aside", "python/expertree/expert_plan.py",
     "None if record.reuse is None else hit_rate_by_recency(record.reuse[of_class], share)", "None", (HITS,)),
    ("record", "an earlier record adds all that it weighs", "python/expertree/expert_record.py",
     "worth = weight**2 / (n_rows + PROFILE_ROWS**2 / max(1.0, earlier.n_rows))", "worth = weight", (PAGER,)),
    ("record", "a record is written in place", "python/expertree/expert_record.py",
     "descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=\".part\")",
     "descriptor, temporary = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), str(target)", (PAGER,)),
    # Architecture.
    ("architecture", "llama turns halves, not pairs", "cpp/model/arch/llama.cpp",
     "RopeStyle::kConsecutive", "RopeStyle::kSplitHalf", (GOLDEN,)),
    ("architecture", "the final norm has no weight", "cpp/model/head.cpp",
     "norm(inputs, m_.weights_.output_norm,", "norm(inputs, weights(0).ffn_norm,", (GOLDEN,)),
    ("architecture", "a dense part's biases are left out", "cpp/model/feed_forward_block.cpp",
     "{w.up, up_.data(), n_ff, data_or_null(w.up_bias)}", "{w.up, up_.data(), n_ff}", (VARIANTS,)),
    ("architecture", "the gates of queries lose their scale", "cpp/model/arch/attention_weights.cpp",
     "w->gate = both.rows_from(n_q, both.rows - n_q);",
     "w->gate = both.rows_from(n_q, both.rows - n_q);\n  w->gate.scale = 1.0f;", (VARIANTS,)),
    ("architecture", "Grok's own magnitude holds with YaRN, too", "cpp/model/arch/grok.cpp",
     "if (!on) h->rope_magnitude", "h->rope_magnitude", (VARIANTS,)),
    ("architecture", "olmoe normalises q and k head by head", "cpp/model/arch/olmoe.cpp",
     "QkNorm::kWholeProjection", "QkNorm::kPerHead", (GOLDEN,)),
    # Recurrent layers.
    ("recurrent", "committed terms are not applied", DELTA_NET,
     "if (rows.begin == 0) apply_log(w, layer, inputs, state);", "", (RECURRENT,)),
    ("recurrent", "a branch of a tree goes on from its sibling's state", DELTA_NET,
     "} else if (segment.from != segment.keep) {", "} else if (false) {", (RECURRENT,)),
    ("recurrent", "a branch of a tree reads its neighbour's inputs", "cpp/model/conv_inputs.cpp",
     "row = state_.parents()[static_cast<size_t>(row)];", "row = row - 1;", (RECURRENT,)),
    ("recurrent", "part of a chain is kept as if it were all", RECURRENT_STATE,
     "if (is_chain_ && all) {", "if (is_chain_) {", (RECURRENT,)),
    ("recurrent", "a checkpoint says it is a token earlier", RECURRENT_STATE,
     "before + checkpoint_row_ + 1;", "before + checkpoint_row_;", (RECURRENT,)),
    ("recurrent", "a session believes that the state went back as far as asked", STATE,
     "n_committed_ = recurrent_.truncate(length);", "n_committed_ = length, recurrent_.truncate(length);",
     (RECURRENT,)),
    ("recurrent", "neighbouring value heads share a key head", DELTA_NET,
     "r_.neighbours_share_key ?", "true ?", (HYBRID,)),
    ("drafts", "deep nodes of MTP take the root's output", "cpp/spec/drafters/mtp.cpp",
     "states.push_back(parent < 0 ? root_state_.data() : node_states_.data() + row * n_embd());",
     "states.push_back(root_state_.data());", (MTP,)),
    ("drafts", "MTP gets the state of its own position", "cpp/spec/drafters/mtp.cpp",
     "states_.data() + (position - 1) * n_embd()", "states_.data() + position * n_embd()", (MTP,)),
    # Sessions.
    ("session", "the sampler is one position behind", SESSION_STEP,
     "n_tokens, TokenHistory{", "n_tokens - 1, TokenHistory{", (SESSION,)),
    ("session", "step ends one token before the context is full", SESSION_STEP,
     "if (n_tokens > session_.n_ctx())", "if (n_tokens >= session_.n_ctx())", (SESSION,)),
    ("session", "a tree may grow one position past the context", STATE,
     "n_committed_ + deepest >= n_ctx_", "n_committed_ + deepest > n_ctx_", (SESSION,)),
    ("session", "a prefill that fails leaves its tokens", ENGINE,
     "  append(to_run);\n",
     "  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());\n  append(to_run);\n"
     "  tokens_.resize(tokens_.size() - tokens.size());\n", (MOE,)),
    ("session", "a forward pass that fails leaves its rows pending", ENGINE,
     "request, result);\n  } catch (...) {\n    state_.rollback();", "request, result);\n  } catch (...) {", (MOE,)),
    # Speculation: the text of plain decoding, and its state.
    ("speculation", "a row's sampler does not see its drafted ancestors", VERIFIER,
     "TokenHistory{history, path.tokens}", "TokenHistory{history, {}}", (SPECULATION,)),
    ("speculation", "every row of a tree gets the noise of the root's position", VERIFIER,
     "history.size() + path.tokens.size()", "history.size()", (SPECULATION,)),
    ("speculation", "another node's child is taken", VERIFIER,
     "tree.parents[i] == node && tree.tokens[i] == token", "tree.tokens[i] == token", (SPECULATION,)),
    ("speculation", "the next logits are the root row's", SESSION_STEP,
     "from(path_.rows.back())", "from(path_.rows.front())", (SPECULATION,)),
    ("speculation", "a node is run as the root's child", VERIFIER,
     "parent < 0 ? 0 :", "parent < 1 ? 0 :", (SPECULATION,)),
    ("speculation", "a step goes on after an end of text", VERIFIER,
     "limits.end_tokens.end()) return path;", "limits.end_tokens.end() && row < 0) return path;", (DRAFTING,)),
    ("speculation", "a tree grows past the context", SESSION_STEP,
     "std::min(request_.max_tokens - 1, session_.n_ctx() - n_tokens)", "request_.max_tokens - 1",
     (DRAFTING,)),
    ("speculation", "the drafter is not told of a truncation", ENGINE,
     "  if (speculation_ != nullptr) speculation_->forget(state_.n_committed());\n", "", (DRAFTING,)),
    ("speculation", "what a failing drafter interrupts is kept", SESSION_STEP,
     "      session_.state_.truncate(n_before);\n", "",
     (DRAFTING,)),
    ("speculation", "the drafter is shown the hidden states of other rows", "cpp/engine/speculation.cpp",
     "values.data() + static_cast<size_t>(row) * width;", "values.data() + kept.size();", (DRAFTING,)),
    # The lossy reference, replays and the comparison.
    ("moespec", "a tree uses an expert more than its budget", "cpp/model/expert_limit.cpp",
     "static_cast<size_t>(piece.request().most_experts); i", "static_cast<size_t>(piece.request().most_experts + 1); i",
     (MOESPEC,)),
    ("moespec", "experts are kept by the first row's router alone", "cpp/model/expert_limit.cpp",
     "r < piece.at + piece.n; ++r) {\n    std", "r < piece.at + 1; ++r) {\n    std", (MOESPEC,)),
    ("moespec", "it does not say that it is lossy", "cpp/spec/selectors/moespec.cpp",
     "lossless() const override { return false; }", "lossless() const override { return true; }", (MOESPEC,)),
    ("moespec", "the budget does not reach the router", SESSION_STEP,
     "      wanted_.most_experts = speculation()->most_experts();\n", "", (MOESPEC,)),
    # The guard of residency, and its acceptance by depth.
    ("guard", "plain decoding would have missed nothing", "cpp/spec/back_off.cpp",
     "- outcome.plain_misses * plain_miss)", ")", (GUARD,)),
    ("guard", "what plain decoding misses is taken to be what the draft's cache misses", "cpp/engine/speculation.cpp",
     "    n_plain_ = n_observed_;\n  }", "  }",
     ("tests/unit/test_speculation_trace.py",)),
    ("guard", "every session drafts anew", "cpp/spec/back_off.cpp",
     "  rest_left_ = std::clamp(static_cast<int64_t>(state[6]), int64_t{0}, kMostInherited);\n", "", (GUARD,)),
    ("guard", "credit has no end", "cpp/spec/back_off.cpp",
     "std::max(-kMostCredit, account_ + std", "(account_ + std", (BY_HAND,)),
    ("speculation", "a fit that verifies nothing stays as it is", "cpp/spec/selectors/residency.cpp",
     "acceptance_.forget();", "", (BY_HAND,)),
    ("guard", "all depths have one map", "cpp/spec/acceptance_fit.cpp",
     "+ offset_ + deviation(depth));", "+ offset_);", (GUARD,)),
    # Several drafters in a tree.
    ("merged", "a node's score is the last drafter's alone", MERGED,
     "scores[static_cast<size_t>(place[v])] += weights_", "scores[static_cast<size_t>(place[v])] = weights_",
     (MERGED_DRAFTERS,)),
    ("merged", "a drafter that says nothing loses its weight", MERGED,
     "    if (said_[p].empty()) continue;\n", "", (MERGED_DRAFTERS,)),
    ("merged", "every drafter is shown the first one's layers", MERGED,
     "for (const size_t place : taps_[p]) {", "for (const size_t place : taps_[0]) {", (MERGED_DRAFTERS,)),
    # Several sessions in a pass.
    ("together", "all rows leave their keys with the first sequence", "cpp/model/attention_block.cpp",
     "SequenceState& state = *chunk.row(r).state;", "SequenceState& state = *chunk.row(0).state;", (JOINT,)),
    ("together", "a later sequence's decays are the first one's", DELTA_NET,
     "rows[i] = row(b, i, gates(sequence.at + i),", "rows[i] = row(b, i, gates(i),", (JOINT,)),
    ("together", "every sequence is given the first one's logits", "cpp/model/head.cpp",
     "    from += n;\n", "", (JOINT,)),
    ("together", "an expert that another session runs is paid for again", "cpp/spec/shared_pass.cpp",
     "const double before = n_before == 0 ? 0.0 : alone_.run_seconds(layer, expert, n_before);\n"
     "  return alone_.run_seconds(layer, expert, n_before + n_rows) - before;",
     "(void)n_before;\n  return alone_.run_seconds(layer, expert, n_rows);", (JOINT,)),
    ("together", "a pass that fails fails for all", "cpp/engine/joint_step.cpp",
     "  if (!together) steps[0]->fail(error);\n", "  for (SessionStep* step : steps) step->fail(error);\n", (JOINT,)),
    ("together", "the budget of rows is each session's own", "cpp/engine/joint_step.cpp",
     "    n_rows += step->n_rows();\n    for (", "    n_rows = step->n_rows();\n    for (", (JOINT,)),
    ("replay", "another node's child is accepted", "cpp/engine/recorded_run.cpp",
     "tree.parents[i] == node && tree.tokens[i] == run.text[next]", "tree.tokens[i] == run.text[next]", (TRACE,)),
    ("replay", "the prompt leaves nothing in memory", "cpp/engine/trace_replay.cpp",
     "    run_prompt(run, is_plain(), &memory_);\n", "", (TRACE,)),
    ("replay", "a prompt's rows all run the last layer", "cpp/engine/trace_replay.cpp",
     "!plain ? rows.size() : begin + kPromptPiece >= n ? 1 : 0;", "rows.size();", (TRACE,)),
    ("replay", "the root's row is not run", "cpp/engine/trace_replay.cpp",
     "std::vector<int64_t> rows = {0};", "std::vector<int64_t> rows;\n  if (nodes.empty()) rows = {0};", (TRACE,)),
    ("replay", "fetching and running add up", "cpp/engine/replay_machine.cpp",
     "pass.seconds += std::max(run, fetch);", "pass.seconds += run + fetch;", (TRACE,)),
    ("replay", "the oracle is told what was predicted", "cpp/engine/trace_replay.cpp",
     "options_.oracle ? position.routed : position.predicted", "position.predicted", (TRACE,)),
    ("comparison", "a run is compared with the plain run before it alone", "python/expertree/comparison/runner.py",
     "plain = 0.5 * (before.tokens_per_second + after.tokens_per_second)", "plain = before.tokens_per_second",
     (COMPARISON,)),
    ("comparison", "settings always run in the same order", "python/expertree/comparison/runner.py",
     "                    order.reverse()\n", "                    pass\n", (COMPARISON,)),
    ("comparison", "Ctrl-C loses what was measured", "python/expertree/comparison/runner.py",
     "            self.findings.interrupted = True\n", "            self.findings = Findings(interrupted=True)\n",
     (COMPARISON,)),
    ("profile", "waiting for experts counts as running them", "cpp/model/moe_block.cpp",
     "  const ZoneScope zone(chunk.timeline, Zone::kWait, layer);\n  return lease->next", "  return lease->next",
     (PROFILE,)),
    ("profile", "time of a zone inside another one counts twice", "cpp/profile/timeline.h",
     "    since_ns_ = now;\n    return before;",
     "    if (place.zone != Zone::kWait) since_ns_ = now;\n    return before;",
     (PROFILE,)),
    ("profile", "a step begins when its tree has been drafted", "cpp/profile/profiler.cpp",
     "const int64_t begin = timeline.begin_ns() +",
     "const int64_t begin = timeline.begin_ns() + timeline.zone_ns()[0] +",
     (PROFILE,)),
    ("profile", "over-read is not counted", "cpp/io/read_source.cpp",
     "overread_bytes_ += complete ? n_read - range.asked_bytes : n_read;", "overread_bytes_ += complete ? 0 : n_read;",
     (PROFILE,)),
    ("profile", "direct reads count what was asked for", "cpp/io/read_source.cpp",
     "  disk_bytes_ += n_read;\n", "  disk_bytes_ += complete ? range.asked_bytes : n_read;\n", (PROFILE,)),
    ("profile", "routing of the chunk's first rows", "cpp/profile/row_recorder.cpp",
     "const size_t first = tokens_.size() - static_cast<size_t>(n_rows);", "const size_t first = 0;", (PROFILE,)),
    ("profile", "the first session of a shared call answers for all of it", "cpp/profile/profiler.cpp",
     "int64_t of(int64_t n) const { return n * end / all - n * begin / all; }",
     "int64_t of(int64_t n) const { return begin == 0 ? n : 0; }", (PROFILE,)),
    ("profile", "events go on beyond their limit", "cpp/profile/profiler.cpp",
     "std::ssize(timeline.events()) > max_events_", "0 > max_events_ * 64", (PROFILE,)),
    ("profile", "a failed call is a step", "cpp/engine/call_profile.cpp",
     "if (part->finished) finished.push_back", "finished.push_back", (PROFILE,)),
    ("profile", "a replay begins with an empty cache", "python/expertree/profile/budgets.py",
     "initial: Bools = self._profile.experts.initial.copy()", "initial: Bools = self._profile.experts.initial & False",
     (PROFILE_FILES,)),
    ("profile", "waiting is all of reading", "python/expertree/profile/budgets.py",
     "np.maximum(0.0, misses * read_seconds - hidden).sum()", "(misses * read_seconds).sum() * 2", (PROFILE_FILES,)),
    ("profile", "the tree below an accepted node is the whole tree", "python/expertree/profile/draft_trace.py",
     "            below = {top: -1}\n", "            below = {top: -1, -1: -1}\n", (PROFILE_FILES,)),
    ("profile", "reuse counts the expert itself", "python/expertree/profile/reuse.py",
     "distances.append(len(order) - 1 - at)", "distances.append(len(order) - at)", (PROFILE_FILES,)),
    ("report", "names are not escaped", "python/expertree/profile/report/markup.py",
     "html.escape(shown, quote=True)", "shown", (REPORT,)),
    ("report", "waiting counts as computing beside reads", "python/expertree/profile/report/timeline.py",
     "mine = (e.step == step) & (e.zone != _WAIT)", "mine = e.step == step", (REPORT,)),
    ("report", "labels of an axis touch", "python/expertree/profile/report/chart.py",
     "if room >= 7 + max(", "if room >= 0 * max(", (REPORT,)),
    ("report", "a plot without its data", "python/expertree/profile/report/drafts.py",
     "chart.whisker(x, low, high)", "continue", (REPORT_PAGE,)),
    ("live", "a line is as long as it likes", "python/expertree/cli/live_figures.py",
     "if len(text) <= width:", "if text:", (LIVE,)),
    ("live", "the prompt's time is the answer's", "python/expertree/cli/live_figures.py",
     "        self._window.clear()\n        self._first = None\n", "        pass\n", (LIVE,)),
    ("program", "Ctrl-C while modules are loaded is an exception", "python/expertree_program/__init__.py",
     "signal.signal(signal.SIGINT, signal.SIG_DFL)", "pass", (STREAMS,)),
    ("program", "a closed stdin stays closed", "python/expertree/cli/main.py",
     "if getattr(sys, name) is None:", "if False:", (STREAMS,)),
    ("live", "the last row is not given back", "python/expertree/cli/status_line.py",
     "\\x1b[{rows};1H\\x1b[2K{_WHOLE}{_RESTORE}", "\\x1b[{rows};1H\\x1b[2K{_RESTORE}", (LIVE,)),
    ("drafts", "a suffix that comes again is not counted", "cpp/spec/drafters/suffix_automaton.cpp",
     "++state(suffix).count;", "state(suffix).count += suffix == state(added).link;", (DRAFTING,)),
)]
# fmt: on


class Tree:
    """The copy, its build, and at most one fault in it."""

    def __init__(self, folder, jobs):
        self.folder, self.jobs, self.originals = folder, jobs, {}
        folder.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            self._copy(ROOT / name, folder / name)

    def _copy(self, source, target):
        """Files keep their times and equal ones stay, so that a kept folder is not compiled again."""
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            for gone in {p.name for p in target.iterdir()} - {p.name for p in source.iterdir()}:
                path = target / gone
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in source.iterdir():
                if path.name not in ("__pycache__", ".hypothesis"):
                    self._copy(path, target / path.name)
        elif not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)

    def restore(self):
        for path, text in self.originals.items():
            path.write_text(text)
        self.originals = {}

    def plant(self, fault):
        self.restore()
        path = self.folder / fault.file
        text = path.read_text()
        if text.count(fault.old) != 1:
            raise ValueError(f"{fault.name}: {text.count(fault.old)} places in {fault.file}; mend the table")
        self.originals[path] = text
        path.write_text(text.replace(fault.old, fault.new))

    def build(self):
        build = self.folder / "build"
        if not (build / "build.ninja").exists():
            flags = (
                "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1",
                "-DEXPERTREE_CUDA_EMULATED=ON",
            )
            python = f"-DPython_EXECUTABLE={sys.executable}"
            run(["cmake", "-G", "Ninja", "-S", str(self.folder), "-B", str(build), python, *flags], check=True)
        targets = ("_core", "expertree_cuda_emulated")
        run(["cmake", "--build", str(build), "--target", *targets, "-j", str(self.jobs)], check=True)
        self.variables = environment(make_overlay(build, self.folder))

    def instruction_sets(self):
        command = [sys.executable, "-c", "from expertree import _core; print(*_core.isa_names())"]
        return run(command, check=True, env=self.variables).stdout.split()

    def test(self, files):
        """(failed, first failing test or what happened instead, seconds)"""
        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=-rfE"]
        start = time.monotonic()
        try:
            done = run([sys.executable, "-m", "pytest", *options, *files], cwd=self.folder, env=self.variables)
        except subprocess.TimeoutExpired:
            return True, f"no end in {SECONDS} s", time.monotonic() - start
        seconds = time.monotonic() - start
        failed = re.search(r"^(?:FAILED|ERROR) ([^\s:]+::[^\s\[]+)", done.stdout, re.MULTILINE)
        if done.returncode == 1 and failed:
            return True, failed[1], seconds
        if done.returncode < 0:
            where = re.search(r'File "[^"]*/(tests/[^"]+)", line \d+ in (test_\w+)', done.stdout + done.stderr)
            return True, (f"{where[1]}::{where[2]}" if where else " ".join(files)) + " (crash)", seconds
        if done.returncode == 0:
            return False, "", seconds
        raise RuntimeError(done.stdout + done.stderr)


def run(command, check=False, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS, **options)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done


def check_faults(faults, folder, jobs):
    """Number of faults that were missed."""
    tree = Tree(folder, jobs)
    tree.build()
    for files in sorted({fault.tests for fault in faults}):
        failed, test, seconds = tree.test(files)
        print(f"no fault: {'FAILS ' + test if failed else 'passes'} {' '.join(files)} ({seconds:.0f} s)", flush=True)
        if failed:
            raise RuntimeError("the tests must pass before a fault is planted")
    isas = tree.instruction_sets()
    missed = 0
    for fault in faults:
        needed = re.match(r"cpp/kernels/(\w+)/", fault.file)
        if needed and needed[1] not in isas:
            print(f"{fault.claim} | {fault.name} | SKIPPED | this CPU has no {needed[1]}", flush=True)
            continue
        tree.plant(fault)
        tree.build()
        failed, test, seconds = tree.test(fault.tests)
        missed += not failed
        result = f"caught | {test}" if failed else f"MISSED | {' '.join(fault.tests)}"
        print(f"{fault.claim} | {fault.name} | {result} ({seconds:.0f} s)", flush=True)
    tree.restore()
    return missed


def is_there(fault):
    """What it replaces is in the source, and the tests that must notice it exist."""
    return fault.old in (ROOT / fault.file).read_text() and all((ROOT / t.split("::")[0]).exists() for t in fault.tests)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="print the faults and end; status 1 if one has no place")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="faults whose claim or name has one of these in it")
    parser.add_argument("--jobs", type=int, default=2, help="compilers at once")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work there and leave it for the next run")
    options = parser.parse_args()
    wanted = options.only or [""]
    faults = [f for f in FAULTS if any(w in f.claim or w in f.name for w in wanted)]
    if options.list:
        for fault in faults:
            print(f"{fault.claim} | {fault.name} | {fault.file} | {' '.join(fault.tests)}")
        lost = [f for f in faults if not is_there(f)]
        for fault in lost:
            print(f"its text or its tests are gone: {fault.name}", file=sys.stderr)
        return 1 if lost else 0
    if not faults:
        parser.error("no such fault; --list shows them")
    if options.keep:
        missed = check_faults(faults, options.keep.resolve(), options.jobs)
    else:
        with tempfile.TemporaryDirectory(prefix="expertree-faults-") as folder:
            missed = check_faults(faults, Path(folder), options.jobs)
    print(f"{missed} of {len(faults)} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
