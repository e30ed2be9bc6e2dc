#include "advice/together.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr std::size_t kMostOptions = 8;  ///< 28 pairs and 56 triples, each judged by its levels

}  // namespace

Combiner::Combiner(const Job& job, std::vector<Option> options, const Catalog& catalog, TapeStore& store,
                   std::function<double(const Job&, int unknown)> cost)
    : job_(job), options_(std::move(options)), catalog_(catalog), store_(store), cost_(std::move(cost)) {
  std::stable_sort(options_.begin(), options_.end(), [](const Option& a, const Option& b) { return a.gain > b.gain; });
  if (options_.size() > kMostOptions) options_.resize(kMostOptions);
  const std::size_t n = options_.size();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = i + 1; j < n; ++j) consider({i, j});
  if (found_.empty())
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = i + 1; j < n; ++j)
        for (std::size_t k = j + 1; k < n; ++k) consider({i, j, k});
  std::stable_sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [cost_of_it, c] : found_) fitting_.push_back(milder(c));
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
  const Changed changed = change_natively(job_, settings, catalog_);
  if (!changed.job) return std::nullopt;
  try {
    const Estimate e = assemble(*changed.job, catalog_, store_).estimate;
    return Level{excess(e), e.fits(), e.fits() ? cost_(*changed.job, unknown_changes) : 0};
  } catch (const InputError&) {  // not supported yet
    return std::nullopt;
  }
}

void Combiner::consider(const std::vector<std::size_t>& chosen) {
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

Combination Combiner::strongest(const Combination& c) const {
  Combination out = c;
  out.settings = joined(c.options);
  return out;
}

}  // namespace oomplan
