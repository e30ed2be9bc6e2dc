// sed, as far as it replaces text: s/A/B/ and s/A/B/g, several of them (IEEE Std 1003.1-2017, sed).
#include <cctype>
#include <string>
#include <vector>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/regular.hpp"

namespace oomplan::launch {
namespace {

struct Substitution {
  Regular pattern;
  std::string with;
  bool everywhere = false;
};

/// Up to the delimiter; a backslash in front of it takes it as it is. nullopt: there is none.
std::optional<std::string> part(std::string_view text, std::size_t& at, char delimiter) {
  std::string out;
  for (; at < text.size(); ++at) {
    if (text[at] == delimiter) return ++at, out;
    if (text[at] == '\\' && at + 1 < text.size()) {
      if (text[at + 1] != delimiter) out += '\\';
      ++at;
    }
    out += text[at];
  }
  return std::nullopt;
}

/// nullopt: it has commands that are not read here.
std::optional<std::vector<Substitution>> read(std::string_view text, bool extended) {
  std::vector<Substitution> out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == ';' || std::isspace(static_cast<unsigned char>(text[at])) != 0) {
      ++at;
      continue;
    }
    if (text[at] != 's' || at + 1 >= text.size()) return std::nullopt;
    const char delimiter = text[at + 1];
    at += 2;
    const auto pattern = part(text, at, delimiter);
    auto with = pattern ? part(text, at, delimiter) : std::nullopt;
    if (!with) return std::nullopt;
    bool everywhere = false, ignore = false;
    for (; at < text.size() && text[at] != ';' && std::isspace(static_cast<unsigned char>(text[at])) == 0; ++at) {
      if (text[at] != 'g' && text[at] != 'I' && text[at] != 'i') return std::nullopt;
      everywhere = everywhere || text[at] == 'g', ignore = ignore || text[at] != 'g';
    }
    auto regular = Regular::compile(*pattern, extended, ignore);
    if (!regular) return std::nullopt;
    out.push_back({std::move(*regular), std::move(*with), everywhere});
  }
  return out;
}

/// & is the match, \1 a group of it.
std::string replacement(const std::string& with, const std::string& line, const std::vector<Span>& match) {
  const auto group = [&](std::size_t i) {
    return i < match.size() && match[i].begin != std::string_view::npos ? line.substr(match[i].begin, match[i].length)
                                                                        : std::string();
  };
  std::string out;
  for (std::size_t i = 0; i < with.size(); ++i) {
    if (with[i] == '&') {
      out += group(0);
    } else if (with[i] == '\\' && i + 1 < with.size()) {
      const char c = with[++i];
      out += c >= '0' && c <= '9' ? group(static_cast<std::size_t>(c - '0')) : std::string(1, c == 'n' ? '\n' : c);
    } else {
      out += with[i];
    }
  }
  return out;
}

std::string substituted(const Substitution& s, const std::string& line, Budget& budget) {
  std::string out;
  std::size_t from = 0;
  for (auto match = s.pattern.find(line, 0, budget); !match.empty(); match = s.pattern.find(line, from, budget)) {
    out += line.substr(from, match[0].begin - from) + replacement(s.with, line, match);
    from = match[0].begin + match[0].length;
    budget.text(out.size());
    if (match[0].length == 0 && from < line.size()) out += line[from++];
    if (!s.everywhere || match[0].begin + match[0].length >= line.size()) break;
  }
  return out + line.substr(from);
}

}  // namespace

std::optional<Status> Evaluator::sed(const Texts& words) {
  bool extended = false;
  std::optional<std::string> script;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_known(words[i])) return std::nullopt;
    const std::string word = bytes_of(words[i]);
    if (word == "-E" || word == "-r" || word == "--regexp-extended") {
      extended = true;
    } else if (word == "-e" && i + 1 < words.size() && is_known(words[i + 1])) {
      script = script.value_or("") + "\n" + bytes_of(words[++i]);
    } else if (!word.starts_with('-') && !script) {
      script = word;
    } else {
      return std::nullopt;  // files, other options
    }
  }
  const auto all = script ? read(*script, extended) : std::nullopt;
  if (!all) return std::nullopt;
  const Text text = rest_of_input();
  if (const std::optional<char32_t> open = first_unknown(text)) return write(1, Text(1, *open)), Status{};
  const std::string lines = bytes_of(text);
  std::string out;
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    std::string line = lines.substr(at, end - at);
    for (const Substitution& s : *all) line = substituted(s, line, budget_);
    out += line + (end < lines.size() ? "\n" : "");
    at = end + 1;
  }
  write(1, text_of(out));
  return Status{};
}

}  // namespace oomplan::launch
