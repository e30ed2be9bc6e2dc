#include "frontends/script_words.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "frontends/launch/quote.hpp"
#include "frontends/launched.hpp"
#include "frontends/unified_diff.hpp"
#include "job/knobs.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

bool in_comment(const std::string& text, std::size_t at) {
  const std::size_t line = text.rfind('\n', at) == std::string::npos ? 0 : text.rfind('\n', at) + 1;
  const std::size_t first = text.find_first_not_of(" \t", line);
  return first != std::string::npos && first <= at && text[first] == '#';
}

/// Behind the word that begins there, as bash splits words; quotes hold blanks, and "$( )" and "${ }" do.
std::size_t end_of_word(const std::string& text, std::size_t at) {
  char quote = 0;
  int depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\' && quote != '\'') {
      if (at + 1 < text.size() && text[at + 1] == '\n') return at;
      ++at;
    } else if (quote != 0) {
      quote = c == quote ? 0 : quote;
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (c == '(' || c == '{') {
      ++depth;
    } else if ((c == ')' || c == '}') && depth > 0) {
      --depth;
    } else if (depth == 0 && (kBlank.find(c) != std::string_view::npos || c == ')' || c == ';' || c == '|' || c == '&')) {
      return at;
    }
  }
  return at;
}

struct WordAt {
  std::size_t begin = 0, value = 0, end = 0;  ///< of the word, of what stands behind "=", behind it
};

/// Words that give the key a value: key=, +key=, ++key=, in quotes or not.
std::vector<WordAt> words_of_key(const std::string& text, const std::string& key) {
  std::vector<WordAt> out;
  const std::string begins = key + "=";
  for (std::size_t at = text.find(begins); at != std::string::npos; at = text.find(begins, at + 1)) {
    std::size_t begin = at;
    while (begin > 0 && text[begin - 1] == '+') --begin;
    const bool quoted = begin > 0 && (text[begin - 1] == '"' || text[begin - 1] == '\'');
    const std::size_t word = quoted ? begin - 1 : begin;
    const bool starts = word == 0 || kBlank.find(text[word - 1]) != std::string_view::npos || text[word - 1] == '(';
    if (starts && !in_comment(text, at)) out.push_back({word, at + begins.size(), end_of_word(text, word)});
  }
  return out;
}

/// The program's line continues: a line of its own, with the line's own indentation of arguments; otherwise behind its name.
std::optional<std::string> added(const std::string& text, const std::string& word, const std::string& program) {
  std::vector<std::size_t> named;
  for (std::size_t at = text.find(program); at != std::string::npos; at = text.find(program, at + 1))
    if (!in_comment(text, at) && end_of_word(text, at) == at + program.size()) named.push_back(at + program.size());
  if (named.size() != 1) return std::nullopt;
  std::string out = text;
  const std::size_t end = text.find('\n', named[0]);
  const std::string_view rest = std::string_view(text).substr(named[0], end == std::string::npos ? end : end - named[0]);
  if (rest.find_first_not_of(" \t") == rest.find('\\') && rest.ends_with('\\') && end != std::string::npos) {
    const std::size_t next = text.find_first_not_of(" \t", end + 1);
    const std::string indent = next == std::string::npos ? "    " : text.substr(end + 1, next - end - 1);
    return out.insert(end + 1, indent + word + " \\\n");
  }
  return out.insert(named[0], " " + word);
}

/// Places of a flag as a word of its own: "--flag", "--flag=value".
std::vector<WordAt> words_of_flag(const std::string& text, std::string_view flag) {
  std::vector<WordAt> out;
  for (std::size_t at = text.find(flag); at != std::string::npos; at = text.find(flag, at + 1)) {
    const std::size_t behind = at + flag.size();
    const bool starts = at == 0 || kBlank.find(text[at - 1]) != std::string_view::npos || text[at - 1] == '(';
    const bool ends = behind == text.size() || text[behind] == '=' || end_of_word(text, behind) == behind;
    if (starts && ends && !in_comment(text, at)) out.push_back({at, behind, end_of_word(text, at)});
  }
  return out;
}

/// Behind the flag and the one word that is its value, on the same line.
std::size_t end_of_flag(const std::string& text, const WordAt& flag) {
  if (flag.value < text.size() && text[flag.value] == '=') return flag.end;
  const std::size_t value = text.find_first_not_of(" \t", flag.end);
  if (value == std::string::npos || kBlank.find(text[value]) != std::string_view::npos || text[value] == '\\' ||
      text[value] == '#' || text.compare(value, 2, "--") == 0)
    return flag.end;
  return end_of_word(text, value);
}

/// A line of its own in front of that of another flag, indented and continued as that one is.
std::optional<std::string> beside(const std::string& text, const std::string& words, std::string_view neighbour) {
  const std::vector<WordAt> found = words_of_flag(text, neighbour);
  if (found.size() != 1) return std::nullopt;
  const std::size_t line = text.rfind('\n', found[0].begin) == std::string::npos ? 0 : text.rfind('\n', found[0].begin) + 1;
  const std::size_t end = std::min(text.find('\n', found[0].begin), text.size());
  const std::string before = text.substr(line, found[0].begin - line);
  if (before.find_first_not_of(" \t") != std::string::npos) return std::string(text).insert(found[0].begin, words + " ");
  return std::string(text).insert(line, before + words + (text[end - 1] == '\\' ? " \\" : "") + "\n");
}

