// The parser's insides, shared by the files parse_*.cpp.
#pragma once
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/launch/parse.hpp"

namespace oomplan::launch {

/// A place where the text is no bash.
struct Broken {
  int line = 0, column = 0;
  std::string found, expected;
};

/// Where a part of a word stands: which characters end it, and which quotes mean something.
enum class Within : std::uint8_t {
  word,
  operand,         ///< of ${name:-word}
  operand_quoted,  ///< the same in double quotes: single quotes are characters
  pattern,         ///< of ${name/pattern/string}: a slash ends it
  double_quotes,
  here_document,
  arithmetic,  ///< ends at the parenthesis that closes it
  subscript,   ///< ends at the bracket that closes it
  regular,     ///< the right side of =~: parentheses and bars are characters
};

class Parser {
 public:
  Parser(std::string_view text, int first_line, int depth) : text_(text), line_(first_line), depth_(depth) {}

  /// The whole text; `out` keeps what could be read when it throws Broken.
  void script(Script& out);
  /// A word's pieces up to the end of the text.
  Word whole(Within);

 private:
  // characters
  bool done();
  char peek();                            ///< the next character, behind continued lines; 0 at the end
  char raw(std::size_t ahead = 0) const;  ///< as it stands
  void next();                            ///< passes one character
  bool next_is(std::string_view) const;   ///< as it stands
  bool take(std::string_view);            ///< passes it when it comes next
  void skip_blanks();                     ///< and comments, not line breaks
  void skip_lines();                      ///< and line breaks
  void line_break();                      ///< passes it, and reads the here-documents that begin behind it
  [[noreturn]] void fail(std::string found, std::string expected);
  std::string found_here();
  void enter();
  void leave() { --depth_; }

  // words (parse_word.cpp)
  Word word(Within);
  void pieces(std::vector<Piece>&, Within);
  void piece(std::vector<Piece>&, Within);
  bool ends(char, Within, int nesting);
  void escape(std::vector<Piece>&, Within);
  void single_quotes(std::vector<Piece>&);
  void ansi_quotes(std::vector<Piece>&);
  void ansi_escape(std::string&);
  Piece double_quotes();
  bool expansion(std::vector<Piece>&, Within);  ///< at a dollar; false: only a dollar
  Piece command_substitution();
  Piece backquotes();
  bool arithmetic(Piece&);  ///< at "$(("; false: a subshell in a command substitution
  bool expression(std::vector<Piece>&, std::size_t opening);
  Piece process();
  std::string name();
  // ${...} (parse_parameter.cpp)
  Piece braces(Within);
  bool parameter_within(Parameter&, bool quoted);
  void parameter_name(Parameter&);
  void parameter_operator(Parameter&, bool quoted);
  void with_operand(Parameter&, Parameter::Operator, Within);
  void replacement(Parameter&, bool quoted);
  void substring(Parameter&);
  Word bracketed();

  // commands (parse_command.cpp)
  Script list(std::initializer_list<std::string_view> ends, char close = 0);
  bool at_end_of(std::initializer_list<std::string_view> ends, char close);
  AndOr and_or();
  Pipeline pipeline();
  Command command();
  Command simple();
  bool assignment(Assignment&);
  void array(Assignment&);
  bool redirection(std::vector<Redirection>&);
  void here_documents();
  std::string reserved();            ///< the plain word that comes next; "" for others
  bool take_word(std::string_view);  ///< passes it when it comes next by itself
  void need_word(std::string_view, std::string_view opened, int line);
  std::string written(std::size_t from) const;
  // compound commands (parse_compound.cpp)
  bool compound(Command&);
  void branch(Command&);
  void choice(Command&);
  void choices(Command&, int line);
  void each(Command&);
  bool count(Command&);
  void loop(Command&);
  void do_group(Command&, std::string_view opened, int line);
  void group(Command&);
  bool parenthesis(Command&);
  void function(Command&, std::string name);
  bool arithmetic_command(Command&);
  // [[ ]] (parse_condition.cpp)
  Condition condition(int opened);
  Condition conjunction(int opened);
  Condition negation(int opened);
  Condition primary(int opened);
  Word condition_word(int opened);

  std::string_view text_;
  std::size_t at_ = 0;
  int line_;
  int depth_;
  static constexpr int kMostWrongParameters = 100;
  int wrong_parameters_ = 0;  ///< ${...} that are none
  struct Pending {
    std::shared_ptr<HereDocument> document;
    int line;
  };
  std::vector<Pending> pending_;
  std::set<std::size_t> subshells_;  ///< places of "((" that begin no expression
};

/// Is this a name of a variable?
bool is_name(std::string_view);

}  // namespace oomplan::launch
