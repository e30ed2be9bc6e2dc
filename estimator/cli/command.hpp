// A subcommand of the program: a row of the table in commands.cpp, and a function that reads the library and prints.
//
// Commands hold no arithmetic. They return the exit status or throw; main prints what they threw. Exit status: 0 fits (or
// done), 1 does not fit, 2 the input is wrong, 3 a defect of oomplan.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan::cli {

inline constexpr int kFits = 0, kDoesNotFit = 1, kWrongInput = 2, kDefect = 3;
inline constexpr int kInterrupted = 130;  ///< by Ctrl-C, as shells count: 128 + SIGINT

/// An option of a command. A flag has no `value`; otherwise it names what follows ("DIR").
struct OptionRow {
  std::string_view name;
  std::string_view value;
  std::string_view help;
};

/// A command line that was understood.
struct Call {
  std::vector<std::string> positional;
  std::map<std::string, std::string, std::less<>> options;  ///< flags have an empty value
  const Catalog* catalog = nullptr;
  TextStyle style;
  bool json = false;
  std::optional<std::size_t> behind;  ///< so many of `positional` stand behind `--`; nullopt: there is no `--`
  bool has(std::string_view option) const { return options.contains(option); }
  std::string_view text(std::string_view option) const;
  /// The option as a whole number within limits, `otherwise` when it is not given. Throws InputError.
  std::int64_t number(std::string_view option, std::int64_t least, std::int64_t most, std::int64_t otherwise) const;
  /// The option as a number from 0 to 1, likewise.
  double share(std::string_view option, double otherwise) const;
};

struct Command {
  std::string_view name;
  std::string_view usage;    ///< behind "oomplan <name> "
  std::string_view summary;  ///< one line
  std::string_view more;     ///< paragraphs and an example, for --help
  std::span<const OptionRow> options;
  std::size_t most_positional;  ///< further ones are refused
  int (*run)(const Call&);
};

/// All commands, in the order of `oomplan help`.
std::span<const Command> commands();
/// Options that every command takes.
std::span<const OptionRow> common_options();
/// The text of `oomplan help` and of `oomplan <command> --help`.
std::string overview();
std::string help_of(const Command&);

/// Understands what stands behind the command's name. Throws InputError with all that is wrong, nearest spellings included.
Call understand(const Command&, const std::vector<std::string>& arguments);

/// The problem of a word that is none of `valid`: "found command 'serch', expected one of ... (did you mean 'search'?)".
Problem unknown(std::string_view what, std::string_view word, const std::vector<std::string>& valid);
/// Writes to standard output. Throws InputError when that fails.
void print(std::string_view text);

int run_estimate(const Call&);
int run_check(const Call&);
int run_explain(const Call&);
int run_advise(const Call&);
int run_search(const Call&);
int run_read(const Call&);
int run_snapshot(const Call&);
int run_model(const Call&);
int run_models(const Call&);
int run_schema(const Call&);
int run_op(const Call&);
int run_serve(const Call&);
int run_gpus(const Call&);
int run_facts(const Call&);
int run_version(const Call&);
int run_help(const Call&);

}  // namespace oomplan::cli
