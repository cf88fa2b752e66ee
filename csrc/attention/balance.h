// Tasks of unequal size on many workers, each of which takes the next one when it is free.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <vector>

namespace tegula {

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

// When the last worker is done, relative to when all would be with the work spread evenly.
template <class Task>
double imbalance(const std::vector<Task>& tasks, int workers) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < workers; ++i) free_at.push(0);
  double total = 0, last = 0;
  for (const Task& task : tasks) {
    const double end = free_at.top() + task.cost;
    free_at.pop();
    free_at.push(end);
    total += task.cost;
    last = std::max(last, end);
  }
  return total > 0 ? last * workers / total : 1.0;
}

}  // namespace tegula
