#include "advice/together.hpp"

#include <algorithm>
#include <numeric>

namespace oomplan {
namespace {

constexpr std::size_t kMostOptions = 8;  ///< 28 pairs and 56 triples, each judged by its levels
constexpr Bytes kWorthTrying = kMiB;

}  // namespace

Combiner::Combiner(const Job& job, std::vector<Option> options, const std::vector<std::string>& breaking, const Judge& judge,
                   std::function<double(const Job&, int unknown)> cost)
    : job_(job), judge_(judge), cost_(std::move(cost)) {
  keep_strongest(std::move(options), breaking);
  const std::size_t n = options_.size();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + 1; j < n; ++j) consider({i, j});
  if (found_.empty())
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = i + 1; j < n; ++j)
        for (std::size_t k = j + 1; k < n; ++k) consider({i, j, k});
  std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [cost_of_it, c] : found_) fitting_.push_back(std::move(c));
}

std::optional<Combiner::Gains> Combiner::gains_of(const Option& option, const std::vector<std::string>& breaking) const {
  const Changed changed = change_natively(job_, option.values.back(), judge_.catalog);
  if (!changed.job) return std::nullopt;
  try {
    const Estimate e = judge_.levels(*changed.job);
    Gains out;
    for (const auto& role : breaking) out.push_back(judge_.lacks(judge_.before.levels, role) - judge_.lacks(e, role));
    return out;
  } catch (const InputError&) {  // not supported yet
    return std::nullopt;
  }
}

void Combiner::keep_strongest(std::vector<Option> options, const std::vector<std::string>& breaking) {
  std::vector<std::pair<Gains, std::size_t>> all;
  for (std::size_t i = 0; i < options.size(); ++i)
    if (auto gains = gains_of(options[i], breaking)) all.emplace_back(*std::move(gains), i);
  const auto most = [](const Gains& gains) { return gains.empty() ? 0 : *std::max_element(gains.begin(), gains.end()); };
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return most(a.first) > most(b.first); });
  for (auto& [gains, i] : all) {
    if (options_.size() == kMostOptions) break;
    options_.push_back(std::move(options[i]));
    gains_.push_back(std::move(gains));
  }
}

bool Combiner::helps_everywhere(const std::vector<std::size_t>& chosen) const {
  const std::size_t roles = gains_.empty() ? 0 : gains_.front().size();
  for (std::size_t r = 0; r < roles; ++r)
    if (std::none_of(chosen.begin(), chosen.end(), [&](std::size_t i) { return gains_[i][r] >= kWorthTrying; })) return false;
  return true;
}

Settings Combiner::joined(const std::vector<std::size_t>& chosen) const {
  Settings out;
  for (const std::size_t i : chosen) out.insert(out.end(), options_[i].values.back().begin(), options_[i].values.back().end());
  return out;
}
int Combiner::unknown(const std::vector<std::size_t>& chosen) const {
  return static_cast<int>(std::count_if(chosen.begin(), chosen.end(), [&](std::size_t i) { return !options_[i].modelled; }));
}

std::optional<Combiner::Level> Combiner::level(const Settings& settings, int unknown_changes) const {
  const Changed changed = change_natively(job_, settings, judge_.catalog);
  if (!changed.job) return std::nullopt;
  try {
    const Estimate e = judge_.levels(*changed.job);
    return Level{judge_.lacks(e), e.fits(), e.fits() ? cost_(*changed.job, unknown_changes) : 0};
  } catch (const InputError&) {  // not supported yet
    return std::nullopt;
  }
}

void Combiner::consider(const std::vector<std::size_t>& chosen) {
  if (!helps_everywhere(chosen)) return;
  Combination c{chosen, joined(chosen), 0, false};
  const auto found = level(c.settings, unknown(chosen));
  if (!found) return;
  c.short_of = found->short_of;
  c.fits = found->fits;
  if (nearest_.options.empty() || std::pair(!c.fits, c.short_of) < std::pair(!nearest_.fits, nearest_.short_of)) nearest_ = c;
  if (c.fits) found_.emplace_back(found->cost, std::move(c));
}

Combination Combiner::milder(Combination c) const {
  std::vector<Settings> values;
  for (const std::size_t i : c.options) values.push_back(options_[i].values.back());
  const auto all = [&values] {
    Settings out;
    for (const Settings& value : values) out.insert(out.end(), value.begin(), value.end());
    return out;
  };
  for (std::size_t at = 0; at < c.options.size(); ++at) {
    const auto& mild_to_strong = options_[c.options[at]].values;
    for (const Settings& value : mild_to_strong) {
      values[at] = value;
      if (&value == &mild_to_strong.back()) break;
      if (const auto found = level(all(), 0); found && found->fits) break;
    }
  }
  c.settings = all();
  return c;
}

}  // namespace oomplan
