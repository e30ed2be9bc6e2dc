// From the facts of a configuration to roles and settings of a Job, and what of it is not supported yet.
#pragma once
#include "frontends/native.hpp"
#include "frontends/verl/images.hpp"
#include "frontends/verl/meaning.hpp"

namespace oomplan::verl {

/// What is said beside verl's own words.
struct Beside {
  std::string gpu;                   ///< kind of the GPUs; "": H100-80GB
  std::int64_t sequence_tokens = 0;  ///< of every sequence; 0: as many as the settings allow
  ImagesSaid images = {};
  std::string linear_attention = {};  ///< what runs it; "": verl's own installation
};
/// Problems are those of the text and what is not supported, by name.
NativeText job_of(const VerlText&, const VerlMeaning&, const Beside&, std::vector<Note>& notes);

}  // namespace oomplan::verl
