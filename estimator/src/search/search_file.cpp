// search() of a file: candidates in its own words, and none that it cannot say.
#include <array>
#include <map>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "frontends/rewrite.hpp"
#include "job/knobs.hpp"
#include "job/workload.hpp"
#include "search/admit.hpp"
#include "search/as_it_stands.hpp"
#include "search/fixed_keys.hpp"
#include "units/interruption.hpp"

namespace oomplan {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Every knob in which two jobs with the same roles differ.
Settings difference(const Job& from, const Job& to) {
  Settings out;
  const auto look = [&](const std::string& key) {
    if (get(from, key) != get(to, key)) out.emplace_back(key, get(to, key));
  };
  for (const auto& key : keys_of(nullptr))
    if (key != "model" && key != "framework") look(key);
  for (const auto& role : from.roles)
    for (const auto& key : keys_of(&role)) look(role.name + "." + key);
  return out;
}

/// Axes of a search with a value that shows whether a file can move them.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kMoved{{{"recompute", "none"},
                                                                               {"recompute", "full"},
                                                                               {"optimizer_form", "fused"},
                                                                               {"offload", "[parameters, optimizer]"},
                                                                               {"memory_efficient_load", "true"},
                                                                               {"precision.storage", "bf16"},
                                                                               {"max_running_requests", "64"},
                                                                               {"kv", "fp8"}}};

class FileSearch {
 public:
  FileSearch(const Source& source, const Catalog& catalog) : words_(source, catalog), job_(words_.reading().job) {}

  Found run(Space space, int keep, const Catalog& catalog, const std::stop_token& stop) {
    if (words_.native()) return search(job_, space, keep, &catalog, stop);
    check_gpus(space);
    check_fixed(job_, space, [&](const std::string& key) { return words_.key_of(key); });
    hold(space);
    Found found;
    until_interrupted(stop,
                      [&] { found = search_admitted(job_, space, keep, catalog, stop, [&](Candidate& c) { return admit(c); }); });
    found.interrupted = stop.stop_requested();
    for (auto& c : found.best) {
      Patch patch = words_.patch(said_.at(c.overrides));
      c.job_file = std::move(patch.file);
      c.diff = std::move(patch.diff);
    }
    for (auto& limit : found.limits) in_words_of_the_file(limit);
    put_as_it_stands(found, job_, space, catalog);
    return found;
  }

 private:
  void in_words_of_the_file(Limit& limit) const {
    const std::string key = words_.key_of(limit.axis);
    if (key == limit.axis || limit.axis.empty()) return;
    if (limit.text.starts_with(limit.axis)) limit.text.replace(0, limit.axis.size(), key);
    limit.axis = key;
  }
  void check_gpus(const Space& space) const {
    if (!space.gpus) return;
    const Rewrite words = words_.rewrite({{"gpus", fmt::format("{} x {}", *space.gpus, job_.cluster.gpu)}});
    if (!words.why.empty()) throw InputError(Problem{{{}, 0, 0, "--gpus"}, fmt::format("{}", *space.gpus), {}, {}, words.why});
  }
  /// Keys of the file that stay, in our words; and what no key of the file moves.
  void hold(Space& space) const {
    const auto asked = space.fixed;
    const auto consider = [&](const std::string& key) {
      for (const auto& held : asked)
        if (held != key && words_.key_of(key) == held) space.fixed.push_back(key);
    };
    for (const auto& key : keys_of(nullptr)) consider(key);
    for (const auto& role : job_.roles)
      for (const auto& key : keys_of(&role)) consider(role.name + "." + key);
    for (const auto& role : job_.roles)
      for (const auto& [knob, value] : kMoved) {
        const std::string key = role.name + "." + std::string(knob);
        if (find_knob(job_, key).knob != nullptr && !words_.rewrite({{key, std::string(value)}}).why.empty())
          space.fixed.push_back(key);
      }
  }

  bool admit(Candidate& c) {
    Rewrite words = words_.rewrite(difference(job_, c.job));
    if (!words.why.empty()) return false;
    try {
      Job read = words_.job_with(words);
      if (!(workload_of(read) == workload_of(c.job))) return false;  // the file leaves open what now follows from something else
      c.job = std::move(read);
    } catch (const InputError&) {
      return false;
    }
    words.text.reset();  // some hundred kB, and most candidates are never patched
    c.changes = words.changes;
    c.overrides = words.overrides;
    said_[words.overrides] = std::move(words);
    return true;
  }

  FileWords words_;
  const Job& job_;
  std::map<std::vector<std::string>, Rewrite> said_;
};

}  // namespace

Found search(const Source& source, const Space& space, int keep, const Catalog* given, std::stop_token stop) {
  const Catalog& catalog = given != nullptr ? *given : Catalog::builtin();
  return FileSearch(source, catalog).run(space, keep, catalog, stop);
}

}  // namespace oomplan
