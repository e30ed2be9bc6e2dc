#include "estimate/outliers.hpp"

#include <fmt/format.h>

namespace oomplan {

std::string outlier_assumption(const Role& role) {
  const QuantisedBase& base = role.trainer.lora.base;
  if (base.format != BaseFormat::int8) return {};
  if (base.outliers > 0)
    return fmt::format("{}: {} columns of every linear layer's input are taken to have outliers, as lora.base_outliers states",
                       role.name, base.outliers);
  return fmt::format(
      "{}: no linear layer's input is taken to have a number of 6 or more (an outlier); lora.base_outliers states how many of "
      "its "
      "columns have one{}",
      role.name, role.trainer.autocast ? ", which under autocast makes 16-bit outputs of 32-bit ones" : "");
}

}  // namespace oomplan
