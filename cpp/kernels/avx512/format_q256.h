// From a format of 256 elements, which says how 16 rows are expanded, to what panel.h asks of it.
#pragma once

#include "cpp/kernels/avx512/panel_q256.h"

#if defined(EXPERTREE_AVX512)

namespace expertree::avx512 {
namespace {

// What panel.h asks of a format. Self::expand_scales fills Scales from the block of 16 rows at p, stride bytes apart;
// Self::expand_bytes calls sink.add_group once for each 16 elements.
template <typename Self, typename Block, Shape kShape>
struct Format256 {
  using Panel = Panel256;
  static constexpr int kElements = 256;
  static constexpr int kPacedSteps = 2;  // in each group of columns
  static constexpr int64_t kBytes = sizeof(Block);
  static constexpr int64_t block_bytes() { return kBytes; }

  static void expand(const std::byte* p, int64_t stride, int, Panel* panel, Pace* pace) {
    pace->step();
    Self::expand_scales(p, stride, &panel->scales);
    pace->step();
    StorePanel sink{panel};
    Self::expand_bytes(p, stride, sink);
  }

  template <bool kPaced, int kColumns, int kPanels>
  static void multiply(const Panel* panels, int, const Column* columns, float (*const* acc)[kPanelRows], Pace* pace) {
    multiply_panels<kShape, kPaced, kColumns, kPanels>(panels, columns, acc, pace);
  }

  template <int kColumns>
  static void expand_and_multiply(const std::byte* p, int64_t stride, int, const Column* columns,
                                  float (*acc)[kPanelRows]) {
    Scales scales;
    Self::expand_scales(p, stride, &scales);
    const Scales* const all[] = {&scales};
    Product<kShape, 16, kColumns> product(all, columns);
    Self::expand_bytes(p, stride, product);
    product.finish(0, acc);
  }
};

}  // namespace
}  // namespace expertree::avx512

#endif
