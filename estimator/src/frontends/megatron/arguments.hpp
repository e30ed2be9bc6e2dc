// Megatron's arguments by name, as its parser would leave them: what was given, and its defaults.
//
// Two ways in: the words of a command line, or a dict of the same names, which is what frameworks above Megatron (Relax, slime,
// verl, AReaL) hand on. Both collect everything that is wrong in Complaints, in the words of the one who wrote it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <oomplan/oomplan.hpp>

namespace oomplan::megatron {

/// What is wrong, and what the reader should know; places are flags.
struct Complaints {
  std::string file = "command line";
  std::vector<Problem> problems;
  std::vector<Note> notes;
  void add(std::string where, std::string found, std::string expected, std::string why, std::string near = {});
  void note(Note::Level, const std::string& where, std::string text);
};

class Arguments {
 public:
  bool given(std::string_view name) const;
  /// As it was written, or the flag's usual spelling: where a complaint about it belongs.
  std::string place(std::string_view name) const;
  /// The value; null where Megatron has None.
  const nlohmann::json& value(std::string_view name) const;
  bool has(std::string_view name) const;
  /// Python's truth of it.
  bool on(std::string_view name) const;
  std::optional<std::int64_t> whole(std::string_view name) const;
  std::int64_t whole_or(std::string_view name, std::int64_t otherwise) const { return whole(name).value_or(otherwise); }
  double number(std::string_view name) const;  ///< 0 where there is none
  std::string text(std::string_view name) const;
  /// A list, or the one value.
  std::vector<std::string> items(std::string_view name) const;

  void set(const std::string& name, const nlohmann::json& value, std::string written);

 private:
  struct Given {
    std::shared_ptr<const nlohmann::json> value;
    std::string written;
  };
  std::map<std::string, Given, std::less<>> given_;
};

/// Reads the words behind the script. A spelling that Megatron's parser would refuse (underscores, an abbreviation: it has
/// allow_abbrev=False) is read and told.
Arguments read_words(std::span<const std::string> words, Complaints&);
/// Reads {"tensor_model_parallel_size": 4, "bf16": true}; '-' counts as '_', null is the default.
Arguments read_dict(const nlohmann::json& arguments, Complaints&);

/// A whole number, or a list such as ([0]*3+[1]*58) spelt out (megatron/training/arguments.py moe_freq_type). nullopt: neither,
/// or longer than `most`.
std::optional<nlohmann::json> pattern_of(std::string_view text, std::size_t most = 65536);

}  // namespace oomplan::megatron
