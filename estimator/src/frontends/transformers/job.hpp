// From the meaning of arguments to roles and settings of a Job, and what of it is not supported yet.
#pragma once
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/native.hpp"
#include "frontends/transformers/meaning.hpp"

namespace oomplan::transformers {

/// What is said beside the arguments.
struct Beside {
  std::string gpu;                   ///< kind of the GPUs; "": H100-80GB
  std::int64_t sequence_tokens = 0;  ///< of the longest sample; 0: as many as the arguments allow
};
/// Problems are what is not supported, by name, and what is missing.
NativeText job_of(const HfText&, const HfMeaning&, const Beside&, const Catalog&, std::vector<Note>& notes);

}  // namespace oomplan::transformers
