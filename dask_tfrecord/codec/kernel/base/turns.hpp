// Divides turns among several sources by weights, such that no source is ever a whole turn ahead or late.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tfr {

// The sum of the weights, and the number of sources. Below these limits, no product overflows.
constexpr int64_t kMaxWeights = int64_t{1} << 40;
constexpr size_t kMaxSources = 32767;

// floor((first + turns * more) / step), computed without a division for each turn.
class Steps {
 public:
  Steps(int64_t first, int64_t more, int64_t step)
      : step_(step), more_(more / step), rest_more_(more % step), value_(first / step), rest_(first % step) {
    if (rest_ < 0) {
      rest_ += step;
      --value_;
    }
  }

  int64_t value() const { return value_; }

  void advance() {
    rest_ += rest_more_;
    const bool carry = rest_ >= step_;
    rest_ -= carry ? step_ : 0;
    value_ += more_ + (carry ? 1 : 0);
  }

 private:
  int64_t step_, more_, rest_more_, value_, rest_;
};

// Chooses a source for each of the next `count` turns. `deficits` contains, for each source, the turns that it should
// have had by its weight, minus the turns that it had, times the sum of all weights. They sum to 0, and are updated.
// Returns null, or a static text that says what is wrong.
//
// This is Tijdeman's algorithm for the chairman assignment problem (R. Tijdeman, Discrete Mathematics 32, 1980), for k
// sources. A source may be chosen once it would be at most 1 - 1 / (2k - 2) turns ahead, and must be chosen before it
// is further behind than that. Each turn goes to the allowed source with the earliest deadline. If the deficits are 0
// or come from an earlier call, then no source misses its deadline.
inline const char* choose_turns(const int64_t* weights, int64_t* deficits, size_t sources, int16_t* chosen,
                                size_t count) {
  if (!sources || sources > kMaxSources) return "the number of sources is not between 1 and 32767";
  int64_t total = 0;
  int64_t sum = 0;
  for (size_t i = 0; i < sources; ++i) {
    if (weights[i] <= 0 || weights[i] > kMaxWeights - total) return "the weights are not positive, or too large";
    total += weights[i];
  }
  for (size_t i = 0; i < sources; ++i) {
    if (deficits[i] <= -total || deficits[i] >= total) return "a deficit is too large";
    sum += deficits[i];
  }
  if (sum) return "the deficits do not sum to 0";
  const int64_t parts = std::max<int64_t>(1, 2 * static_cast<int64_t>(sources) - 2);
  std::vector<Steps> first_turns, last_turns;  // the turns in which each source may be chosen next
  std::vector<int64_t> from, due;              // their values
  std::vector<uint64_t> turns(sources);
  for (size_t i = 0; i < sources; ++i) {
    const int64_t step = parts * weights[i];
    const int64_t ahead = parts * (deficits[i] + weights[i]);
    first_turns.emplace_back(total - ahead + step - 1, parts * total, step);
    last_turns.emplace_back((parts - 1) * total - ahead + step, parts * total, step);
    from.push_back(first_turns[i].value());
    due.push_back(last_turns[i].value());
  }
  for (size_t turn = 0; turn < count; ++turn) {
    const auto now = static_cast<int64_t>(turn);
    size_t best = sources;
    int64_t best_due = INT64_MAX;
    for (size_t i = 0; i < sources; ++i) {
      const bool is_better = from[i] <= now && due[i] < best_due;
      best = is_better ? i : best;
      best_due = is_better ? due[i] : best_due;
    }
    if (best_due < now || best == sources) return "the deficits do not come from an earlier call";
    chosen[turn] = static_cast<int16_t>(best);
    ++turns[best];
    first_turns[best].advance();
    last_turns[best].advance();
    from[best] = first_turns[best].value();
    due[best] = last_turns[best].value();
  }
  for (size_t i = 0; i < sources; ++i) {  // the products may overflow, but the result does not
    const uint64_t more = static_cast<uint64_t>(weights[i]) * count - static_cast<uint64_t>(total) * turns[i];
    deficits[i] = static_cast<int64_t>(static_cast<uint64_t>(deficits[i]) + more);
  }
  return nullptr;
}

}  // namespace tfr