class ScriptWords : public TextWords {
 public:
  ScriptWords(const Source& script, std::unique_ptr<TextWords> words, const Catalog& catalog)
      : TextWords(script), words_(std::move(words)), catalog_(catalog) {
    reading_ = words_->reading();
  }
  bool native() const override { return words_->native(); }
  Rewrite rewrite(const Settings& asked) const override { return words_->rewrite(asked); }
  std::string key_of(std::string_view knob) const override { return words_->key_of(knob); }
  std::string log_of(std::string_view role) const override { return words_->log_of(role); }
  std::string_view guide_text(std::string_view knob, bool megatron) const override { return words_->guide_text(knob, megatron); }
  std::vector<GuidePoint> guide() const override { return words_->guide(); }
  std::string_view guide_source() const override { return words_->guide_source(); }
  std::string_view neighbour_of(std::string_view flag) const override { return words_->neighbour_of(flag); }
  Job job_with(const Rewrite& rewrite) const override { return words_->job_with(rewrite); }

  Patch patch(const Rewrite& rewrite) const override {
    Patch out = words_->patch(rewrite);
    if (!out.file.empty()) return out;
    out.in_file = true;
    Source changed = source_;
    for (const std::string& one : rewrite.overrides) {
      const auto text = one.starts_with("--") ? with_flag(changed.text, one, words_->neighbour_of(one.substr(0, one.find('='))))
                        : one.starts_with("~--") ? without_flag(changed.text, one.substr(1))
                                                 : with_override(changed.text, one, program());
      if (!text) return out;
      changed.text = *text;
    }
    if (!means_the_same(changed, rewrite)) return out;
    out.file = changed.text;
    out.diff = unified_diff(source_.name, source_.text, changed.text);
    return out;
  }

 private:
  /// The module or file behind `-m` or the interpreter, as the script writes it.
  std::string program() const {
    const Source command = resolved(source_, catalog_);
    const std::string_view text = command.text;
    const std::size_t at = text.find("-m ");
    if (at == std::string_view::npos) return {};
    const std::string_view name = text.substr(at + 3);
    return std::string(name.substr(0, name.find(' ')));
  }
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override { return rewrite.values[number]; }
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override {
    try {
      return same_settings(read(changed, &catalog_).job, words_->job_with(rewrite));
    } catch (const InputError&) {
      return false;
    }
  }

  std::unique_ptr<TextWords> words_;
  const Catalog& catalog_;
};

}  // namespace

std::optional<std::string> with_override(const std::string& script, const std::string& override_, const std::string& program) {
  const std::size_t equals = override_.find('=');
  const std::size_t begin = override_.find_first_not_of('+');
  if (equals == std::string::npos || begin == std::string::npos || begin > equals) return std::nullopt;
  const std::string key = override_.substr(begin, equals - begin), word = launch::command_text({override_});
  const std::vector<WordAt> found = words_of_key(script, key);
  if (found.size() > 1) return std::nullopt;
  if (found.empty()) return program.empty() ? std::nullopt : added(script, word, program);
  std::string out = script;
  const std::string plus = script.substr(found[0].begin, found[0].value - found[0].begin);
  const std::size_t signs = std::min(plus.find_first_not_of("+\"'"), plus.size());
  std::string kept;
  for (const char c : plus.substr(0, signs))
    if (c == '+') kept += c;
  const std::string replaced = launch::command_text({kept + key + override_.substr(equals)});
  return out.replace(found[0].begin, found[0].end - found[0].begin, replaced);
}

std::optional<std::string> with_flag(const std::string& script, const std::string& flag, std::string_view neighbour) {
  const std::size_t equals = flag.find('=');
  const std::string name = flag.substr(0, equals);
  const std::string words = equals == std::string::npos ? name : name + " " + launch::command_text({flag.substr(equals + 1)});
  const std::vector<WordAt> found = words_of_flag(script, name);
  if (found.empty()) return neighbour.empty() ? std::nullopt : beside(script, words, neighbour);
  if (found.size() > 1) return std::nullopt;
  return std::string(script).replace(found[0].begin, end_of_flag(script, found[0]) - found[0].begin, words);
}

std::optional<std::string> without_flag(const std::string& script, const std::string& name) {
  const std::vector<WordAt> found = words_of_flag(script, name);
  if (found.size() != 1) return std::nullopt;
  std::string out = script;
  const std::size_t begin = found[0].begin, end = end_of_flag(script, found[0]);
  const std::size_t line = script.rfind('\n', begin) == std::string::npos ? 0 : script.rfind('\n', begin) + 1;
  const std::size_t next = std::min(script.find('\n', end), script.size() - 1) + 1;
  const auto blank = [&](std::size_t from, std::size_t to, const char* of) {
    return script.find_first_not_of(of, from) >= to || from >= to;
  };
  if (blank(line, begin, " \t") && blank(end, next, " \t\r\n\\")) return out.erase(line, next - line);
  return out.erase(begin, script.find_first_not_of(" \t", end) - begin);
}

std::unique_ptr<TextWords> words_in_script(const Source& script, std::unique_ptr<TextWords> words, const Catalog& catalog) {
  return std::make_unique<ScriptWords>(script, std::move(words), catalog);
}

}  // namespace oomplan
