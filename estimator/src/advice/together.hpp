// Changes that are enough together where none is alone, and the hardware on which a job would fit where they are not either.
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
  Bytes gain = 0;        ///< of the last one alone
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
  /// `cost` of a job in which `unknown` changes have no model. REQUIRES: all outlive this.
  Combiner(const Job& job, std::vector<Option> options, const Catalog& catalog, TapeStore& store,
           std::function<double(const Job&, int unknown)> cost);

  /// Pairs whose levels fit, cheapest first; triples where there is none. Values are as mild as the others let them be.
  const std::vector<Combination>& fitting() const { return fitting_; }
  /// With every value as strong as it can be; where nothing fits what lacks least.
  const Combination& nearest() const { return nearest_; }
  /// The same with the strongest values, in case the replay refuses the milder ones.
  Combination strongest(const Combination&) const;
  const Option& option(std::size_t i) const { return options_[i]; }

 private:
  struct Level {
    Bytes short_of = 0;
    bool fits = false;
    double cost = 0;
  };
  std::optional<Level> level(const Settings&, int unknown) const;
  void consider(const std::vector<std::size_t>&);
  Settings joined(const std::vector<std::size_t>&) const;
  int unknown(const std::vector<std::size_t>&) const;
  Combination milder(Combination) const;

  const Job& job_;
  std::vector<Option> options_;  ///< strongest first
  const Catalog& catalog_;
  TapeStore& store_;
  std::function<double(const Job&, int)> cost_;
  std::vector<std::pair<double, Combination>> found_;
  std::vector<Combination> fitting_;
  Combination nearest_;
};

}  // namespace oomplan
