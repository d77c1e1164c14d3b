// Runs models with every instruction set that this CPU has, and prints for each file its name and a hash of the logits'
// bits and of the sampled tokens. Exit status 1 when two instruction sets differ: they must not (contract X3). Another
// machine must print the same lines: tools/check_arm.sh compares.
//
//   model_hash MODEL.gguf...
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cpp/base/error.h"
#include "cpp/engine/session.h"
#include "cpp/kernels/kernel_names.h"
#include "cpp/model/model.h"

namespace expertree {
namespace {

// FNV-1a. Logits are finite: NaN would be an error.
uint64_t add(uint64_t hash, const void* data, size_t size_bytes) {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size_bytes; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

// A prompt of 40 tokens, a tree of drafted ones, and then eight sampled ones.
uint64_t hash_run(const std::string& path, const char* isa, DType cache) {
  ModelOptions options;
  options.n_threads = 2;
  options.isa = isa;
  options.cache_types = {cache, cache};
  const std::shared_ptr<Model> model = Model::load(path, options, {});
  const int64_t n_vocab = model->hyperparameters().n_vocab;
  std::vector<int32_t> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((i * i * 7 + 3 * i + 5) % n_vocab);
  SamplerOptions sampler;
  sampler.temperature = 1.0f;
  sampler.seed = 7;
  Session session(model, 64, sampler);
  session.prefill(prompt);
  const std::vector<int32_t> tree = {prompt[1], prompt[2], prompt[3], prompt[4]};
  const std::vector<int32_t> parents = {-1, 0, 0, -1};
  const ForwardResult drafted = session.evaluate(tree, parents, false, false);
  uint64_t hash = add(0xcbf29ce484222325ull, drafted.logits.data(), drafted.logits.size() * sizeof(float));
  session.rollback();
  for (int i = 0; i < 8; ++i) session.step();
  const std::vector<int32_t> tokens = session.tokens();
  return add(hash, tokens.data(), tokens.size() * sizeof(int32_t));
}

// Prints the file's line; false when instruction sets differ.
bool hash_file(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  uint64_t hash = 0xcbf29ce484222325ull;
  bool agree = true;
  for (const DType cache : {DType::kF32, DType::kQ8_0}) {
    const uint64_t expected = hash_run(path, "scalar", cache);
    for (const std::string& isa : kernel_names()) {
      if (isa == "scalar" || hash_run(path, isa.c_str(), cache) == expected) continue;
      std::printf("%s: %s differs from scalar\n", name.c_str(), isa.c_str());
      agree = false;
    }
    hash = add(hash, &expected, sizeof expected);
  }
  std::printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(hash));
  std::fflush(stdout);
  return agree;
}

int run(int n_files, char** files) {
  bool agree = true;
  for (int i = 0; i < n_files; ++i) {
    try {
      agree = hash_file(files[i]) && agree;
    } catch (const Error& error) {
      std::fprintf(stderr, "model_hash: %s\n", error.what());
      return 2;
    }
  }
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace expertree

int main(int argc, char** argv) { return expertree::run(argc - 1, argv + 1); }
