// From the facts of a configuration to roles and settings of a Job, and what of it is not supported yet.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/images.hpp"
#include "frontends/native.hpp"
#include "frontends/oumi/meaning.hpp"

namespace oomplan::oumi {

/// What is said beside Oumi's own words.
struct Beside {
  std::string gpu;                   ///< kind of the GPUs; "": H100-80GB
  std::int64_t sequence_tokens = 0;  ///< of the longest sample; 0: as many as the settings allow
  /// Source::open.
  std::function<std::optional<std::string>(const std::string& path)> open = {};
  ImagesSaid images = {};
  const Catalog* catalog = nullptr;  ///< nullptr: facts alone are asked for
};
/// Problems are what is not supported, by name, and what is missing.
NativeText job_of(const OumiText&, const OumiMeaning&, const Beside&, std::vector<Note>& notes);

}  // namespace oomplan::oumi
