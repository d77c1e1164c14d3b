// A loaded model: hyperparameters, weights, and the one forward pass. Nothing here is global: any number of models
// live side by side.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cpp/backend/cpu_backend.h"
#include "cpp/experts/expert_pager.h"
#include "cpp/experts/vram_tier.h"
#include "cpp/io/gguf_reader.h"
#include "cpp/model/device_use.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/products.h"
#include "cpp/model/rope.h"
#include "cpp/model/sequence_state.h"
#include "cpp/model/shared_parts.h"
#include "cpp/model/token_batch.h"
#include "cpp/model/weights.h"
#include "cpp/profile/row_recorder.h"

namespace expertree {

class Profiler;

struct ModelOptions {
  int n_threads = 0;   // 0: one per core
  std::string isa;     // "": the best this CPU has; else scalar, avx2, avx512, neon, dotprod
  ActivationMode activations = ActivationMode::kInt8;
  // budget_bytes holds, or with leave_margin less of it: what leaves room for the system and a session.
  PagerOptions experts;
  bool leave_margin = false;
  VramOptions vram;
  int64_t n_ctx = 0;           // of that session; 0: the model's own, at most 4096
  CacheTypes cache_types;      // of every session
  uint64_t reserve_bytes = 0;  // with leave_margin: what drafters will take beside
  FileOpener open = open_file;
};

// Called with bytes read and bytes in all while loading; may throw to stop. Experts are read later.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

enum class LogitRows : uint8_t { kNone, kLast, kAll };

struct ForwardRequest {
  LogitRows logits = LogitRows::kAll;
  // The best of a row's logits are enough, if at least this many are given; 0: all are needed.
  int32_t n_best = 0;
  bool routing = false;  // record every row's experts
  // Rows before this one have been run by earlier passes over the same pending batch (SequenceState::extend).
  int64_t first_row = 0;
  // float [rows][n_embd], what the first layer reads; nullptr: the tokens' embeddings.
  const float* inputs = nullptr;
  std::vector<int32_t> tap_layers;  // record every row's residual stream as it enters these layers
  bool last_hidden = false;         // record every row's normalised output of the last layer
  // Some rows may not stay: all but the first one are counted by keep_rows().
  bool provisional = false;
  // Experts of a layer that all rows together may use, at least n_used; 0: any. It changes the output (MoE-Spec).
  int64_t most_experts = 0;
  CallRecorders recorders;  // the time line is that of all sequences of the pass
  // Called between layers; throws to stop. The caller then rolls the state back.
  std::function<void()> check_stop;
};

// Rows are those from first_row on.
struct ForwardResult {
  std::vector<float> logits;            // [rows asked for][n_vocab], or [..][n_best]
  int32_t n_best = 0;  // logits are the best of each row, largest first, ties to the lower id; 0: all are there
  std::vector<int32_t> best_ids;        // [rows asked for][n_best]
  std::vector<int32_t> expert_ids;      // [moe layers][rows][n_used], best first
  std::vector<float> expert_weights;    // the same shape
  std::vector<float> taps;              // [rows][tap layers][n_embd]
  std::vector<float> last_hidden;       // [rows][n_embd]
};

// What a pass does for one sequence: rows that continue it, for which begin(batch) has been called, what is asked about
// them, and the answer.
struct SequencePass {
  SequenceState* state;
  const TokenBatch* batch;
  const ForwardRequest* request;
  ForwardResult* result;
};

class Forward;

class Model {
 public:
  // Throws Error for everything a file or machine can have wrong.
  static std::shared_ptr<Model> load(const std::string& path, const ModelOptions& options,
                                     const LoadProgress& progress);
  // A further model of parts of host's file, that runs on its threads: whoever runs it holds host's lock_backend(). It
  // keeps all of its experts.
  static std::shared_ptr<Model> from_parts(const Model& host, ModelParts parts);
  ~Model();

