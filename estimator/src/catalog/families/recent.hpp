// Mixers that a dense family and its mixture of experts share.
#pragma once
#include "catalog/families/traits.hpp"

namespace oomplan {

/// As layer_types, or else full_attn_idxs, says. Shapes: transformers 5.23, models/lfm2/modeling_lfm2.py, Lfm2ShortConv.
Mixer short_conv_mixer(const Fields&, const Traits&, std::int64_t layer);

/// EXAONE's attention: a norm of each head; where some layers have a window, the others have no positions.
Mixer exaone_mixer(const Fields&, const Traits&, std::int64_t layer);

}  // namespace oomplan
