#include "cpp/model/delta_net.h"

#include <algorithm>
#include <cmath>

#include "cpp/base/error.h"
#include "cpp/kernels/canonical_math.h"

namespace expertree {
namespace {

constexpr int64_t kBlockColumns = 64;  // of a state of 128 keys: 32 KiB, which stays near while tokens pass
constexpr int64_t kLogRows = 512;      // applied at a time: bounds the scratch

float softplus(float x) { return x > 20.0f ? x : canonical_log(1.0f + canonical_exp(x)); }

void copy_columns(const float* from, int64_t from_stride, int64_t n_rows, int64_t n_columns, float* to,
                  int64_t to_stride) {
  for (int64_t j = 0; j < n_rows; ++j) std::copy_n(from + j * from_stride, n_columns, to + j * to_stride);
}

}  // namespace

DeltaNet::DeltaNet(const HyperParameters& h, CpuBackend& backend, Products& products)
    : r_(h.recurrent),
      rms_eps_(h.rms_eps),
      backend_(backend),
      products_(products),
      ones_(static_cast<size_t>(r_.n_channels), 1.0f),
      query_scale_(static_cast<size_t>(r_.head_dim), 1.0f / static_cast<float>(r_.head_dim)),
      key_scale_(static_cast<size_t>(r_.head_dim), 1.0f / std::sqrt(static_cast<float>(r_.head_dim))) {}

void DeltaNet::run(const DeltaNetWeights& w, int64_t layer, std::span<const RecurrentRows> sequences, Activations& x,
                   float* output) {
  const int64_t n = x.rows();
  project(w, x);
  make_gates(w, n);
  outputs_.resize(static_cast<size_t>(n * r_.n_values()));
  for (const RecurrentRows& rows : sequences) run_sequence(w, layer, rows);
  gate_outputs(w, n);
  const CpuBackend::Product out[] = {{w.output, output, w.output.rows}};
  products_.matmul(gated_, out);
}

void DeltaNet::run_sequence(const DeltaNetWeights& w, int64_t layer, const RecurrentRows& rows) {
  RecurrentState& state = *rows.state;
  ConvInputs inputs(r_, state, layer, rows.begin, rows.n, inputs_.data() + rows.at * r_.n_channels);
  for (int64_t i = 0; state.leaves_terms() && i < rows.n; ++i) {
    std::copy_n(gates(rows.at + i), 2 * r_.n_value_heads, state.pending_terms(layer, rows.begin + i) + r_.n_channels);
  }
  if (rows.begin == 0) apply_log(w, layer, inputs, state);
  if (state.is_chain()) {
    convolve(w, rows.n, [&](int64_t i, const float** taps) { inputs.taps(rows.begin + i, taps); });
    scan_chain(layer, rows);
  } else {
    convolve(w, rows.begin + rows.n, [&](int64_t i, const float** taps) { inputs.taps(i, taps); });
    scan_tree(layer, rows);
  }
  inputs.carry();
}

void DeltaNet::project(const DeltaNetWeights& w, Activations& x) {
  const int64_t n = x.rows();
  inputs_.resize(static_cast<size_t>(n * r_.n_channels));
  output_gates_.resize(static_cast<size_t>(n * r_.n_values()));
  alpha_.resize(static_cast<size_t>(n * r_.n_value_heads));
  beta_.resize(static_cast<size_t>(n * r_.n_value_heads));
  const CpuBackend::Product in[] = {{w.qkv, inputs_.data(), r_.n_channels},
                                    {w.gate, output_gates_.data(), r_.n_values()},
                                    {w.alpha, alpha_.data(), r_.n_value_heads},
                                    {w.beta, beta_.data(), r_.n_value_heads}};
  products_.matmul(x, in);
}

void DeltaNet::make_gates(const DeltaNetWeights& w, int64_t n) {
  gates_.resize(static_cast<size_t>(n * 2 * r_.n_value_heads));
  backend_.pool().parallel_for(n, [&](int64_t i) {
    float* decays = gates_.data() + i * 2 * r_.n_value_heads;
    float* steps = decays + r_.n_value_heads;
    for (int64_t head = 0; head < r_.n_value_heads; ++head) {
      const auto k = static_cast<size_t>(head);
      const float rate = softplus(alpha_[static_cast<size_t>(i * r_.n_value_heads + head)] + w.dt[k]);
      decays[head] = canonical_exp(rate * w.a[k]);
      steps[head] = 1.0f / (1.0f + canonical_exp(-beta_[static_cast<size_t>(i * r_.n_value_heads + head)]));
    }
  });
}

// mixed_ of n rows. taps(i, out) gives the inputs that row i sees.
template <typename Taps>
void DeltaNet::convolve(const DeltaNetWeights& w, int64_t n, const Taps& taps) {
  const KernelTable& kernels = backend_.kernels();
  const float eps = rms_eps_ / static_cast<float>(r_.head_dim);  // of a sum of squares, given to a mean
  mixed_.resize(static_cast<size_t>(n * r_.n_channels));
  backend_.pool().parallel_for(n, [&](int64_t i) {
    const float* inputs[kMostTaps];
    taps(i, inputs);
    float* x = mixed_.data() + i * r_.n_channels;
    kernels.convolve(inputs, w.conv.data(), r_.n_taps, r_.n_channels, x);
    kernels.silu_mul(x, ones_.data(), r_.n_channels, x);
    for (int64_t head = 0; head < 2 * r_.n_key_heads; ++head) {
      const float* scale = head < r_.n_key_heads ? query_scale_.data() : key_scale_.data();
      kernels.rms_norm(x + head * r_.head_dim, scale, eps, r_.head_dim, x + head * r_.head_dim);
    }
  });
}

int64_t DeltaNet::n_blocks() const { return r_.n_value_heads * ((r_.head_dim + kBlockColumns - 1) / kBlockColumns); }

DeltaNet::Block DeltaNet::block(int64_t task) const {
  const int64_t per_head = (r_.head_dim + kBlockColumns - 1) / kBlockColumns;
  const int64_t column = task % per_head * kBlockColumns;
  return {task / per_head, column, std::min(kBlockColumns, r_.head_dim - column)};
}

// gates: [2 * n_value_heads]. out: the row's [n_values]; null: none.
DeltaRow DeltaNet::row(const Block& block, int64_t mixed_row, const float* gates, float* out) const {
  const int64_t values_per_key = r_.n_value_heads / r_.n_key_heads;
  const int64_t key_head = r_.neighbours_share_key ? block.head / values_per_key : block.head % r_.n_key_heads;
  const float* x = mixed_.data() + mixed_row * r_.n_channels;
  const int64_t value = block.head * r_.head_dim + block.column;
  DeltaRow row{};
  row.k = x + r_.n_keys() + key_head * r_.head_dim;
  row.v = x + 2 * r_.n_keys() + value;
  row.decay = gates[block.head];
  row.beta = gates[r_.n_value_heads + block.head];
  if (out != nullptr) {
    row.q = x + key_head * r_.head_dim;
    row.out = out + value;
  }
  return row;
}

void DeltaNet::scan(const Block& block, float* state, int64_t stride, std::span<const DeltaRow> rows) const {
  backend_.kernels().delta_scan({state, stride, r_.head_dim, block.n_columns, rows.data(), std::ssize(rows)});
}

// Moves the committed matrices over the committed terms that they have not seen.
void DeltaNet::apply_log(const DeltaNetWeights& w, int64_t layer, const ConvInputs& inputs, RecurrentState& state) {
  float* matrices = state.matrices(layer);
  for (int64_t first = state.n_applied(layer); first < state.n_log(); first += kLogRows) {
    const int64_t n = std::min(kLogRows, state.n_log() - first);
    rows_.resize(static_cast<size_t>(n_blocks() * n));
    convolve(w, n, [&](int64_t i, const float** taps) { inputs.committed_taps(first + i, taps); });
    backend_.pool().parallel_for(n_blocks(), [&](int64_t task) {
      const Block b = block(task);
      DeltaRow* rows = rows_.data() + task * n;
      for (int64_t i = 0; i < n; ++i) {
        rows[i] = row(b, i, state.log_terms(layer, first + i) + r_.n_channels, nullptr);
      }
      scan(b, matrices + b.head * r_.head_dim * r_.head_dim + b.column, r_.head_dim, {rows, static_cast<size_t>(n)});
    });
    state.set_applied(layer, first + n);
  }
}

void DeltaNet::scan_chain(int64_t layer, const RecurrentRows& sequence) {
  RecurrentState& state = *sequence.state;
  const int64_t begin = sequence.begin;
  const int64_t n = sequence.n;
  const float* committed = state.matrices(layer);
  float* tip = state.tip_matrices(layer);
  float* checkpoint = state.checkpoint_matrices(layer);
  const int64_t n_before = std::clamp<int64_t>(state.checkpoint_row() + 1 - begin, 0, n);  // a checkpoint
  rows_.resize(static_cast<size_t>(n_blocks() * n));
  backend_.pool().parallel_for(n_blocks(), [&](int64_t task) {
    const Block b = block(task);
    const int64_t d = r_.head_dim;
    const int64_t offset = b.head * d * d + b.column;
    if (begin == 0) copy_columns(committed + offset, d, d, b.n_columns, tip + offset, d);
    DeltaRow* rows = rows_.data() + task * n;
    for (int64_t i = 0; i < n; ++i) {
      rows[i] = row(b, i, gates(sequence.at + i), outputs(sequence.at + i));
    }
    scan(b, tip + offset, d, {rows, static_cast<size_t>(n_before)});
    if (n_before > 0 && begin + n_before == state.checkpoint_row() + 1) {
      copy_columns(tip + offset, d, d, b.n_columns, checkpoint + offset, d);
    }
    scan(b, tip + offset, d, {rows + n_before, static_cast<size_t>(n - n_before)});
  });
}

// Rows of earlier passes are run again: their states were not kept.
void DeltaNet::scan_tree(int64_t layer, const RecurrentRows& sequence) {
  RecurrentState& state = *sequence.state;
  const TreeScan& tree = state.scan();
  const int64_t begin = sequence.begin;
  const int64_t end = begin + sequence.n;
  const int64_t d = r_.head_dim;
  const float* committed = state.matrices(layer);
  const int64_t slot_floats = d * std::min(kBlockColumns, d);
  const int64_t task_floats = (tree.n_slots + 1) * slot_floats;
  require_memory(static_cast<uint64_t>(n_blocks() * task_floats) * sizeof(float), "the recurrent states of a tree");
  kept_.resize(static_cast<size_t>(n_blocks() * task_floats));
  rows_.resize(static_cast<size_t>(n_blocks() * end));
  backend_.pool().parallel_for(n_blocks(), [&](int64_t task) {
    const Block b = block(task);
    float* slots = kept_.data() + task * task_floats;
    DeltaRow* rows = rows_.data() + task * end;
    for (const TreeScan::Segment& segment : tree.segments) {
      int64_t n_rows = 0;
      for (int32_t i = segment.begin; i < segment.end; ++i) {
        const int32_t r = tree.order[static_cast<size_t>(i)];
        if (r >= end) break;  // and so are those that follow it
        float* out = r < begin ? nullptr : outputs(sequence.at + r - begin);
        rows[n_rows++] = row(b, r, state.pending_terms(layer, r) + r_.n_channels, out);
      }
      if (n_rows == 0) continue;
      float* to = slots + (segment.keep < 0 ? tree.n_slots : segment.keep) * slot_floats;
      if (segment.from < 0) {
        copy_columns(committed + b.head * d * d + b.column, d, d, b.n_columns, to, b.n_columns);
      } else if (segment.from != segment.keep) {
        copy_columns(slots + segment.from * slot_floats, b.n_columns, d, b.n_columns, to, b.n_columns);
      }
      scan(b, to, b.n_columns, {rows, static_cast<size_t>(n_rows)});
    }
  });
}

// Each head normalised, times SiLU of the gate.
void DeltaNet::gate_outputs(const DeltaNetWeights& w, int64_t n) {
  const KernelTable& kernels = backend_.kernels();
  gated_.reset(n, r_.n_values());
  backend_.pool().parallel_for(n, [&](int64_t i) {
    float* x = outputs_.data() + i * r_.n_values();
    for (int64_t head = 0; head < r_.n_value_heads; ++head) {
      float* y = x + head * r_.head_dim;
      kernels.rms_norm(y, w.norm.data(), rms_eps_, r_.head_dim, y);
    }
    kernels.silu_mul(output_gates_.data() + i * r_.n_values(), x, r_.n_values(), gated_.row(i));
  });
}

}  // namespace expertree
