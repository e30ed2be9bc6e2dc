// The reader of scripts. Internal to the files of this folder: expand_*.cpp turn words into texts, run_*.cpp follow commands,
// builtins.cpp and programs.cpp know what programs do that change nothing outside of the script.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/launch/arithmetic.hpp"
#include "frontends/launch/budget.hpp"
#include "frontends/launch/parse.hpp"
#include "frontends/launch/script.hpp"
#include "frontends/launch/state.hpp"

namespace oomplan::launch {

struct Unwrapped;

/// How a command ended. A program outside is taken to succeed, where nothing asks whether it did.
struct Status {
  int code = 0;
  bool presumed = false;                 ///< of a program outside: 0 unless it fails
  std::optional<char32_t> unknown = {};  ///< nobody can say; the unit says why
  bool known() const { return !unknown && !presumed; }
  bool success() const { return code == 0; }
};

/// Where a command reads from.
struct Input {
  Text text;
  std::size_t at = 0;
};
using Sink = std::shared_ptr<Text>;  ///< nullptr: nowhere
struct Streams {
  std::shared_ptr<Input> in;  ///< nullptr: the terminal
  std::map<int, Sink> out;
};

/// A word after expansion.
struct Field {
  Text text;
  bool kept = false;  ///< had quotes: stays although it is empty
};

class Evaluator {
 public:
  explicit Evaluator(const ScriptInput&);
  ScriptReading run();

 private:
  using Texts = std::vector<Text>;
  enum class Flow : std::uint8_t { on, next, out_of_loop, from_function, discarded, ended };

  // unknowns and notes (evaluator.cpp)
  char32_t unknown(Unknown::Kind, std::string name, std::string why = {});
  Text unknown_text(Unknown::Kind kind, std::string name, std::string why = {}) {
    return Text(1, unknown(kind, std::move(name), std::move(why)));
  }
  bool is_unset(char32_t unit) const { return is_unknown(unit) && unknowns_[index_of(unit)].kind == Unknown::Kind::unset; }
  /// As bash takes it: variables that nobody set are empty. Those are remembered: a decision may rest on them.
  Text as_bash(const Text&);
  std::optional<char32_t> first_unknown(const Text&) const;
  std::string shown(const Text&) const;  ///< for messages: unknowns as ${NAME}
  void note(Note::Level, std::string text);
  Place here() const { return {file_, line_, 0, {}}; }
  const Script& keep(std::shared_ptr<const Script> script) { return *scripts_.emplace_back(std::move(script)); }
  void run_text(const std::string& text, const std::string& name, int first_line = 1, bool is_file = true);

  // variables (variables.cpp)
  Text value_of(const std::string& name);
  std::optional<Text> value_if_set(const std::string& name);
  std::optional<Text> special(const std::string& name);
  std::optional<Text> element_if_set(const std::string& name, const Word& subscript);
  std::optional<Text> element_if_set(const std::string& name, const std::string& subscript);
  Texts elements_of(const std::string& name, bool keys);
  bool is_array(const std::string& name);
  Variable& variable_for_writing(const std::string& name);
  void set(const std::string& name, Text value);
  void set_element(const std::string& name, const std::string& subscript, Text value, bool append);
  /// `target`: the variable, where it is not simply the one of that name. Asked for when the value is known.
  void assign(const Assignment&, const std::function<Variable&()>& target = {});
  void store(Variable&, const std::string& name, Text value);
  void assign_array(const Assignment&, const std::function<Variable&()>& target);
  void unset(const std::string& name);
  void export_variable(const std::string& name);
  std::map<std::string, Text> exported() const;
  Text unset_text(const std::string& name);

