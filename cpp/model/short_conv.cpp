#include "cpp/model/short_conv.h"

#include "cpp/model/conv_inputs.h"

namespace expertree {

namespace {}  // namespace

void ShortConv::run(const ShortConvWeights& w, int64_t layer, std::span<const RecurrentRows> sequences, Activations& x,
                    float* output) {
  const int64_t n = x.rows();
  const int64_t width = r_.n_channels;
  projected_.resize(static_cast<size_t>(n * 3 * width));
  inputs_.resize(static_cast<size_t>(n * width));
  const CpuBackend::Product in[] = {{w.in, projected_.data(), 3 * width}};
  products_.matmul(x, in);
  backend_.pool().parallel_for(n, [&](int64_t i) {
    const float* b = projected_.data() + i * 3 * width;
    for (int64_t c = 0; c < width; ++c) inputs_[static_cast<size_t>(i * width + c)] = b[c] * b[2 * width + c];
  });
  gated_.reset(n, width);
  for (const RecurrentRows& rows : sequences) {
    ConvInputs inputs(r_, *rows.state, layer, rows.begin, rows.n, inputs_.data() + rows.at * width);
    backend_.pool().parallel_for(rows.n, [&](int64_t i) {
      const float* taps[kMostTaps];
      inputs.taps(rows.begin + i, taps);
      float* y = gated_.row(rows.at + i);
      backend_.kernels().convolve(taps, w.conv.data(), r_.n_taps, width, y);
      const float* c = projected_.data() + (rows.at + i) * 3 * width + width;
      for (int64_t k = 0; k < width; ++k) y[k] = c[k] * y[k];
    });
    inputs.carry();
    rows.state->set_applied(layer, rows.state->n_log());  // there are no matrices to move
  }
  const CpuBackend::Product out[] = {{w.output, output, w.output.rows}};
  products_.matmul(gated_, out);
}

}  // namespace expertree
