// What experts of a pass take against what was predicted.
#pragma once

namespace expertree {

// seconds = waiting + scale * predicted, by least squares over passes, older ones fading. The scale is what wrong
// predictions of experts and unknown costs come to. The wait is what a pass spends however many experts it reads: a disk
// gives the first one of a layer after some time and the others soon after, so that one more costs less than the mean.
// Both are held to what was believed before until passes of different sizes say otherwise.
class CorrectionFit {
 public:
  void restore(double scale, double wait_seconds);
  void add(double predicted, double seconds);
  double scale() const { return scale_; }
  double wait_seconds() const { return wait_; }

 private:
  double scale_ = 1.0;
  double wait_ = 0.0;
  double prior_scale_ = 1.0;
  double prior_wait_ = 0.0;
  double prior_square_ = 0.0;  // of predicted, that the prior counts for
  double n_ = 0.0;             // faded sums over passes
  double x_ = 0.0, xx_ = 0.0;  // predicted
  double y_ = 0.0, xy_ = 0.0;  // what was more than the prior said
};

}  // namespace expertree
