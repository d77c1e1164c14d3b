// What people pass for a GGUF file: failed downloads and other model formats.
#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>

#include "cpp/base/error.h"
#include "cpp/io/gguf_parse.h"
#include "cpp/io/printable.h"

namespace expertree {
namespace {

struct KnownStart {
  std::string_view bytes;  // lower case when the text is text
  const char* text;
};

constexpr char kConvert[] =
    "; convert the model to GGUF with llama.cpp's convert_hf_to_gguf.py, or download a GGUF file";
constexpr char kHtml[] =
    "this is an HTML page, not a model: the download went to a web page; use the file's direct link";

// Compared with the file's start, letters in lower case.
constexpr KnownStart kKnownStarts[] = {
    {"version https://git-lfs.github.com/spec",
     "this is a Git LFS pointer, not the file itself; fetch the file with git lfs pull, or download it from its page"},
    {"<!doctype html", kHtml},
    {"<html", kHtml},
    {"<?xml", "this is an XML page, often a storage server's error message; look into it, then download again"},
    {"lmgg", "this is a GGML file of before August 2023; only GGUF is read: download the model anew as GGUF"},
    {"fmgg", "this is a GGML (ggmf) file of before August 2023; only GGUF is read: download the model anew as GGUF"},
    {"tjgg", "this is a GGML (ggjt) file of before August 2023; only GGUF is read: download the model anew as GGUF"},
    {"algg", "this is a GGML LoRA adapter; only GGUF models are read: download the model anew as GGUF"},
};

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

std::string lower_without_leading_space(std::string_view text) {
  if (starts_with(text, "\xef\xbb\xbf")) text.remove_prefix(3);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text[0]))) text.remove_prefix(1);
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// A safetensors file is the 64-bit length of a JSON object, then the object.
bool looks_like_safetensors(std::string_view start, uint64_t file_size) {
  uint64_t header_bytes = 0;
  if (start.size() < 10) return false;
  std::memcpy(&header_bytes, start.data(), sizeof(header_bytes));
  return start[8] == '{' && header_bytes >= 2 && header_bytes <= file_size - 8;
}

// A piece made by a byte splitter: model.gguf-split-b, model.gguf.part2of3.
bool is_named_like_a_piece(const std::string& path) {
  const size_t extension = path.rfind(".gguf");
  if (extension == std::string::npos) return false;
  const std::string tail = path.substr(extension + 5);
  return tail.find("-split-") == 0 || tail.find(".part") == 0 || tail.find(".split-") == 0;
}

std::string describe(const File& file, std::string_view start) {
  if (looks_like_safetensors(start, file.size())) return std::string("this is a safetensors file") + kConvert;
  if (starts_with(start, "PK\x03\x04")) {
    return std::string("this is a zip archive, perhaps a PyTorch model") + kConvert;
  }
  if (start.size() >= 2 && start[0] == '\x80' && start[1] >= 2 && start[1] <= 5) {
    return std::string("this is a Python pickle, perhaps a PyTorch model; not opened, as it could run code") + kConvert;
  }
  if (starts_with(start, "\x1f\x8b")) return "this is a gzip archive; unpack it first";
  if (starts_with(start, "(\xb5\x2f\xfd")) return "this is a zstd archive; unpack it first";
  if (std::all_of(start.begin(), start.end(), [](char c) { return c == 0; })) {
    return "the file starts with zeros: a download that reserved its space and stopped; download it again";
  }
  const std::string lower = lower_without_leading_space(start);
  for (const KnownStart& known : kKnownStarts) {
    if (starts_with(lower, known.bytes)) return known.text;
  }
  if (starts_with(lower, "{")) {
    return "this is a JSON text, perhaps a server's error message or a model's config.json; give the .gguf file";
  }
  if (is_named_like_a_piece(file.path())) {
    return "this is a piece of a file cut by bytes; join the pieces in order with cat and open the result";
  }
  return "this is not a GGUF file: it starts with " + printable(start.substr(0, 4)) +
         " instead of 'GGUF'; check the path, or download the file again";
}

}  // namespace

void throw_not_gguf(const File& file) {
  std::array<char, 256> bytes{};
  const size_t size = static_cast<size_t>(std::min<uint64_t>(file.size(), bytes.size()));
  file.read_exact(0, size, reinterpret_cast<std::byte*>(bytes.data()));
  throw Error(ErrorCode::kModelFormat, printable(file.path()) + ": " + describe(file, {bytes.data(), size}));
}

}  // namespace expertree
