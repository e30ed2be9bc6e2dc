// What an allocation string from AReaL 0.3.2 on is made of, before it is known whether it makes sense.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/areal/grammars.hpp"

namespace oomplan::areal {

/// One part as written: `backend[name]:letters`, `[name]:letters`, `letters`, with `attn:...|ffn:...` for letters.
struct Link {
  std::string backend, name;  ///< "" where not written
  bool inference = false;
  Dims dims;  ///< of a hybrid: attention's
  std::optional<Dims> experts;
};

/// Groups joined by '+', their links by '|'.
struct Chain {
  std::vector<std::vector<Link>> groups;
  bool evaluation = false;  ///< `+eval` or `+cpu` stands at the end
  std::string why;          ///< why the text is not of the grammar; "" when it is
  std::string nearest;      ///< the text with a misspelt backend put right
};

Chain read_chain(std::string_view text, const Grammar&);

}  // namespace oomplan::areal
