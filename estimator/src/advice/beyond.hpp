// Where no change of a file is enough alone: changes that are enough together, and the hardware that would be.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "advice/together.hpp"
#include "advice/trial.hpp"
#include "frontends/rewrite.hpp"

namespace oomplan {

/// What it needs of who advises. All are called with jobs of the file.
struct Means {
  Changer change;                                              ///< in the file's words
  std::function<bool(const Job&)> sound;                       ///< nothing is wrong with it that is not wrong with the file
  std::function<std::optional<double>(const Job&)> step_time;  ///< where that of the file is 1
  /// Of a step that takes so long (nullopt: as long as today), with so many changes of which nobody knows the time.
  std::function<double(const Job&, std::optional<double> time, int unknown)> cost;
  std::function<Settings(std::int64_t times)> with_gpus;  ///< so many times the GPUs for training; empty: they share a server's
};

/// The roles of the worst moments of GPUs that are too small, the worst first, each once.
std::vector<std::string> breaking_roles(const Estimate&, const Judge&);

class Beyond {
 public:
  /// REQUIRES: all outlive this.
  Beyond(const Job& job, const FileWords& words, Judge& judge, const Means& means)
      : job_(job), words_(words), judge_(judge), means_(means) {}

  /// Fills Advice::together with the cheapest pair or triple that the replay confirms, larger_gpu and more_gpus with the least
  /// hardware that would do: for the job as it is where changes are enough, otherwise also with those that come nearest.
  void go_on(std::vector<Option>, Advice&) const;

 private:
  /// Settings, and how the report names them.
  using Way = std::pair<Settings, std::string>;
  std::optional<Together> confirmed(const Combiner&, const Combination&) const;
  std::optional<Together> cheapest(const Combiner&) const;
  std::vector<Way> ways(const Combination& nearest) const;
  bool fits(const Job&) const;
  void larger_gpu(const std::vector<Way>&, Advice&) const;
  void more_gpus(const std::vector<Way>&, Advice&) const;

  const Job& job_;
  const FileWords& words_;
  Judge& judge_;
  const Means& means_;
};

}  // namespace oomplan