  // expansion (expand.cpp, expand_parameter.cpp)
  std::vector<Field> fields_of(const std::vector<Word>&);
  void expand_word(const Word&, std::vector<Field>&);
  Text joined_text(const Word&);    ///< one text, without splitting
  Text assigned_text(const Word&);  ///< of an assignment
  Text pattern_text(const Word&);   ///< with quoted units marked
  void add_pieces(const std::vector<Piece>&, std::vector<Field>&, bool quoted, bool split);
  void add_piece(const Piece&, std::vector<Field>&, bool quoted, bool split);
  void add_text(std::vector<Field>&, const Text&, bool quoted, bool split);
  void add_parameter(const Parameter&, std::vector<Field>&, bool quoted, bool split);
  void add_list(const Texts&, char all, std::vector<Field>&, bool quoted, bool split);
  Text tilde(const Text&);
  void split(const Field&, std::vector<Field>&);
  Text separators();
  Text parameter_text(const Parameter&);
  std::optional<Text> parameter_value(const Parameter&);
  Texts parameter_list(const Parameter&);
  Text changed(const Parameter&, Text value);
  Text with_match(const Parameter&, const Text& by, const Text& match) const;
  Text replaced(const Parameter&, const Text& value);
  Text substring(const Parameter&, const Text& value);
  Text letters(const Parameter&, const Text& value);
  Text transformed(const Parameter&, const Text& value);
  Text substitution(const Script&, const std::string& written);
  Text arithmetic_text(const std::vector<Piece>&);
  /// `decides`: of a condition, where a name that nobody set is 0 as in bash. Throws NeedsUnknown and NoArithmetic.
  std::int64_t calculated(const Text&, bool decides = false);
  std::int64_t index_for(const std::string& subscript);

  // commands (run.cpp, run_compound.cpp)
  Status run(const Script&);
  Status run(const AndOr&);
  Status run(const Pipeline&);
  Status run_pipes(const Pipeline&);
  Status run(const Command&);
  Status run_kind(const Command&);
  Status simple(const Command&);
  Status execute(std::vector<StartedWord> words, const std::vector<Assignment>& front, const Command* command);
  Status call(const Function&, const Texts& arguments, const std::string& name);
  Status start(std::vector<StartedWord> words, std::map<std::string, Text> environment);
  Status branch(const Command&, std::size_t clause);
  Status choice(const Command&);
  Status choice_from(const Command&, const Text& subject, std::size_t clause, bool falls);
  Status each(const Command&);
  Status count(const Command&);
  Status loop(const Command&);
  Status condition_of(const Script&);
  Status test(const Condition&);
  Status test_unary(std::string_view op, const Text& value);
  Status test_binary(std::string_view op, const Text& left, const Text& right, bool patterns);
  Status test_regular(const Text& left, const Text& right);
  Status test_words(Texts words);
  Status negated(Status) const;
  Status of(bool yes) const { return {yes ? 0 : 1, false, {}}; }
  Status undecided(char32_t unit) const { return {0, false, unit}; }
  bool stands_still(const State& before, std::size_t read) const;
  bool loop_goes_on();  ///< after a body; false: a break or the like
  void subshell(const std::function<void()>&);
  /// Both sides of a condition that is not known.
  enum class Kept : std::uint8_t { both, yes, no };
  Kept either(char32_t condition, const std::string& written, const std::function<void()>& yes, const std::function<void()>& no);
  void end_script(int status);
  void errexit_after(const Status&, const std::string& written, int line);
  std::optional<Status> shell(const std::vector<StartedWord>& words, const std::map<std::string, Text>& environment);

  // streams (redirect.cpp)
  bool redirect(const std::vector<Redirection>&);
  void redirect_one(const Redirection&);
  Sink file_sink(const Text& path, bool append);
  void open_input(const Text& path);
  void write(int descriptor, const Text&);
  Text rest_of_input();
  std::optional<std::string> file_text(const Text& path);
  std::string path_of(const Text& path) const;

