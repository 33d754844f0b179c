// SPDX-License-Identifier: Apache-2.0
// CTC prefix beam search over the frames of one sequence, on the CPU. All sums are in double.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "nativeops/devices/math.h"

namespace nativeops::prefix_search {

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr int64_t kNone = -1;

// Sequences of labels as a tree: a number for each that ever was in the beam, so that two ways to
// the same sequence meet even if it was given up in between.
class Prefixes {
 public:
  struct Node {
    int64_t parent, label, length;
  };
  Prefixes() { nodes_.push_back({kNone, kNone, 0}); }

  const Node& operator[](int64_t node) const { return nodes_[static_cast<size_t>(node)]; }
  int64_t count() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t extended(int64_t node, int64_t label, int64_t labels) {
    const auto [found, fresh] = children_.try_emplace(node * labels + label, count());
    if (fresh) nodes_.push_back({node, label, (*this)[node].length + 1});
    return found->second;
  }

 private:
  std::vector<Node> nodes_;
  std::unordered_map<int64_t, int64_t> children_;
};

// The frames at which the labels of a path begin, the last one first.
class Times {
 public:
  struct Time {
    int64_t before, frame;
  };
  int64_t add(int64_t before, int64_t frame) {
    times_.push_back({before, frame});
    return static_cast<int64_t>(times_.size()) - 1;
  }
  const Time& operator[](int64_t time) const { return times_[static_cast<size_t>(time)]; }

 private:
  std::vector<Time> times_;
};

// The paths of one prefix that end in a blank, or in its last label: log of their sum, the best one
// among them, and when the labels of that one begin.
struct Ways {
  double sum = kNever, best = kNever;
  int64_t times = kNone;
};
struct Hypothesis {
  int64_t prefix;
  Ways blank, label;

  double sum() const { return logaddexp(blank.sum, label.sum); }
  const Ways& better() const { return blank.best >= label.best ? blank : label; }
};

struct Options {
  int64_t width, blank;
  double threshold, bonus;  // log-probability that a new label must have; score for each label
};

class Search {
 public:
  explicit Search(const Options& options) : options_(options) {
    beam_.push_back({0, {0.0, 0.0, kNone}, {}});
  }

  // One frame: log_prob of each of the labels.
  void step(const double* log_prob, int64_t labels, int64_t frame) {
    choose_labels(log_prob, labels);
    stay(log_prob);
    merge(log_prob, frame);
    propose(log_prob, labels);
    select(log_prob, labels, frame);
  }

  // The hypotheses, the best first.
  const std::vector<Hypothesis>& beam() const { return beam_; }
  double score(const Hypothesis& h) const { return h.sum() + bonus(prefixes_[h.prefix].length); }
  const Prefixes& prefixes() const { return prefixes_; }
  const Times& times() const { return times_; }

 private:
  // What may be in the beam next: a hypothesis that stays, or one extended by a label. `order` is
  // the place of the label among those of the frame, the most probable first.
  struct Candidate {
    double score;
    int64_t from, order;
  };

  // An extension that is in the beam already.
  struct Taken {
    int64_t from, label;
  };

  double bonus(int64_t length) const {
    return options_.bonus == 0 ? 0.0 : options_.bonus * static_cast<double>(length);
  }
  const Prefixes::Node& node(const Hypothesis& h) const { return prefixes_[h.prefix]; }
  // The paths that a label may follow: after the same label only those that end in a blank.
  double sum_before(const Hypothesis& h, int64_t label) const {
    return label == node(h).label ? h.blank.sum : h.sum();
  }
  const Ways& best_before(const Hypothesis& h, int64_t label) const {
    return label == node(h).label ? h.blank : h.better();
  }

  // No more than `width` new prefixes of one hypothesis can survive, and at most as many are in the
  // beam already: more labels than that need not be looked at.
  void choose_labels(const double* log_prob, int64_t labels) {
    order_.clear();
    for (int64_t c = 0; c < labels; ++c) {
      const bool possible = log_prob[c] >= options_.threshold && log_prob[c] > kNever;
      if (c != options_.blank && possible) order_.push_back(c);
    }
    const auto wanted = std::min<int64_t>(static_cast<int64_t>(order_.size()),
                                          2 * static_cast<int64_t>(beam_.size()) + options_.width);
    auto better = [&](int64_t a, int64_t b) {
      return log_prob[a] != log_prob[b] ? log_prob[a] > log_prob[b] : a < b;
    };
    std::partial_sort(order_.begin(), order_.begin() + wanted, order_.end(), better);
    order_.resize(static_cast<size_t>(wanted));
  }