  const std::string& path() const { return path_; }
  // Stays open: later the path may lead elsewhere, or nowhere.
  const GgufReader& file() const { return *file_; }
  const HyperParameters& hyperparameters() const { return h_; }
  const ModelWeights& weights() const { return weights_; }
  // Of sessions that ask for none: the model's own, at most 4096, and where longer contexts turn by other rotary
  // factors, which are worse for short texts, the longest that does not.
  int64_t default_context() const;
  int64_t n_moe_layers() const { return static_cast<int64_t>(weights_.experts.size()); }
  CacheTypes cache_types() const { return cache_types_; }
  // A state for n_ctx positions, and what it takes.
  SequenceState new_state(int64_t n_ctx) const { return SequenceState(h_, n_ctx, cache_types_); }
  uint64_t state_bytes(int64_t n_ctx) const { return SequenceState::bytes_needed(h_, n_ctx, cache_types_); }
  const char* isa() const { return backend_->kernels().name; }
  int n_threads() const { return backend_->n_threads(); }
  uint64_t weight_bytes() const { return arena_.size_bytes(); }  // experts left out
  // nullptr for a model without experts.
  ExpertPager* experts() const { return experts_.get(); }
  // nullptr: no experts are kept on a device.
  VramTier* vram() const { return vram_.get(); }
  // What is kept on a device; nothing: vram_note() says why where one was asked for.
  const std::optional<DeviceUse>& device_use() const { return device_use_; }
  const Products& products() const { return products_; }
  const std::string& vram_note() const { return vram_note_; }
  // Tells those who keep experts what rows use that are sure to stay (ExpertPager::count).
  void count_uses(int32_t moe_layer, std::span<const int32_t> experts, int64_t n_rows);
  // Waits until all experts that have room are in memory, and on the device. `check_stop` may throw.
  void load_experts(const std::function<void()>& check_stop);
  // Of experts, of all other weights.
  uint64_t size_bytes() const { return weight_bytes() + (experts_ ? experts_->stats().budget_bytes : 0); }
  // What sessions of this model draft with.
  SharedParts& parts() { return parts_of_drafters_; }

  CpuBackend& backend() { return *backend_; }
  // Held while the backend is used outside forward(), by a drafter for example: it serves one caller at a time.
  std::unique_lock<std::mutex> lock_backend() { return std::unique_lock<std::mutex>(mutex_); }

  // Records what sessions do from their next calls on, in the profiler and in the pager's activity. Throws
  // kInvalidRequest while another profile runs.
  std::shared_ptr<Profiler> start_profile(int64_t max_events);
  void stop_profile();
  // nullptr: no profile runs.
  std::shared_ptr<Profiler> profiler() const;
  int64_t next_session_id() { return n_sessions_++; }

  // Runs the rows of different sequences in one pass; fills in their pending cells. Each gives the bits that it would
  // give alone. One call at a time per model; others wait. When it throws, the caller rolls all of the states back.
  void forward(std::span<const SequencePass> sequences);
  void forward(SequenceState& state, const TokenBatch& batch, const ForwardRequest& request, ForwardResult* result);
  // These rows of a provisional pass stay: the caches learn what they use. expert_ids: [moe layers][n_rows][n_used].
  void keep_rows(std::span<const int32_t> expert_ids, int64_t n_rows, std::span<const int32_t> rows);

 private:
  friend class Forward;
  Model(std::string path, std::shared_ptr<const GgufReader> file, std::shared_ptr<CpuBackend> backend,
        CacheTypes cache_types);
  // Takes the parts, but for the experts.
  void set_parts(ModelParts parts);
  void start(const PagerOptions& experts);
  // n_ctx: of the session whose keys and values a device is to hold.
  void open_vram(const VramOptions& options, const PagerOptions& experts, int64_t n_ctx,
                 const std::function<void()>& check_stop);
  void make_vram(const VramOptions& options, const PagerOptions& experts, int64_t n_ctx,
                 const std::function<void()>& check_stop);
  // After an error: a device that is lost to experts or to products is lost to both.
  void share_loss() noexcept;

  std::string path_;
  std::shared_ptr<const GgufReader> file_;
  CacheTypes cache_types_;
  HyperParameters h_;
  ModelWeights weights_;
  PageBuffer arena_;
  std::unique_ptr<ExpertPager> experts_;
  SharedParts parts_of_drafters_;
  std::unique_ptr<VramTier> vram_;
  std::optional<DeviceUse> device_use_;
  std::string vram_note_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<Rope> rope_long_;  // of contexts beyond the original one; nullptr: as rope_
  std::unique_ptr<Rope> rope_windowed_;
  std::shared_ptr<CpuBackend> backend_;
  Products products_;
  std::mutex mutex_;
  std::unique_ptr<Forward> forward_;
  std::atomic<bool> profiling_{false};
  mutable std::mutex profiler_mutex_;
  std::shared_ptr<Profiler> profiler_;
  std::atomic<int64_t> n_sessions_{0};
};

}  // namespace expertree
