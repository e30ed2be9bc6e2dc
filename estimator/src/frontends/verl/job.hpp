// From the facts of a configuration to roles and settings of a Job, and what of it is not supported yet.
#pragma once
#include "frontends/native.hpp"
#include "frontends/verl/meaning.hpp"

namespace oomplan::verl {

/// `gpu`: kind of the GPUs; "": H100-80GB. Problems are those of the text and what is not supported, by name.
NativeText job_of(const VerlText&, const VerlMeaning&, const std::string& gpu, std::vector<Note>& notes);

}  // namespace oomplan::verl
