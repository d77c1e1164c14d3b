// From a drafter's score of a node to the probability that the target accepts it, learned from verified nodes.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace expertree {

// Platt's form (1999) on the score's log odds, with a term of its own for each depth: a drafter's confidence wears off
// along a path at another rate than the target's agreement.
//   A = sigmoid(slope * logit(S) + offset + deviation of the depth), at first A = S.
// Fitted by Newton steps on the logistic loss, old nodes fading. What the depths deviate by on average belongs to the
// offset; so a depth that was not seen follows the others. Not thread-safe.
class AcceptanceFit {
 public:
  static constexpr int32_t kDepths = 8;  // deeper ones share the last

  // depth: 1 for the root's children.
  double probability(float score, int32_t depth) const;
  void observe(float score, int32_t depth, bool accepted);
  // A step whose draft was not worth verifying, as far as is known here: what was seen fades, and the map goes back to
  // A = S. Nothing else would ever correct a fit that a few unlucky nodes made too low to verify any.
  void forget();

  // No node that scores less has that probability, however deep it is.
  float least_score(double probability) const;
  // {slope, offset, deviations}, for the next session. An earlier fit is a better start than A = S, and counts no more
  // than that.
  static constexpr size_t kStateSize = 2 + kDepths;
  std::vector<double> state() const;
  void restore(std::span<const double> state);

  double slope() const { return slope_; }
  double offset() const { return offset_; }
  double deviation(int32_t depth) const { return depths_[index(depth)].deviation; }

 private:
  static constexpr double kKeep = 0.9995;        // some thousand nodes
  static constexpr double kPriorNodes = 24.0;    // that the start counts for
  static constexpr double kRidge = 0.5;          // never less certain than this

  struct Depth {
    double deviation = 0.0;
    double evidence = 0.0;  // faded curvature of the loss
  };
  static size_t index(int32_t depth);
  void center();

  double slope_ = 1.0;
  double offset_ = 0.0;
  // Faded curvature of the loss.
  double ss_ = kPriorNodes;
  double so_ = 0.0;
  double oo_ = kPriorNodes * 0.25;
  std::array<Depth, kDepths> depths_;
};

}  // namespace expertree
