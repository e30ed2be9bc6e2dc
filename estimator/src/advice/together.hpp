// Changes that are enough together where none is alone.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "advice/trial.hpp"

namespace oomplan {

/// One knob that helps, with its values from mild to strong; the last one gains most.
struct Option {
  std::vector<Settings> values;
  std::string text;      ///< what it does and costs
  bool modelled = true;  ///< the step's time with it is known
};

/// A pair or triple whose levels fit, or the one that lacks least.
struct Combination {
  std::vector<std::size_t> options;
  Settings settings;
  Bytes short_of = 0;  ///< by levels: what is lacking, or less than nothing
  bool fits = false;   ///< by levels
};

class Combiner {
 public:
  /// `breaking`: the roles of the worst moments of GPUs that are too small. Combinations without an option for each of them are
  /// not looked at. `cost` of a job in which `unknown` changes have no model. REQUIRES: all outlive this.
  Combiner(const Job& job, std::vector<Option> options, const std::vector<std::string>& breaking, const Judge&,
           std::function<double(const Job&, int unknown)> cost);

  /// Pairs whose levels fit, cheapest first; triples where there is none. Every value is as strong as it can be.
  const std::vector<Combination>& fitting() const { return fitting_; }
  /// Of the same strength; where nothing fits what lacks least.
  const Combination& nearest() const { return nearest_; }
  /// One that fits, each value as mild as the others let it be.
  Combination milder(Combination) const;
  const Option& option(std::size_t i) const { return options_[i]; }
  int unknown(const std::vector<std::size_t>&) const;

 private:
  struct Level {
    Bytes short_of = 0;
    bool fits = false;
    double cost = 0;
  };
  /// What an option saves on the GPUs of each breaking role.
  using Gains = std::vector<Bytes>;
  void keep_strongest(std::vector<Option>, const std::vector<std::string>& breaking);
  std::optional<Gains> gains_of(const Option&, const std::vector<std::string>& breaking) const;
  bool helps_everywhere(const std::vector<std::size_t>&) const;
  std::optional<Level> level(const Settings&, int unknown) const;
  void consider(const std::vector<std::size_t>&);
  Settings joined(const std::vector<std::size_t>&) const;

  const Job& job_;
  std::vector<Option> options_;  ///< strongest first
  std::vector<Gains> gains_;     ///< of options
  const Judge& judge_;
  std::function<double(const Job&, int)> cost_;
  std::vector<std::pair<double, Combination>> found_;
  std::vector<Combination> fitting_;
  Combination nearest_;
};

}  // namespace oomplan
