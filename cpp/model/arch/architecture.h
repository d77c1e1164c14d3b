// An architecture is one data sheet: which keys it reads, with what defaults, and its flags.
// Everything that knows a GGUF tensor name is in this folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cpp/io/gguf_reader.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

// Reads keys under the architecture's prefix: require_int("block_count") reads "qwen3moe.block_count".
class ArchKeys {
 public:
  ArchKeys(const GgufReader& reader, std::string arch) : reader_(reader), arch_(std::move(arch)) {}

  std::string full(const char* key) const { return arch_ + "." + key; }
  bool has(const char* key) const { return reader_.find(full(key)) != nullptr; }
  // Counts and widths: 1 .. 2^31 - 1 unless min says otherwise.
  int64_t require_int(const char* key, int64_t min = 1) const;
  int64_t int_or(const char* key, int64_t fallback, int64_t min = 1) const;
  double require_float(const char* key) const { return reader_.require_float(full(key)); }
  double float_or(const char* key, double fallback) const { return reader_.float_or(full(key), fallback); }
  std::string string_or(const char* key, const char* fallback) const { return reader_.string_or(full(key), fallback); }
  const GgufReader& reader() const { return reader_; }

 private:
  const GgufReader& reader_;
  std::string arch_;
};

// Keys that every transformer of this kind has: sizes, heads, context, eps, rope.
void read_common(const ArchKeys& keys, HyperParameters* h);

// feed_forward_length, which read_common lets a file leave out that has expert_feed_forward_length.
int64_t require_dense_width(const ArchKeys& keys, const HyperParameters& h);

// expert_count and expert_used_count, checked against each other.
void read_experts(const ArchKeys& keys, HyperParameters* h);

struct Architecture {
  const char* name;  // general.architecture
  void (*read)(const ArchKeys& keys, HyperParameters* h);
};

extern const Architecture kLlama;
extern const Architecture kQwen2;
extern const Architecture kQwen3;
extern const Architecture kQwen2Moe;
extern const Architecture kQwen3Moe;
extern const Architecture kOlmoe;
extern const Architecture kQwen35;
extern const Architecture kQwen35Moe;
extern const Architecture kQwen3Next;

// Names of the architectures that run here.
std::vector<std::string> architecture_names();

// Finds the file's architecture and reads its hyperparameters. Throws kUnsupported with the names that are known,
// kModelFormat for missing or impossible values.
HyperParameters read_hyperparameters(const GgufReader& reader);

// Token ids that the model's embedding has rows for; 0 without an embedding.
int64_t embedding_rows(const GgufReader& reader);

// Indexes the experts and loads all other weights into `arena`. A tensor that is missing, of the wrong shape or
// format, or that the architecture has no use for is an error naming it. Rows of router and shared gate may be any
// format; norms and biases must be F32. `progress`, when given, is called after each piece and may throw to stop.
ModelWeights load_weights(const GgufReader& reader, const HyperParameters& h, PageBuffer* arena,
                          const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace expertree
