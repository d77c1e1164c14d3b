// Making a pager: slots, policies, and the order in which the background reads.
#include <algorithm>
#include <numeric>

#include "cpp/base/error.h"
#include "cpp/experts/expert_pager.h"

namespace expertree {
namespace {

// Bytes under way at once: a disk reaches its speed at a few reads of this size; more would only delay what is asked for
// next.
constexpr uint64_t kFlightBytes = uint64_t{12} << 20;
constexpr uint64_t kMinFlight = 2;
constexpr uint64_t kMaxFlight = 16;

std::vector<const File*> files_of(const GgufReader& reader) {
  std::vector<const File*> files;
  for (size_t i = 0; i < reader.paths().size(); ++i) files.push_back(&reader.file(static_cast<int32_t>(i)));
  return files;
}

std::vector<int32_t> experts_of_layers(const SlotLayout& layout) {
  std::vector<int32_t> n_experts;
  for (int32_t layer = 0; layer < layout.n_layers(); ++layer) n_experts.push_back(layout.n_experts_of(layer));
  return n_experts;
}

PageBuffer arena_of(const SlotPlan& plan) {
  const uint64_t available = available_memory_bytes();
  if (available != 0 && plan.bytes > available) {
    throw Error(ErrorCode::kOutOfMemory,
                "keeping " + format_bytes(plan.bytes) + " of the model's experts in memory does not fit: " +
                    format_bytes(available) + " are available; use --ram auto, or a size from " +
                    format_bytes(plan.least_bytes) + " up: experts that are not in memory are read when needed");
  }
  return PageBuffer(plan.bytes, "the experts");
}

}  // namespace

ExpertPager::ExpertPager(const ExpertIndex& index, std::shared_ptr<const GgufReader> reader, PagerOptions options)
    : options_(std::move(options)),
      reader_(std::move(reader)),
      async_(make_async_reader(
          files_of(*reader_), [this](uint64_t ticket, const std::exception_ptr& error) { piece_done(ticket, error); },
          options_.reader)),
      layout_(index, *reader_, [this](int32_t file) { return async_->alignment(file); }),
      plan_(plan_slots(layout_.slot_bytes(), layout_.experts_of_classes(), options_.budget_bytes)),
      arena_(arena_of(plan_)),
      states_(static_cast<size_t>(layout_.n_layers()) * static_cast<size_t>(layout_.n_experts())),
      on_device_(states_.size()),
      cache_(make_cache()),
      fills_(static_cast<size_t>(cache_.n_slots())),
      counted_{std::vector<int64_t>(static_cast<size_t>(layout_.n_layers()), 0),
               std::vector<double>(states_.size(), 0.0)},
      reuse_(experts_of_layers(layout_)) {
  index_shapes(index);
  place_slots();
  order_background();
  const uint64_t slot = *std::max_element(layout_.slot_bytes().begin(), layout_.slot_bytes().end());
  max_flight_ = static_cast<int32_t>(std::clamp(kFlightBytes / slot, kMinFlight, kMaxFlight));
  const Lock lock(mutex_);
  pump();
}

ExpertPager::~ExpertPager() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  async_.reset();
}

ExpertCache::Shape ExpertPager::cache_shape() const {
  ExpertCache::Shape shape{layout_.n_layers(), layout_.n_experts(), {}, plan_.n_slots};
  for (int32_t layer = 0; layer < layout_.n_layers(); ++layer) {
    shape.class_of_layer.push_back(layout_.class_of(layer));
  }
  return shape;
}

ExpertCache ExpertPager::make_cache() {
  if (options_.policy == "values") values_ = std::make_shared<ExpertValues>(states_.size());
  const PolicyContext context{layout_.n_layers(), layout_.n_experts(), options_.profile, nullptr, values_};
  if (!context.profile.empty() && context.profile.size() != states_.size()) {
    throw Error(ErrorCode::kInvalidRequest, "the record of expert use is one of " +
                                                std::to_string(context.profile.size()) + " experts and the model has " +
                                                std::to_string(states_.size()) + "; give this model's own record");
  }
  std::vector<std::unique_ptr<CachePolicy>> policies;
  for (const PolicyRow& row : policy_table()) {
    const bool lacks_profile = row.needs_profile && context.profile.empty();
    const bool lacks_values = row.needs_values && context.values == nullptr;
    if (row.needs_future || lacks_profile || lacks_values) continue;
    policy_names_.emplace_back(row.name);
    policies.push_back(row.make(context));
  }
  const std::string wanted = options_.policy == "auto" ? kDefaultPolicy : options_.policy;
  const auto found = std::find(policy_names_.begin(), policy_names_.end(), wanted);
  if (found == policy_names_.end()) make_policy(wanted, context);  // says what is wrong with it
  wanted_policy_ = static_cast<size_t>(found - policy_names_.begin());
  if (options_.policy == "auto" && !plan_.holds_all()) {
    picker_ = std::make_unique<PolicyPicker>(policy_names_, cache_shape(), options_.profile);
  }
  ExpertCache cache(cache_shape(), std::move(policies));
  cache.set_active(wanted_policy_);
  return cache;
}

void ExpertPager::index_shapes(const ExpertIndex& index) {
  for (const ExpertLayer& layer : index) {
    for (const ExpertLayer::Projection& p : layer.projections) {
      shapes_.push_back({p.dtype, p.rows, p.k, row_bytes(p.dtype, p.k), p.scales});
    }
  }
}

void ExpertPager::place_slots() {
  std::byte* next = arena_.data();
  for (size_t c = 0; c < plan_.n_slots.size(); ++c) {
    for (int64_t s = 0; s < plan_.n_slots[c]; ++s) {
      memory_.push_back(next);
      next += layout_.slot_bytes()[c];
    }
  }
}

// Hot experts of a profile first, else as they lie in the file.
void ExpertPager::order_background() {
  for (int32_t layer = 0; layer < layout_.n_layers(); ++layer) {
    for (int32_t e = 0; e < layout_.n_experts_of(layer); ++e) fill_order_.push_back(cache_.key(layer, e));
  }
  if (options_.profile.empty()) return;
  std::stable_sort(fill_order_.begin(), fill_order_.end(), [this](ExpertKey a, ExpertKey b) {
    return options_.profile[static_cast<size_t>(a)] > options_.profile[static_cast<size_t>(b)];
  });
}

}  // namespace expertree
