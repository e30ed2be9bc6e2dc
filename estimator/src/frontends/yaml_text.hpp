// Changes one value in a YAML text and nothing else: comments, order, quotes and line ends stay as their author left them.
#pragma once
#include <string>

#include "frontends/fact_value.hpp"

namespace oomplan::yaml {

/// The changed text, or `why` it cannot be changed so: the value spans lines, or stands behind an alias.
struct TextChange {
  std::string text;
  std::string why;  ///< "": done
  explicit operator bool() const { return why.empty(); }
};

/// The text with `value` at the dotted `path` ("actor.mb_spec.max_tokens_per_mb", "specs.0.env"). What stands there, be it a
/// literal or an interpolation, is replaced; a key that is missing gets a line of its own, first below its parent. REQUIRES:
/// `text` is YAML with a map at the top.
TextChange with_value(const std::string& text, const std::string& path, const FactValue& value);

/// A value as YAML on one line: `bfloat16`, `"fsdp:d4"`, `{a: 1}`. `flow`: inside brackets.
std::string written(const FactValue& value, bool flow = false);

}  // namespace oomplan::yaml
