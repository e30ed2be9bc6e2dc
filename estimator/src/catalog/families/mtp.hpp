// Multi-token prediction blocks of DeepSeek's shape: each is one more layer like the last, a projection 2h -> h and three norms.
#pragma once
#include "catalog/families/traits.hpp"

namespace oomplan {

/// num_nextn_predict_layers blocks, none when the key is absent, with copies of embedding and head (DeepSeek V3).
void read_deepseek_mtp(const Fields&, const Traits&, Architecture&);
/// The same, but one block when the key is absent (GLM-4.5: default of its configuration class).
void read_deepseek_mtp_once(const Fields&, const Traits&, Architecture&);
/// The same as the first, without the copies (GLM-5).
void read_deepseek_mtp_bare(const Fields&, const Traits&, Architecture&);

}  // namespace oomplan
