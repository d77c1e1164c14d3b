#include "cpp/io/gguf_reader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>

#include "cpp/base/error.h"
#include "cpp/io/gguf_parse.h"
#include "cpp/io/mapped_file.h"
#include "cpp/io/printable.h"

namespace expertree {

namespace {

[[noreturn]] void throw_not_first(const std::string& path, const GgufSplit& split) {
  const std::string prefix = gguf_split_prefix(path, split.no, split.count);
  const std::string first =
      (prefix.empty() ? "the one whose name ends in " : "") + printable(gguf_split_path(prefix, 0, split.count));
  throw Error(ErrorCode::kModelFormat, printable(path) + ": this is a split file part, number " +
                                           std::to_string(split.no + 1) + " of " + std::to_string(split.count) +
                                           "; open the first part, " + first);
}

[[noreturn]] void throw_wrong_name(const std::string& path, const GgufSplit& split) {
  throw Error(ErrorCode::kModelFormat,
              printable(path) + ": this is a split file part, number 1 of " + std::to_string(split.count) +
                  ", but its name does not end in " + printable(gguf_split_path("", 0, split.count)) +
                  ", so the other parts cannot be found; give the parts their names back. If parts were joined with "
                  "cat: download them anew, or join them with llama-gguf-split --merge");
}

std::unique_ptr<File> open_part(const FileOpener& opener, const std::string& path, int64_t no, int64_t count) {
  try {
    return opener(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidRequest) throw;
    throw Error(ErrorCode::kModelFormat, "part " + std::to_string(no + 1) + " of " + std::to_string(count) +
                                             " of the split model is missing: " + error.what() +
                                             "; all parts must be in one folder: download it there");
  }
}

void check_part(const File& file, const GgufSplit& split, int64_t no, const GgufSplit& first) {
  if (split.count != first.count || split.no != no) {
    throw Error(ErrorCode::kModelFormat,
                printable(file.path()) + ": part " + std::to_string(no + 1) + " of " + std::to_string(first.count) +
                    " is expected here but the file says it is part " + std::to_string(split.no + 1) + " of " +
                    std::to_string(split.count) + "; download all parts of one model anew");
  }
  if (split.n_tensors != first.n_tensors) {
    throw Error(ErrorCode::kModelFormat, printable(file.path()) + ": split.tensors.count is " +
                                             std::to_string(split.n_tensors) + " but the first part says " +
                                             std::to_string(first.n_tensors) +
                                             "; the parts are of different models: download all of one model anew");
  }
}

}  // namespace

struct GgufReader::Impl {
  GgufPart first;
  std::vector<std::unique_ptr<File>> files;
  std::vector<uint32_t> tensors_order;  // indices of tensors_, sorted by name
  std::mutex mapping;                   // guards `mapped`
  std::vector<std::unique_ptr<MappedFile>> mapped;  // made when asked for
};

GgufReader::GgufReader(const std::string& path) : GgufReader(path, open_file) {}

GgufReader::GgufReader(const std::string& path, const FileOpener& opener) : impl_(std::make_unique<Impl>()) {
  try {
    open(path, opener);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kOutOfMemory, printable(path) +
                                             ": no memory left to read the model's metadata; close other "
                                             "programs");
  }
}

GgufReader::~GgufReader() = default;
GgufReader::GgufReader(GgufReader&&) noexcept = default;
GgufReader& GgufReader::operator=(GgufReader&&) noexcept = default;

void GgufReader::open(const std::string& path, const FileOpener& opener) {
  paths_.push_back(path);
  impl_->files.push_back(opener(path));
  impl_->first = parse_gguf(*impl_->files[0]);
  version_ = impl_->first.version;
  alignment_ = impl_->first.alignment;
  tensors_ = std::move(impl_->first.tensors);
  open_other_parts(opener);
  index_tensors();
  for (const std::unique_ptr<File>& file : impl_->files) file_bytes_ += file->size();
  impl_->mapped.resize(impl_->files.size());
}

const std::vector<std::string>& GgufReader::keys() const { return impl_->first.keys; }

void GgufReader::open_other_parts(const FileOpener& opener) {
  const GgufSplit first = read_gguf_split(*impl_->files[0], impl_->first);
  if (first.count == 1) return;
  if (first.no != 0) throw_not_first(paths_[0], first);
  const std::string prefix = gguf_split_prefix(paths_[0], 0, first.count);
  if (prefix.empty()) throw_wrong_name(paths_[0], first);

  for (int64_t no = 1; no < first.count; ++no) {
    paths_.push_back(gguf_split_path(prefix, no, first.count));
    impl_->files.push_back(open_part(opener, paths_.back(), no, first.count));
    const File& file = *impl_->files.back();
    GgufPart part = parse_gguf(file);
    check_part(file, read_gguf_split(file, part), no, first);
    for (GgufTensor& tensor : part.tensors) {
      tensor.file_index = static_cast<int32_t>(no);
      tensors_.push_back(std::move(tensor));
    }
    if (tensors_.size() > kMaxGgufTensors) break;
  }
  if (static_cast<int64_t>(tensors_.size()) != first.n_tensors || tensors_.size() > kMaxGgufTensors) {
    throw Error(ErrorCode::kModelFormat, printable(paths_[0]) + ": split.tensors.count is " +
                                             std::to_string(first.n_tensors) + " but the parts hold " +
                                             std::to_string(tensors_.size()) +
                                             " tensors; download all parts of one model anew");
  }
}

void GgufReader::index_tensors() {
  std::vector<uint32_t>& order = impl_->tensors_order;
  order.resize(tensors_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& a = tensors_[order[i - 1]];
    const GgufTensor& b = tensors_[order[i]];
    if (a.name != b.name) continue;
    const std::string& path_a = paths_[static_cast<size_t>(a.file_index)];
    const std::string& path_b = paths_[static_cast<size_t>(b.file_index)];
    throw Error(ErrorCode::kModelFormat, printable(path_a) + ": tensor " + printable(a.name) + " is there twice" +
                                             (path_a == path_b ? "" : ", again in " + printable(path_b)) +
                                             "; the file is damaged: download it again or report it to its maker");
  }
}

const GgufValue* GgufReader::find(std::string_view key) const { return impl_->first.find(key); }

const GgufTensor* GgufReader::find_tensor(std::string_view name) const {
  const std::vector<uint32_t>& order = impl_->tensors_order;
  const auto at = std::lower_bound(order.begin(), order.end(), name,
                                   [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != order.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

const File& GgufReader::file(int32_t file_index) const {
  ET_CHECK(file_index >= 0 && static_cast<size_t>(file_index) < impl_->files.size());
  return *impl_->files[static_cast<size_t>(file_index)];
}

const std::byte* GgufReader::tensor_data(const GgufTensor& tensor) const {
  const File& source = file(tensor.file_index);
  const std::lock_guard<std::mutex> lock(impl_->mapping);
  std::unique_ptr<MappedFile>& mapped = impl_->mapped[static_cast<size_t>(tensor.file_index)];
  if (mapped == nullptr) mapped = std::make_unique<MappedFile>(source);
  return mapped->data() + tensor.offset;
}

void GgufReader::read_tensor(const GgufTensor& tensor, uint64_t offset, uint64_t size, std::byte* out) const {
  ET_CHECK(offset <= tensor.size_bytes && size <= tensor.size_bytes - offset);
  file(tensor.file_index).read_exact(tensor.offset + offset, size, out);
}

}  // namespace expertree
