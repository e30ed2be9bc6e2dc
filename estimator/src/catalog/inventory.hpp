// Collects Parameter rows while walking an Architecture. Used by parameters.cpp, mixer_parameters.cpp and tower_parameters.cpp.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "catalog/names.hpp"
#include "catalog/parameters.hpp"

namespace oomplan {

/// A name behind its prefix.
inline std::string joined(std::string_view a, std::string_view b) { return std::string(a) + std::string(b); }

class Inventory {
 public:
  explicit Inventory(const Names& n) : names(n) {}

  /// Where the following rows belong.
  void at(std::string prefix, std::int64_t run, std::int64_t layers) {
    prefix_ = std::move(prefix);
    run_ = run;
    layers_ = layers;
  }
  /// Rows of MTP and tower are counted as that part, whatever they are inside of it.
  void within(ParameterPart part) { part_ = part; }

  void tensor(std::string_view name, std::vector<std::int64_t> shape, ParameterPart, SplitAxis = SplitAxis::none,
              std::int64_t copies = 1);
  /// Of no gradient.
  void unlearned(ParameterKind, std::string_view name, std::vector<std::int64_t> shape, ParameterPart = ParameterPart::other);
  /// A matrix [out, in] named "<name>.weight" with, if wanted, "<name>.bias" of [out].
  void linear(std::string_view name, std::int64_t in, std::int64_t out, bool bias, ParameterPart, SplitAxis,
              std::int64_t copies = 1);
  void norm(std::string_view name, NormKind, std::int64_t width, ParameterPart = ParameterPart::norm);

  const Names& names;
  std::vector<Parameter> rows;

 private:
  std::string prefix_;
  std::int64_t run_ = -1, layers_ = 1;
  ParameterPart part_ = ParameterPart::other;  // `other`: no override
};

/// The rows of one mixer; h is the model's hidden size, `n` the norm kind of the layer.
void mixer_parameters(const Mixer&, std::int64_t h, NormKind n, Inventory&);
void tower_parameters(const Tower&, std::int64_t h, Inventory&);

}  // namespace oomplan
