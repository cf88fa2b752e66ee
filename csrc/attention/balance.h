// Tasks of unequal size on many workers, each of which takes the next one when it is free.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <vector>

namespace tegula {

// A plan is good enough when the last worker is done at most this much later than the average.
inline constexpr double kEven = 1.1;

// Large tasks first, so that small ones fill the gaps at the end. Tasks of nearly one size keep
// their order: neighbours in memory follow each other.
template <class Task>
void largest_first(std::vector<Task>& tasks) {
  constexpr double kLevels = 4;  // between a size and twice that
  const auto level = [](const Task& task) {
    return static_cast<int>(kLevels * std::log2(std::max(task.cost, 1.0)));
  };
  std::stable_sort(tasks.begin(), tasks.end(),
                   [&](const Task& a, const Task& b) { return level(a) > level(b); });
}

// Workers that take tasks in order: whoever is free first takes the next one.
class Workers {
 public:
  explicit Workers(int count) : count_(count) {
    for (int i = 0; i < count; ++i) free_at_.push(0);
  }

  // Returns when the task is done: not before `after`, when that is for which it waits.
  double take(double cost, double after = 0) {
    const double end = std::max(free_at_.top() + cost, after);
    free_at_.pop();
    free_at_.push(end);
    total_ += cost;
    last_ = std::max(last_, end);
    return end;
  }
  // When the last worker is done, relative to when all would be with the work spread evenly.
  double imbalance() const { return total_ > 0 ? last_ * count_ / total_ : 1.0; }

 private:
  int count_;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at_;
  double total_ = 0, last_ = 0;
};

template <class Task>
double imbalance_of(const std::vector<Task>& tasks, int workers) {
  Workers all(workers);
  for (const Task& task : tasks) all.take(task.cost);
  return all.imbalance();
}

}  // namespace tegula
