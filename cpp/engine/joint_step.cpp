#include "cpp/engine/joint_step.h"

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "cpp/base/clock.h"
#include "cpp/base/error.h"
#include "cpp/engine/call_profile.h"
#include "cpp/engine/pass_experts.h"
#include "cpp/engine/session_step.h"

namespace expertree {
namespace {

constexpr int kShareRounds = 2;

using Steps = std::vector<SessionStep*>;

void check_sessions(std::span<Session* const> sessions, int64_t max_rows) {
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::kInvalidRequest, why); };
  const auto n = std::ssize(sessions);
  if (n < 1 || n > kMostSessions) {
    refuse("a step of " + std::to_string(n) + " sessions; expected 1 to " + std::to_string(kMostSessions));
  }
  if (max_rows < n) {
    refuse("a pass of at most " + std::to_string(max_rows) + " rows for " + std::to_string(n) +
           " sessions; each needs one");
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (&sessions[i]->model() != &sessions[0]->model()) refuse("the sessions are of different models; step them apart");
    if (std::ranges::count(sessions, sessions[i]) > 1) refuse("the same session was given twice for one step");
  }
}

bool has_tree(SessionStep* step) { return step->runs() && step->record().tree.size() > 0; }

// All but one of them.
SharedPass others_of(const Steps& steps, const SessionStep* one) {
  SharedPass pass;
  for (SessionStep* step : steps) {
    if (step != one && step->runs()) pass.add(step->shared_rows());
  }
  return pass;
}

// Each session in turn chooses against what the others have chosen: an expert that one of them pays for costs the others
// nothing but its rows. A second turn lets the first ones see what the last ones took.
void choose_together(const Steps& steps) {
  const bool share = steps.size() > 1;
  const bool any = std::ranges::any_of(steps, has_tree);
  for (SessionStep* step : steps) {
    if (has_tree(step) || (any && share)) step->predict();
  }
  for (int round = 0; round < (share ? kShareRounds : 1); ++round) {
    for (SessionStep* step : steps) {
      if (has_tree(step) && (round == 0 || step->may_choose_again())) step->choose(others_of(steps, step));
    }
  }
}

// Takes away the nodes of least score, whichever session's they are, until the pass has no more than max_rows.
void keep_to_budget(const Steps& steps, int64_t max_rows) {
  struct Node {
    float score;
    SessionStep* step;
    int32_t node;
  };
  std::vector<Node> nodes;
  int64_t n_rows = 0;
  for (SessionStep* step : steps) {
    if (!step->runs()) continue;
    n_rows += step->n_rows();
    for (const int32_t v : step->record().selected) {
      // No more than the parent's, whatever the drafter said, so that children go first.
      const TokenTree& tree = step->record().tree;
      float score = tree.scores[static_cast<size_t>(v)];
      for (int32_t u = tree.parents[static_cast<size_t>(v)]; u >= 0; u = tree.parents[static_cast<size_t>(u)]) {
        score = std::min(score, tree.scores[static_cast<size_t>(u)]);
      }
      nodes.push_back({score, step, v});
    }
  }
  if (n_rows <= max_rows) return;
  std::ranges::stable_sort(
      nodes, [](const Node& a, const Node& b) { return a.score != b.score ? a.score < b.score : a.node > b.node; });
  for (size_t i = 0; n_rows > max_rows; ++i, --n_rows) std::erase(nodes[i].step->record().selected, nodes[i].node);
}

void run_rows(Model& model, const Steps& steps, bool routing, bool alone) {
  std::vector<SequencePass> sequences;
  for (SessionStep* step : steps) {
    if (!step->runs()) continue;
    if (const std::optional<SequencePass> sequence = step->prepare(routing, alone)) sequences.push_back(*sequence);
  }
  if (!sequences.empty()) model.forward(sequences);
}

void roll_back(const Steps& steps) {
  for (SessionStep* step : steps) {
    if (step->runs()) step->roll_back();
  }
}

