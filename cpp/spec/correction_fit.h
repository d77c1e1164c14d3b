// What experts of a pass take against what was predicted.
#pragma once

#include <array>
#include <cstddef>

namespace expertree {

// seconds = waiting + by_row * (rows - 1) + scale * predicted, by least squares over passes, older ones fading; none below
// nothing, and the scale within a factor of 8. The scale is what unknown costs come to, and how much the predictions tell. What each row adds whichever it is
// is what they leave out: a poor predictor lets a node look as if it used its parent's experts. The wait is what a pass
// spends however many experts it reads: a disk gives the first one of a layer after some time and the others soon after,
// so that one more costs less than the mean. All are held to what was believed before until passes of different sizes say
// otherwise.
class CorrectionFit {
 public:
  void restore(double scale, double wait_seconds, double row_seconds);
  // n_more: rows beside the first.
  void add(double predicted, double n_more, double seconds);
  double scale() const { return value_[kScale]; }
  double wait_seconds() const { return value_[kWait]; }
  double row_seconds() const { return value_[kRow]; }

 private:
  enum : size_t { kScale, kWait, kRow, kTerms };
  using Terms = std::array<double, kTerms>;

  void solve(const std::array<bool, kTerms>& free, Terms* value) const;
  double loss(const Terms& value) const;

  Terms value_ = {1.0, 0.0, 0.0};
  Terms prior_ = {1.0, 0.0, 0.0};
  Terms trust_ = {};  // squares that the prior counts for
  std::array<Terms, kTerms> xx_ = {};  // faded sums over passes, of {predicted, 1, further rows}
  Terms xy_ = {};
};

}  // namespace expertree