  void stay(const double* log_prob) {
    next_.clear();
    for (const Hypothesis& h : beam_) {
      Hypothesis same{h.prefix, {}, {}};
      const double p_blank = log_prob[options_.blank];
      same.blank = {h.sum() + p_blank, h.better().best + p_blank, h.better().times};
      if (const int64_t last = node(h).label; last != kNone) {
        same.label = {h.label.sum + log_prob[last], h.label.best + log_prob[last], h.label.times};
      }
      next_.push_back(same);
    }
  }

  // Paths from a prefix of the beam to its extension, where that is in the beam, too.
  void merge(const double* log_prob, int64_t frame) {
    place_.resize(static_cast<size_t>(prefixes_.count()), kNone);
    for (size_t r = 0; r < beam_.size(); ++r) place_[beam_[r].prefix] = static_cast<int64_t>(r);
    taken_.clear();
    for (Hypothesis& longer : next_) {
      const auto [parent, label, length] = node(longer);
      const int64_t from = parent == kNone ? kNone : place_[parent];
      if (from == kNone) continue;
      taken_.push_back({from, label});
      if (log_prob[label] < options_.threshold) continue;
      const Hypothesis& h = beam_[from];
      const double best = best_before(h, label).best + log_prob[label];
      if (best > longer.label.best) {
        longer.label.times = times_.add(best_before(h, label).times, frame);
        longer.label.best = best;
      }
      longer.label.sum = logaddexp(longer.label.sum, sum_before(h, label) + log_prob[label]);
    }
    for (const Hypothesis& h : beam_) place_[h.prefix] = kNone;
    std::sort(taken_.begin(), taken_.end(),
              [](const Taken& a, const Taken& b) { return a.from < b.from; });
  }
  // Marks the labels that extend hypothesis r to one that is in the beam already, whose paths
  // `merge` has added there; `taken` is the first of those, and is moved behind them.
  void mark_taken(int64_t r, std::vector<Taken>::const_iterator& taken) {
    for (; taken != taken_.end() && taken->from == r; ++taken) mark_[taken->label] = r;
  }

  void propose(const double* log_prob, int64_t labels) {
    candidates_.clear();
    mark_.assign(static_cast<size_t>(labels), kNone);
    auto taken = taken_.cbegin();
    double least = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < next_.size(); ++r) {
      const double own = score(next_[r]);
      least = std::min(least, own);
      if (own > kNever) candidates_.push_back({own, static_cast<int64_t>(r), kNone});
    }
    // With a full beam, who is worse than all that stay cannot come in.
    const bool full = static_cast<int64_t>(candidates_.size()) >= options_.width;
    for (size_t r = 0; r < beam_.size(); ++r) {
      const Hypothesis& h = beam_[r];
      mark_taken(static_cast<int64_t>(r), taken);
      const double more = bonus(node(h).length + 1), sum = h.sum();
      for (size_t k = 0; k < order_.size(); ++k) {
        const int64_t label = order_[k];
        if (full && sum + log_prob[label] + more < least) break;
        const double own = sum_before(h, label) + log_prob[label] + more;
        const bool is_taken = mark_[label] == static_cast<int64_t>(r);
        if (own == kNever || (full && own < least) || is_taken) continue;
        candidates_.push_back({own, static_cast<int64_t>(r), static_cast<int64_t>(k)});
      }
    }
  }

  // Ties: who stays comes first, then the better origin, then the more probable label.
  void select(const double* log_prob, int64_t labels, int64_t frame) {
    auto better = [](const Candidate& a, const Candidate& b) {
      if (a.score != b.score) return a.score > b.score;
      if ((a.order == kNone) != (b.order == kNone)) return a.order == kNone;
      return a.from != b.from ? a.from < b.from : a.order < b.order;
    };
    const auto count = std::min<int64_t>(options_.width, static_cast<int64_t>(candidates_.size()));
    std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(), better);
    std::vector<Hypothesis> chosen;
    for (int64_t i = 0; i < count; ++i) {
      const Candidate& c = candidates_[static_cast<size_t>(i)];
      if (c.order == kNone) {
        chosen.push_back(next_[c.from]);
        continue;
      }
      const Hypothesis& h = beam_[c.from];
      const int64_t label = order_[c.order];
      const Ways& before = best_before(h, label);
      Hypothesis longer{prefixes_.extended(h.prefix, label, labels), {}, {}};
      longer.label = {sum_before(h, label) + log_prob[label], before.best + log_prob[label],
                      times_.add(before.times, frame)};
      chosen.push_back(longer);
    }
    beam_ = std::move(chosen);
  }

  const Options options_;
  Prefixes prefixes_;
  Times times_;
  std::vector<Hypothesis> beam_, next_;
  std::vector<int64_t> order_, place_, mark_;
  std::vector<Candidate> candidates_;
  std::vector<Taken> taken_;
};

}  // namespace nativeops::prefix_search
