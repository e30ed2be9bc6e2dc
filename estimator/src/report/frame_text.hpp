// A place in a recorded program, as tables show it.
#pragma once
#include <string>

#include "snapshot/snapshot.hpp"

namespace oomplan {

/// "job/model.py:31 mlp"; "not recorded" without a frame. Printable.
std::string frame_text(const snapshot::Frame*);

}  // namespace oomplan
