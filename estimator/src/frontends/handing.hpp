// A program that a script or a command starts, as the front end gets it that reads its words (Dialect::take).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/launch/launch.hpp"
#include "frontends/placeholders.hpp"

namespace oomplan {

class Handing {
 public:
  /// REQUIRES: all of them outlive this. `salt`: makes what stands for unknown values differ.
  Handing(const launch::Launch& launch, const Source& asked, const launch::ScriptReading& reading, const std::string& salt);

  const launch::Launch& launch() const { return launch_; }
  /// The words of the program, torchrun and its like included, those that vanish left out.
  const std::vector<std::string>& words() const { return words_; }
  /// The number of the program's own first argument among them.
  std::size_t first_argument() const { return first_; }
  /// Is this flag among them, its value behind it or after a "="? Underscores count as hyphens.
  bool has(std::string_view flag) const;
  /// NAME=value of those variables that the program would see and that are `wanted`, by name or by a beginning that ends in "_".
  std::vector<std::string> variables(const std::vector<std::string_view>& wanted);
  /// The text of a file that its words name: one that the script writes, or that Source::open gives. nullopt: there is none.
  std::optional<std::string> text_of(const std::string& path) const;
  /// The framework, known and not read yet, whose configuration a text is; "": none.
  std::string other_framework(std::string_view text) const;
  /// Where the program is started.
  Place place() const;
  [[noreturn]] void fail(std::string found, std::string expected, std::string why) const;
  /// A source with all that was asked beside the command: overrides, GPU, release, environment of the whole.
  Source asked() const;
  /// Is the number of GPUs stated among the overrides?
  bool states_gpus() const;

  const Placeholders& placeholders() const { return placeholders_; }
  /// Words that nobody set: bash passes none.
  const std::vector<launch::Text>& gone() const { return gone_; }

 private:
  const launch::Launch& launch_;
  const Source& asked_;
  const launch::ScriptReading& reading_;
  Placeholders placeholders_;
  std::vector<std::string> words_;
  std::vector<launch::Text> gone_;
  std::size_t first_ = 0;
};

/// A command has one line: none is told.
Place shown_place(Place);
inline constexpr const char* kCommandName = "command line";

}  // namespace oomplan
