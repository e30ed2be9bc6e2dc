// What another process of a GPU holds, in words.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// "kv cache".
std::string category_words(Category);
/// Largest first, no part of it empty; "in no live tensor" is what its allocator keeps for later. They add up to the whole.
std::vector<std::pair<std::string, Bytes>> parts_of(const ProcessShare&);
/// "rollout (kv cache 47.71 GiB, weights 14.30 GiB) and ref (context 522.24 MiB)": every process with the largest of its tensors.
std::string processes_text(const std::vector<ProcessShare>&);

}  // namespace oomplan
