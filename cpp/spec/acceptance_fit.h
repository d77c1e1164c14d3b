// From a drafter's score of a node to the probability that the target accepts it, learned from verified nodes.
#pragma once

#include <vector>

namespace expertree {

// Platt's form (1999) on the score's log odds: A = sigmoid(slope * logit(S) + offset), at first A = S. Fitted by Newton
// steps on the logistic loss, old nodes fading. Not thread-safe.
class AcceptanceFit {
 public:
  double probability(float score) const;
  void observe(float score, bool accepted);

  // The score that is mapped to a probability.
  float score(double probability) const;
  // {slope, offset}, for the next session. An earlier fit is a better start than A = S, and counts no more than that.
  std::vector<double> state() const { return {slope_, offset_}; }
  void restore(double slope, double offset);

  double slope() const { return slope_; }
  double offset() const { return offset_; }

 private:
  static constexpr double kKeep = 0.9995;        // some thousand nodes
  static constexpr double kPriorNodes = 8.0;     // that the start counts for
  static constexpr double kRidge = 0.5;          // never less certain than this

  double slope_ = 1.0;
  double offset_ = 0.0;
  // Faded curvature of the loss.
  double ss_ = kPriorNodes;
  double so_ = 0.0;
  double oo_ = kPriorNodes * 0.25;
};

}  // namespace expertree
