// Every command-line flag of Megatron-LM 0.16.1 as a row: models/frameworks/megatron_flags.json, which is what Megatron's own
// parser says (benchmarks/oracle/megatron_flags.py), with a word on memory beside each.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace oomplan::megatron {

/// What stands behind a flag.
enum class FlagValue : std::uint8_t {
  whole,    ///< a whole number
  number,   ///< a number
  text,     ///< a word
  truth,    ///< Python's bool(): any word is true
  pattern,  ///< a whole number, or a Python list such as ([0]*3+[1]*58)
  on,       ///< nothing: it sets true
  off,      ///< nothing: it sets false
  toggle,   ///< nothing: --x sets true, --no-x false
};

struct Flag {
  std::vector<std::string> spellings;  ///< with dashes, the usual one first
  std::string name;                    ///< of the argument: "tensor_model_parallel_size"
  FlagValue value = FlagValue::text;
  std::string many;                                 ///< "": one value; "+", "*": a list; "3": so many
  std::shared_ptr<const nlohmann::json> otherwise;  ///< its default, never a null pointer
  std::vector<std::string> choices;
  std::string memory;  ///< "read"; what is not supported yet when it is not the default; "": no effect on a training step
};

/// All of them, in the order of Megatron's help. Read once.
const std::vector<Flag>& flags();
/// By spelling ("--bf16"); null when there is none.
const Flag* find_flag(std::string_view spelling);
/// By the argument's name; null when there is none.
const Flag* flag_named(std::string_view name);
/// The usual spelling of an argument's flag: "--bf16".
std::string spelling_of(std::string_view name);
bool takes_value(const Flag&);

inline constexpr std::string_view kVersion = "0.16.1";  ///< of Megatron-LM whose flags these are

}  // namespace oomplan::megatron
