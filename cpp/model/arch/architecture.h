// An architecture is one data sheet: which keys it reads, with what defaults, and its flags.
// Everything that knows a GGUF tensor name is in this folder.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cpp/io/gguf_reader.h"
#include "cpp/model/arch/arch_keys.h"
#include "cpp/model/arch/key_groups.h"
#include "cpp/model/hyperparameters.h"
#include "cpp/model/weights.h"

namespace expertree {

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
extern const Architecture kGptOss;
extern const Architecture kDeepSeek2;
extern const Architecture kGlm4Moe;
extern const Architecture kGraniteMoe;
extern const Architecture kPhiMoe;
extern const Architecture kGemma3;
extern const Architecture kGemma4;
extern const Architecture kMiniMaxM2;
extern const Architecture kLlama4;
extern const Architecture kErnie45Moe;
extern const Architecture kHunyuanMoe;
extern const Architecture kBailingMoe2;
extern const Architecture kDots1;
extern const Architecture kQwen35;
extern const Architecture kQwen35Moe;
extern const Architecture kQwen3Next;
extern const Architecture kLfm2Moe;
extern const Architecture kDeepSeek;
extern const Architecture kSmallThinker;
extern const Architecture kGrok;
extern const Architecture kExaoneMoe;
extern const Architecture kMiMo2;
extern const Architecture kDbrx;

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
