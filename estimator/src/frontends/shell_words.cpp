// Words of a command line as a shell splits them (POSIX.1-2017, Shell Command Language 2.2 and 2.3), without running anything.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "frontends/shell_words.hpp"

namespace oomplan {
namespace {

class Splitter {
 public:
  Splitter(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  std::vector<std::string> run() {
    for (; at_ < text_.size(); ++at_) character(text_[at_]);
    end_word();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(std::string found, std::string expected) const {
    const auto lines = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), '\n');
    throw InputError(Problem{{file_, static_cast<int>(lines) + 1, 0, {}}, std::move(found), std::move(expected), {}, {}});
  }
  void end_word() {
    if (open_) out_.push_back(std::move(word_));
    word_.clear();
    open_ = false;
  }
  void add(char c) {
    word_ += c;
    open_ = true;
  }
  void character(char c) {
    if (c == '\\') return escape();
    if (c == '\'' || c == '"') return quoted(c);
    if (c == '#' && !open_) {
      at_ = std::min(text_.find('\n', at_), text_.size()) - 1;
      return;
    }
    if (std::isspace(static_cast<unsigned char>(c)) != 0) return end_word();
    if (c == '|' || c == ';' || c == '<' || c == '>' || c == '`') fail(fmt::format("'{}'", c), "one command alone");
    if (c == '&') fail("'&'", "one command alone");
    if (c == '$') fail("a variable of the shell", "values; only a shell knows the variable's");
    add(c);
  }
  void escape() {
    if (++at_ >= text_.size()) return;
    if (text_[at_] == '\r') ++at_;
    if (at_ < text_.size() && text_[at_] != '\n') add(text_[at_]);
  }
  void quoted(char quote) {
    open_ = true;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      if (quote == '"' && text_[at_] == '\\' && at_ + 1 < text_.size() &&
          std::string_view("\"\\$`").find(text_[at_ + 1]) != std::string_view::npos)
        ++at_;
      else if (quote == '"' && text_[at_] == '$')
        fail("a variable of the shell", "values; only a shell knows the variable's");
      add(text_[at_]);
    }
    if (at_ >= text_.size()) fail("a quote that is never closed", fmt::format("{} at its end", quote));
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t at_ = 0;
  std::string word_;
  bool open_ = false;
  std::vector<std::string> out_;
};

}  // namespace

std::vector<std::string> shell_words(std::string_view text, const std::string& file) { return Splitter(text, file).run(); }

std::string shell_text(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) {
    const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || std::string_view("-_=./:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (!out.empty()) out += ' ';
    if (plain) {
      out += word;
      continue;
    }
    out += '\'';
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    out += '\'';
  }
  return out;
}

}  // namespace oomplan
