// What `oomplan model` shows: parameters by part, bytes a token leaves in the cache, layers by kind.
//
// Cache figures are those of a 16-bit cache on one GPU, nothing split: keys and values of attention layers, the latent of MLA
// layers, and for linear-attention and state-space layers the state of one request, which does not grow with its tokens.
#pragma once
#include <string>

#include "catalog/architecture.hpp"

namespace oomplan {

struct CacheFigures {
  std::int64_t per_token = 0;           ///< bytes, of layers that see every token
  std::int64_t per_token_windowed = 0;  ///< bytes, of layers that keep a window only; not in `per_token`
  std::int64_t per_request = 0;         ///< bytes of recurrent states (16-bit convolution, fp32 state)
};
CacheFigures cache_figures(const Architecture&);

std::string model_card_text(const Architecture&, bool colour);
/// Schema "oomplan.model/1". `with_parameters` adds every parameter tensor.
std::string model_card_json(const Architecture&, bool with_parameters);

}  // namespace oomplan
