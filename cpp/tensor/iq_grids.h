// Code books of the IQ formats: which groups of 8 (IQ1, IQ2) or 4 (IQ3) magnitudes a stored index stands for.
#pragma once

#include <cstdint>

namespace expertree {

// An entry is 16 bits, its low byte in [0][i] and its high byte in [1][i]. Element e of IQ1 and IQ2 is the place of its
// value in bits 2e and 2e + 1, element e of IQ3 in bits 4e .. 4e + 2.
extern const uint8_t kGridIQ2_XXS[2][256];
extern const uint8_t kGridIQ2_XS[2][512];
extern const uint8_t kGridIQ2_S[2][1024];
extern const uint8_t kGridIQ3_XXS[2][256];
extern const uint8_t kGridIQ3_S[2][512];
extern const uint8_t kGridIQ1[2][2048];

// The high bytes once more, for look-ups in registers. An entry's codes have an even number of ones, so that its low byte
// tells whether element 4 is 1 or 2, if it is either. But for that, the high bytes rise through 54 values, by one of them
// at most within four indices from a multiple of 4.
struct GridSteps {
  uint8_t quads[256];  // 4 times the place of the first's value, plus how many of the four have the next
  uint8_t values[64];  // by place; bits 0 and 1 are the other way round where the low byte has an odd number of ones
};
extern const GridSteps kStepsIQ2_S;

// The values, by place. IQ1 adds or subtracts 1/8 (kept as integers: 8 times the value).
constexpr int8_t kIQ2Values[4] = {8, 25, 43, 0};
constexpr int8_t kIQ3_XXSValues[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kIQ3_SValues[8] = {1, 3, 5, 7, 9, 11, 13, 15};
constexpr int8_t kIQ1Values[4] = {-8, 0, 8, 0};

// Eight signs from seven bits, bit e for element e: the eighth makes the number of minus signs even.
extern const uint8_t kEvenSigns[128];

}  // namespace expertree
