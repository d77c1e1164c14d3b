#include "cpp/tensor/dtype.h"

#include "cpp/base/error.h"

namespace expertree {
namespace {

struct GgufType {
  int32_t number;
  const char* name;
  int32_t block_size;   // 0: withdrawn
  int32_t block_bytes;
};

constexpr GgufType kGgufTypes[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {4, "Q4_2", 0, 0},        {5, "Q4_3", 0, 0},        {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},
    {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},   {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},         {25, "I16", 1, 2},        {26, "I32", 1, 4},        {27, "I64", 1, 8},
    {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {31, "Q4_0_4_4", 0, 0},
    {32, "Q4_0_4_8", 0, 0},   {33, "Q4_0_8_8", 0, 0},   {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},
    {36, "IQ4_NL_4_4", 0, 0}, {37, "IQ4_NL_4_8", 0, 0}, {38, "IQ4_NL_8_8", 0, 0}, {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
};

constexpr DTypeInfo kSupported[] = {
    {DType::kF32, "F32", 1, 4, ActivationFormat::kF32},
    {DType::kF16, "F16", 1, 2, ActivationFormat::kF32},
    {DType::kBF16, "BF16", 1, 2, ActivationFormat::kF32},
    {DType::kQ4_0, "Q4_0", 32, 18, ActivationFormat::kQ8_32},
    {DType::kQ4_1, "Q4_1", 32, 20, ActivationFormat::kQ8_32},
    {DType::kQ5_0, "Q5_0", 32, 22, ActivationFormat::kQ8_32},
    {DType::kQ5_1, "Q5_1", 32, 24, ActivationFormat::kQ8_32},
    {DType::kQ8_0, "Q8_0", 32, 34, ActivationFormat::kQ8_32},
    {DType::kIQ4_NL, "IQ4_NL", 32, 18, ActivationFormat::kQ8_32},
    {DType::kMXFP4, "MXFP4", 32, 17, ActivationFormat::kQ8_32},
    {DType::kNVFP4, "NVFP4", 64, 36, ActivationFormat::kQ8_32},
    {DType::kQ2_K, "Q2_K", 256, 84, ActivationFormat::kQ8_256},
    {DType::kQ3_K, "Q3_K", 256, 110, ActivationFormat::kQ8_256},
    {DType::kQ4_K, "Q4_K", 256, 144, ActivationFormat::kQ8_256},
    {DType::kQ5_K, "Q5_K", 256, 176, ActivationFormat::kQ8_256},
    {DType::kQ6_K, "Q6_K", 256, 210, ActivationFormat::kQ8_256},
    {DType::kIQ1_S, "IQ1_S", 256, 50, ActivationFormat::kQ8_256},
    {DType::kIQ1_M, "IQ1_M", 256, 56, ActivationFormat::kQ8_256},
    {DType::kIQ2_XXS, "IQ2_XXS", 256, 66, ActivationFormat::kQ8_256},
    {DType::kIQ2_XS, "IQ2_XS", 256, 74, ActivationFormat::kQ8_256},
    {DType::kIQ2_S, "IQ2_S", 256, 82, ActivationFormat::kQ8_256},
    {DType::kIQ3_XXS, "IQ3_XXS", 256, 98, ActivationFormat::kQ8_256},
    {DType::kIQ3_S, "IQ3_S", 256, 110, ActivationFormat::kQ8_256},
    {DType::kIQ4_XS, "IQ4_XS", 256, 136, ActivationFormat::kQ8_256},
    {DType::kTQ1_0, "TQ1_0", 256, 54, ActivationFormat::kQ8_256},
    {DType::kTQ2_0, "TQ2_0", 256, 66, ActivationFormat::kQ8_256},
};

const GgufType* find_gguf_type(int32_t number) {
  for (const GgufType& type : kGgufTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

}  // namespace

const DTypeInfo* find_dtype(int32_t gguf_type) {
  for (const DTypeInfo& info : kSupported) {
    if (static_cast<int32_t>(info.dtype) == gguf_type) return &info;
  }
  return nullptr;
}

const DTypeInfo& dtype_info(DType dtype) {
  const DTypeInfo* info = find_dtype(static_cast<int32_t>(dtype));
  ET_CHECK(info != nullptr);
  return *info;
}

std::string gguf_type_name(int32_t gguf_type) {
  const GgufType* type = find_gguf_type(gguf_type);
  if (type == nullptr) return "unknown type " + std::to_string(gguf_type);
  if (type->block_size == 0) return std::string("withdrawn ") + type->name;
  return type->name;
}

bool gguf_type_layout(int32_t gguf_type, int32_t* block_size, int32_t* block_bytes) {
  const GgufType* type = find_gguf_type(gguf_type);
  if (type == nullptr || type->block_size == 0) return false;
  *block_size = type->block_size;
  *block_bytes = type->block_bytes;
  return true;
}

int64_t row_bytes(DType dtype, int64_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  ET_CHECK(n % info.block_size == 0);
  return n / info.block_size * info.block_bytes;
}

}  // namespace expertree
