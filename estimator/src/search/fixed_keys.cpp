#include "search/fixed_keys.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "job/knobs.hpp"

namespace oomplan {
namespace {

/// Ours, with and without the role's name, and the file's.
std::vector<std::string> keys_that_hold(const Job& job, const std::function<std::string(const std::string&)>& word_of) {
  std::vector<std::string> out;
  const auto add = [&](const std::string& key) {
    if (!key.empty() && std::find(out.begin(), out.end(), key) == out.end()) out.push_back(key);
  };
  const auto take = [&](const std::string& key) {
    add(key);
    if (word_of) add(word_of(key));
  };
  for (const auto& key : keys_of(nullptr)) take(key);
  for (const auto& role : job.roles)
    for (const auto& key : keys_of(&role)) {
      add(key);
      take(role.name + "." + key);
    }
  return out;
}

}  // namespace

void check_fixed(const Job& job, const Space& space, const std::function<std::string(const std::string&)>& word_of) {
  if (space.fixed.empty()) return;
  const std::vector<std::string> keys = keys_that_hold(job, word_of);
  if (space.fixed.size() > keys.size())
    throw InputError(Problem{{"", 0, 0, "fixed"},
                             fmt::format("{} keys", space.fixed.size()),
                             fmt::format("at most {}, as many as the job has", keys.size()),
                             {},
                             {}});
  std::vector<Problem> problems;
  for (const auto& fixed : space.fixed)
    if (std::find(keys.begin(), keys.end(), fixed) == keys.end())
      problems.push_back(Problem{{"", 0, 0, "fixed"},
                                 fmt::format("'{}'", fixed),
                                 "a key of the job to hold, such as layout",
                                 nearest_key(fixed, keys),
                                 ""});
  if (!problems.empty()) throw InputError(problems);
}

}  // namespace oomplan