// Runs the rows of all sessions. A pass that fails is made again for each session by itself, so that the error meets the
// one that it belongs to. False: that was so.
bool run_pass(Model& model, const Steps& steps, bool routing) {
  const bool together = steps.size() > 1;
  // What failed, with `part` rolled back; nullptr: nothing. Errors that are nobody's in particular end the whole step.
  const auto attempt = [&](const Steps& part) {
    std::exception_ptr error;
    try {
      run_rows(model, part, routing, part.size() == 1);
    } catch (const Error&) {
      error = std::current_exception();
    } catch (const std::bad_alloc&) {
      error = std::current_exception();
    } catch (...) {
      roll_back(steps);
      throw;
    }
    if (error) roll_back(part);
    return error;
  };
  const std::exception_ptr error = attempt(steps);
  if (!error) return true;
  if (!together) steps[0]->fail(error);
  for (SessionStep* step : steps) {
    if (!together || !step->runs()) continue;
    if (const std::exception_ptr own = attempt({step})) step->fail(own);
  }
  return false;
}

PagerStats pager_stats(const Model& model) {
  return model.experts() == nullptr ? PagerStats{} : model.experts()->stats();
}

// The verified trees are looked at together, then kept one by one.
void settle_pass(const Steps& steps, PassExperts& experts, PassRecord pass, int64_t pass_us) {
  Steps ran;
  for (SessionStep* step : steps) {
    if (step->runs()) step->verify();
    if (step->runs()) ran.push_back(step);
  }
  std::vector<int64_t> n_own;
  for (SessionStep* step : ran) {
    pass.n_rows += step->n_rows();
    pass.n_expert_rows += std::ssize(step->result().expert_ids);
    n_own.push_back(experts.add(step->result().expert_ids, step->n_rows()));
    step->record().n_experts = n_own.back();
  }
  pass.n_sequences = std::ssize(ran);
  pass.n_experts = experts.n_experts();
  pass.all_misses = experts.misses();
  for (size_t i = 0; i < ran.size(); ++i) {
    PassRecord own = pass;
    const ForwardResult& result = ran[i]->result();
    if (Speculation* speculation = ran[i]->speculation()) {
      std::vector<int32_t> all(static_cast<size_t>(ran[i]->n_rows()));
      std::iota(all.begin(), all.end(), 0);
      own.misses = experts.misses(result.expert_ids, ran[i]->n_rows(), all);
      own.kept_misses = experts.misses(result.expert_ids, ran[i]->n_rows(), ran[i]->kept_rows());
      double sum = 0.0;
      double mine = 0.0;
      for (size_t j = 0; j < ran.size(); ++j) {
        const double seconds =
            speculation->cost().alone_seconds(ran[j]->n_rows(), n_own[j], std::ssize(ran[j]->result().expert_ids));
        sum += seconds;
        if (i == j) mine = seconds;
      }
      own.share = ran.size() > 1 && sum > 0.0 ? mine / sum : 1.0;
    }
    ran[i]->finish(own, pass_us);
  }
}

}  // namespace

std::vector<SessionOutcome> step_together(std::span<Session* const> sessions, std::span<const StepRequest> requests,
                                          int64_t max_rows) {
  check_sessions(sessions, max_rows);
  ET_CHECK(sessions.size() == requests.size());
  CallProfile profile(sessions[0]->model());
  std::vector<std::unique_ptr<SessionStep>> owned;
  Steps steps;
  for (size_t i = 0; i < sessions.size(); ++i) {
    owned.push_back(std::make_unique<SessionStep>(*sessions[i], requests[i], profile));
  }
  for (const auto& step : owned) {
    step->begin();
    if (step->runs()) steps.push_back(step.get());
  }
  if (!steps.empty()) {
    Model& model = sessions[0]->model();
    choose_together(steps);
    keep_to_budget(steps, max_rows);
    const bool counts = steps.size() > 1 || steps[0]->speculation() != nullptr;
    const bool known = std::ranges::none_of(steps, [](SessionStep* step) { return step->record().predicted.empty(); });
    for (SessionStep* step : steps) {
      if (step->runs()) step->settle(others_of(steps, step), known || steps.size() == 1);
    }
    PassRecord pass;
    pass.before = pager_stats(model);
    PassExperts experts(model, counts);
    const int64_t start = now_us();
    pass.is_typical = run_pass(model, steps, counts && model.n_moe_layers() > 0);
    const int64_t pass_us = now_us() - start;
    pass.after = pager_stats(model);
    settle_pass(steps, experts, pass, pass_us);
  }
  profile.close();
  std::vector<SessionOutcome> outcomes;
  for (const auto& step : owned) outcomes.push_back({step->take_record(), step->error()});
  return outcomes;
}

}  // namespace expertree
