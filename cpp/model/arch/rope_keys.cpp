// Keys of the rotary position embedding.
#include <cmath>

#include "cpp/model/arch/key_groups.h"

namespace expertree {
namespace {

double read_base(const ArchKeys& keys, const char* key, double fallback) {
  const double base = keys.float_or(key, fallback);
  if (!(base > 0.0 && base < 1e30)) keys.refuse_value(key, std::to_string(base), "a positive number");
  return base;
}

// 1 / factor. Older files give the factor alone; it meant linear scaling.
double read_frequency_scale(const ArchKeys& keys) {
  const double factor = keys.float_or("rope.scaling.factor", keys.float_or("rope.scale_linear", 0.0));
  if (factor == 0.0) return 1.0;
  if (!(factor >= 1e-3 && factor <= 1e6)) {
    keys.refuse_value("rope.scaling.factor", std::to_string(factor), "a factor between 0.001 and 1000000");
  }
  return 1.0 / factor;
}

// What YaRN itself multiplies sin and cos with, for a scaling factor.
double yarn_magnitude(double factor) { return factor <= 1.0 ? 1.0 : 1.0 + 0.1 * std::log(factor); }

}  // namespace

bool has_long_factors(const ArchKeys& keys) { return keys.string_or("rope.scaling.type", "linear") == "longrope"; }

void read_rope(const ArchKeys& keys, HyperParameters* h) {
  h->n_rot = keys.int_or("rope.dimension_count", h->head_dim_k);
  if (h->n_rot > h->head_dim_k || h->n_rot % 2 != 0) {
    keys.refuse_value("rope.dimension_count", h->n_rot,
                      "an even number up to the head size " + std::to_string(h->head_dim_k));
  }
  h->rope_base = read_base(keys, "rope.freq_base", 10000.0);
  const std::string type = keys.string_or("rope.scaling.type", "linear");
  const bool known = type == "none" || type == "linear" || type == "yarn";
  if (!known && !(type == "longrope" && h->rope_factors == RopeFactors::kLongShort)) {
    keys.refuse_feature("rope.scaling.type", "'" + type + "'", "scalings other than 'none', 'linear' and 'yarn'");
  }
  h->rope_frequency_scale_windowed = read_frequency_scale(keys);
  h->rope_frequency_scale = type == "none" ? 1.0 : h->rope_frequency_scale_windowed;
  h->yarn.on = type == "yarn";
  h->yarn.n_ctx_original = static_cast<double>(keys.int_or("rope.scaling.original_context_length", h->n_ctx_train));
  h->rope_magnitude = rope_magnitude(keys, h->yarn.on, h->rope_frequency_scale);
  h->n_rot_windowed = h->n_rot;
  h->rope_base_windowed = h->rope_base;
}

double rope_magnitude(const ArchKeys& keys, bool yarn, double frequency_scale) {
  const double factor = keys.float_or("rope.scaling.attn_factor", 1.0);
  return yarn ? factor * yarn_magnitude(1.0 / frequency_scale) : factor;
}

void read_windowed_rope(const ArchKeys& keys, double base, WindowedScale scale, HyperParameters* h) {
  h->rope_base_windowed = read_base(keys, "rope.freq_base_swa", base);
  if (scale == WindowedScale::kOne) h->rope_frequency_scale_windowed = 1.0;
}

void refuse_windowed_sizes(const ArchKeys& keys, const HyperParameters& h) {
  const auto refuse = [&](const char* key, int64_t size) {
    const int64_t found = keys.int_or(key, size);
    if (found != size) keys.refuse_feature(key, std::to_string(found), "windowed layers with heads of another size");
  };
  refuse("attention.key_length_swa", h.head_dim_k);
  refuse("attention.value_length_swa", h.head_dim_v);
  refuse("rope.dimension_count_swa", h.n_rot);
}

}  // namespace expertree
