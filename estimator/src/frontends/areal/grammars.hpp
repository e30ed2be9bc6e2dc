// The rows of AReaL's allocation grammars: which releases allow which letters, backends, separators and chains.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/areal/allocation.hpp"
#include "layout/dims.hpp"

namespace oomplan::areal {

struct Grammar {
  Era era;
  Parser parser;
  std::string_view first, last;  ///< releases
  std::string_view example;      ///< what a message shows as expected
  std::vector<std::string> inference;
  std::vector<std::string> trainers = {};  ///< that may be written; none: the parts of training have no prefix
  std::vector<std::string> placings = {};  ///< realhf's words in place of letters
  // realhf and lite: every letter once, no spaces
  std::string_view letters = "dpt";  ///< of the three degrees
  bool server_only = false;          ///< `sglang.d4p1t1` alone
  bool layout_first = false;         ///< text that starts with three degrees is training, whatever follows
  bool whole_text = false;           ///< nothing may follow the letters; context and expert letters exist
  // from ebnf on: any letter may be left out, spaces between the tokens; a letter that stands twice takes its last value
  bool dot = false;           ///< `sglang.` means `sglang:`
  bool names = false;         ///< `fsdp[actor]:`, chains of any length with `+` and `|`
  bool named_hybrid = false;  ///< `megatron[actor]:(attn:...|ffn:...)`
  bool evaluation = false;    ///< `+eval`, `+cpu` behind one part of inference
  bool infers = false;        ///< the backend of training may be left out
  bool fsdp_checked = true;   ///< FSDP with p or e is refused
  bool archon_pipeline = true;
  bool world_only = false;  ///< Part::world_only of FSDP
  bool expert_tensor_is_tensor = false;
  ExpertDefault experts = ExpertDefault::derived;
};

/// All rows, newest last.
const std::vector<Grammar>& grammars();
/// The row of a release. Nothing when the release has no such parser.
const Grammar* grammar_of(Release, Parser);

/// The text in the grammar of a row; "" where the row cannot say it.
std::string spelled(const Allocation&, const Grammar&);

/// What parsing gives: an allocation, or a reason and perhaps what was meant.
struct Parsed {
  std::optional<Allocation> allocation;
  std::string why;
  std::string nearest = {};
};
Parsed parse(std::string_view text, const Grammar&);
/// The two families of parsers: regular expressions (realhf, lite) and a grammar (from ebnf on).
Parsed parse_pattern(std::string_view text, const Grammar&);
Parsed parse_chain(std::string_view text, const Grammar&);

}  // namespace oomplan::areal
