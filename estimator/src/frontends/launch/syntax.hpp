// A bash script as a tree (Bash Reference Manual 5.2, chapter 3). Nothing in it has been expanded or run.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace oomplan::launch {

struct Script;
struct Parameter;

/// A part of a word.
struct Piece {
  enum class Kind : std::uint8_t {
    plain,          ///< text outside of quotes
    quoted,         ///< text in single quotes, behind a backslash, or inside of double quotes
    double_quoted,  ///< "..."
    parameter,      ///< $name, ${name...}
    command,        ///< $(...), `...`
    arithmetic,     ///< $((...))
    process,        ///< <(...), >(...)
  };
  Kind kind = Kind::plain;
  std::string text = {};           ///< plain, quoted; of a command and an expansion: as it is written
  std::vector<Piece> inside = {};  ///< double_quoted, arithmetic
  std::shared_ptr<const Parameter> parameter = {};
  std::shared_ptr<const Script> script = {};
};
struct Word {
  std::vector<Piece> pieces;
  int line = 0;
};

/// ${name[subscript] operator operand / second}
struct Parameter {
  enum class Operator : std::uint8_t {
    none,
    length,          ///< ${#name}
    keys,            ///< ${!name[@]}
    names,           ///< ${!prefix*}
    otherwise,       ///< ${name:-word}
    assign,          ///< ${name:=word}
    require,         ///< ${name:?word}
    alternative,     ///< ${name:+word}
    substring,       ///< ${name:offset:length}
    cut_front,       ///< ${name#pattern}
    cut_front_most,  ///< ${name##pattern}
    cut_back,        ///< ${name%pattern}
    cut_back_most,   ///< ${name%%pattern}
    replace,         ///< ${name/pattern/string}
    replace_all,     ///< ${name//pattern/string}
    replace_front,   ///< ${name/#pattern/string}
    replace_back,    ///< ${name/%pattern/string}
    upper_first,     ///< ${name^}
    upper,           ///< ${name^^}
    lower_first,     ///< ${name,}
    lower,           ///< ${name,,}
    transform,       ///< ${name@Q}
    wrong,           ///< no expansion at all, which bash only says when it gets there
  };
  std::string name;
  Operator op = Operator::none;
  bool indirect = false;    ///< ${!name}
  bool also_empty = false;  ///< the operator has a colon
  bool in_quotes = false;   ///< stands in double quotes
  char all = 0;             ///< '@' or '*': the whole array
  std::optional<Word> subscript;
  Word operand;
  std::optional<Word> second;
  std::string written;  ///< "${name:-word}"
};

/// name=value, name[subscript]+=value, name=(...)
struct Element {
  std::optional<Word> subscript;
  Word value;
};
struct Assignment {
  std::string name;
  std::optional<Word> subscript;
  bool append = false;
  bool is_array = false;
  Word value;
  std::vector<Element> elements;
  int line = 0;
};

struct HereDocument {
  std::string delimiter;
  bool literal = false;  ///< the delimiter was quoted: nothing is expanded
  bool tabs = false;     ///< <<-: tabs at the start of lines go
  Word body;
};
struct Redirection {
  int descriptor = -1;  ///< -1: the operator's own
  std::string op;       ///< "<", ">", ">>", "<<", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>"
  Word target;
  std::shared_ptr<const HereDocument> document;
  int line = 0;
};

/// [[ ... ]] as a tree.
struct Condition {
  enum class Kind : std::uint8_t { word, unary, binary, negation, conjunction, disjunction };
  Kind kind = Kind::word;
  std::string op = {};
  std::vector<Word> words = {};
  std::vector<Condition> parts = {};
};

struct Command;
struct Pipeline {
  bool negated = false;
  std::vector<Command> commands;
  std::vector<bool> errors_too;  ///< |& behind this command
};
/// Pipelines joined by && and ||.
struct AndOr {
  std::vector<Pipeline> pipelines;
  std::vector<bool> needs_success;  ///< between pipelines: &&, else ||
  bool background = false;
  int line = 0;
  std::string written;  ///< as it stands in the script
};
/// A list of commands.
struct Script {
  std::vector<AndOr> items;
};

/// A word of a command; of declare, export and the like possibly an assignment.
struct Argument {
  Word word;
  std::shared_ptr<const Assignment> assignment;
};
struct Clause {  ///< of if, elif and case
  Script condition;
  std::vector<Word> patterns;
  Script body;
  std::string end = {};  ///< ";;", ";&", ";;&"
  std::string written = {};
};
struct Command {
  enum class Kind : std::uint8_t {
    simple,
    group,
    subshell,
    branch,      ///< if
    choice,      ///< case
    each,        ///< for name in words
    count,       ///< for ((...))
    loop,        ///< while, until
    menu,        ///< select
    function,    ///< a definition
    condition,   ///< [[ ]]
    arithmetic,  ///< (( ))
  };
  Kind kind = Kind::simple;
  int line = 0;
  std::string written;  ///< as it stands in the script; long ones are cut
  // simple
  std::vector<Assignment> assignments;
  std::vector<Argument> arguments;
  // the others
  std::string name;         ///< of a function, or of the variable of a loop
  std::vector<Word> words;  ///< of for and case; three expressions of for ((...)); one of ((...))
  bool has_words = false;   ///< for name in ...
  bool until = false;       ///< loop
  std::vector<Clause> clauses;
  Script body;  ///< else, loops, groups
  std::optional<Condition> test;
  std::shared_ptr<const Command> defined;  ///< a function's body
  std::vector<Redirection> redirections;
};

}  // namespace oomplan::launch
