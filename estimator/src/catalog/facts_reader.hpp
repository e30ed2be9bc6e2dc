// Reads models/engines/*.json into rows of Facts.
//
//   {"engine": "vllm", "facts": [
//     {"fact": "graph_bytes", "versions": ">=0.11,<0.21", "gpu": ["sm90"], "when": {"tensor_parallel": ">=2", "moe": false},
//      "value": 1048576, "spread": 0, "measurements": 9, "source": "...", "kind": "measured"}]}
//
// "versions", "gpu", "when", "spread" and "measurements" may be left out: any version, any GPU, no condition, 0, 0. A value of
// true counts as 1, false as 0. Unknown keys, ranges that cannot be parsed and rows without a source are errors.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "catalog/facts.hpp"

namespace oomplan {

/// Throws InputError.
std::vector<Fact> read_facts(std::string_view text, const std::string& file);

}  // namespace oomplan