  // programs
  Status source(const Texts& arguments);
  std::optional<Status> builtin(const std::string& name, const Texts& arguments);
  std::optional<Status> program(const std::string& name, const Texts& arguments);
  Status echo(const Texts&);
  Status print(const Texts&);
  Status read_line(const Texts&);
  Status read_array(const Texts&);
  Status declare(const std::string& name, const std::vector<Argument>&);
  Status options(const Texts&);
  Status get_options(const Texts&);
  Status change_folder(const Texts&);
  Status leave(Flow, const Texts&);
  Status leave_loop(Flow, const Texts&);
  Status shift(const Texts&);
  Status unset_all(const Texts&);
  Status evaluate(const Texts&);
  Status replace_shell(const Texts&);
  Status run_program(const Texts&);
  Status ask_for_program(const Texts&);
  Status let(const Texts&);
  Status inner_shell(const std::string& text, const std::string& zero, const std::string& file, int first_line, bool errexit,
                     bool nounset, const Texts& arguments, const std::vector<StartedWord>& words, const Unwrapped& found,
                     std::map<std::string, Text> environment);
  std::optional<Status> cat(const Texts&);
  std::optional<Status> tee(const Texts&);
  std::optional<Status> seq(const Texts&);
  std::optional<Status> name_of_path(const Texts&, bool folder);
  std::optional<Status> whole_path(const Texts&);
  std::optional<Status> new_file(const Texts&);
  std::optional<Status> git(const Texts&);
  std::optional<Status> count_lines(const Texts&);
  std::optional<Status> ends_of(const Texts&, bool front);
  std::optional<Status> translate(const Texts&);
  std::optional<Status> cut(const Texts&);
  std::optional<Status> sed(const Texts&);
  std::optional<Status> jq(const Texts&);
  std::optional<Status> grep(const Texts&, bool extended);
  std::optional<Status> xargs(const Texts&);
  std::optional<Status> uname(const Texts&);
  std::optional<Status> expr(const Texts&);
  std::optional<Status> python_probe(const Texts&);
  std::optional<Status> python_json(const Texts&);
  std::optional<Status> nvidia_smi(const Texts&);
  std::optional<Status> other_machine(const std::string& name);
  std::int64_t gpus_of_machine(const std::string& asked);
  void read_into(const std::vector<std::string>& names, const std::string& array, Text line, bool raw);
  std::optional<std::string> file_for_source(const Text& name, std::string& path);
  Text formatted(const Texts& arguments, std::size_t format);
  Text one_formatted(const std::string& how, char type, const Text& value);
  Text with_escapes(const Text&) const;

  const ScriptInput& input_;
  Budget budget_;
  State state_;
  Streams streams_;
  Sink terminal_ = std::make_shared<Text>();
  std::vector<Unknown> unknowns_;
  std::map<std::string, std::size_t> known_unknowns_;
  std::vector<Started> started_;
  std::vector<Note> notes_;
  std::map<Text, Sink> files_;
  std::vector<std::shared_ptr<const Script>> scripts_;
  std::vector<std::string> sources_;     ///< files that are being read, the innermost last
  std::vector<std::string> functions_;   ///< that are being called
  std::vector<std::string> conditions_;  ///< under which the commands that come now run
  std::vector<std::string> rests_on_;    ///< variables that nobody set, by which the last condition was decided
  struct Ending {
    Place place;
    int status = 0;
    std::string by;  ///< the command whose failure ended the script; "": exit
    std::vector<std::string> rests_on;
  };
  std::optional<Ending> ending_;
  /// A side of a condition that left a function or a loop, while the other side goes on in it.
  struct Left {
    std::optional<State> state;
    Status status;
    char32_t unit = 0;
    std::string condition;
  };
  void leave_here(Left&, const State&, const Status&, char32_t unit, const std::string& condition);
  /// At the end of the function or loop: what either left or reached.
  Status met(Left&, Status, std::size_t conditions);
  Left returned_, broken_;
  std::vector<StartedWord> outer_;  ///< the command that started the shell whose script is read now
  std::string file_;
  int line_ = 0;
  Status last_;
  Text last_word_;
  Flow flow_ = Flow::on;
  int levels_ = 0;  ///< of loops that break and continue still leave
  int loops_ = 0;   ///< that run now
  int tested_ = 0;  ///< above 0: a failing command is a condition and ends nothing
  int depth_ = 0;
  int new_files_ = 0;  ///< names that mktemp gave
  bool background_ = false;
  int outer_levels_ = 0;                                 ///< shells in each other
  std::size_t option_argument_ = 1, option_letter_ = 1;  ///< where getopts reads on
  std::optional<Status> substituted_;                    ///< of the last command substitution
  ScriptReading out_;
};

}  // namespace oomplan::launch
