// What the decoder's files say about a mixer, whoever asks.
#pragma once
#include "catalog/architecture.hpp"

namespace oomplan {

/// A state in place of keys and values, made by a loop over the sequence.
bool keeps_state(const Mixer&);

}  // namespace oomplan
