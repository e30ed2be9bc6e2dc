// verl's words for rewards up to 0.7.0, in the releases whose main() still takes them over.
#pragma once
#include "frontends/verl/read.hpp"

namespace oomplan::verl {

/// Puts what they say in place of the new words' values. Each value keeps its place.
void take_over_reward_words(VerlText&);

}  // namespace oomplan::verl
