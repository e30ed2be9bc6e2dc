// peft's tables by model_type: what has adapters where nothing is said, and what release 4 called the experts of transformers.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

struct TargetDefault {
  std::string_view model_type, targets;  ///< apart by blanks, or an expression
  std::string_view since;                ///< first release of peft that was read with the row: earlier ones ask for targets
  bool expression = false;
  std::vector<std::string> entries() const;
};
/// nullptr: peft asks for targets.
const TargetDefault* default_targets(const Architecture&, AdapterKind);

/// Last words of release 4's modules, and the parameters that transformers 5 has in their place.
struct ExpertWords {
  std::array<std::pair<std::string_view, std::string_view>, 4> parts;
};
/// nullptr: peft converts nothing for the family.
const ExpertWords* expert_words(std::string_view family);

}  // namespace oomplan
