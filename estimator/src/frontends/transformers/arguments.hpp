// The words behind a script as HfArgumentParser takes them (transformers/hf_argparser.py, 5.24; argparse of Python 3).
#pragma once
#include <string>
#include <vector>

#include <oomplan/units/errors.hpp>

#include "frontends/compose/node.hpp"
#include "frontends/transformers/schema.hpp"

namespace oomplan::transformers {

/// A flag that no class of the script has.
struct OtherFlag {
  std::string name;                 ///< as it was typed, without a value
  std::vector<std::string> values;  ///< words up to the next flag
};

struct Arguments {
  compose::Node given;            ///< a map by the names of fields; what stands twice has its last value
  std::vector<OtherFlag> others;  ///< in order
  std::vector<Problem> problems;  ///< argparse would stop
};
/// "key=value" without hyphens sets a field, too: what is said beside a command.
Arguments read_arguments(const std::vector<std::string>& words, const Classes&, const std::string& trainer);

/// The text of a flag that a class has as a dict: '{"use_reentrant": false}'. Nothing: no JSON.
compose::Node dict_of(const std::string& text, const Origin&, std::vector<Problem>&);

}  // namespace oomplan::transformers
