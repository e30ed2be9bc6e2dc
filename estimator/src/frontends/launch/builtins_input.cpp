// Programs of the shell that read: read, mapfile, getopts.
#include <algorithm>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"

namespace oomplan::launch {

Status Evaluator::read_line(const Texts& words) {
  std::vector<std::string> names;
  std::string array;
  char32_t delimiter = U'\n';
  bool raw = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = bytes_of(words[i]);
    if (!word.starts_with('-') || word.size() < 2) {
      names.push_back(word);
      continue;
    }
    for (std::size_t k = 1; k < word.size(); ++k) {
      const auto value = [&] {
        return k + 1 < word.size() ? word.substr(k + 1) : i + 1 < words.size() ? bytes_of(words[++i]) : "";
      };
      if (word[k] == 'r') raw = true;
      if (word[k] == 'a') array = value();
      if (word[k] == 'd') {
        const std::string d = value();
        delimiter = d.empty() ? 0 : unit_of(d[0]);
      }
      if (std::string_view("adnptuiN").find(word[k]) == std::string_view::npos) continue;
      if (std::string_view("nptuiN").find(word[k]) != std::string_view::npos) value();
      break;
    }
  }
  if (!streams_.in) return read_into(names, array, unknown_text(Unknown::Kind::outside, "standard input"), raw), Status{};
  Input& in = *streams_.in;
  Text line;
  bool ended = false;
  while (in.at < in.text.size() && !ended) {
    const char32_t unit = in.text[in.at++];
    if (unit == delimiter)
      ended = true;
    else if (!raw && unit == U'\\' && in.at < in.text.size() && in.text[in.at] == U'\n')
      ++in.at;
    else
      line += unit;
  }
  budget_.spend(static_cast<std::int64_t>(line.size() / 8) + 1);
  read_into(names, array, line, raw);
  if (const std::optional<char32_t> open = first_unknown(as_bash(line)); open && !ended) return undecided(*open);
  return of(ended);
}

void Evaluator::read_into(const std::vector<std::string>& names, const std::string& array, Text line, bool raw) {
  if (!raw) std::erase(line, U'\\');
  for (char32_t& unit : line) unit |= kExpanded;
  if (!array.empty()) {
    std::vector<Field> fields;
    split({line, false}, fields);
    Variable& v = variable_for_writing(array);
    v = {};
    v.kind = Variable::Kind::indexed;
    v.set = true;
    for (std::size_t i = 0; i < fields.size(); ++i) v.elements[static_cast<std::int64_t>(i)] = plain(fields[i].text);
    return;
  }
  if (names.empty()) return set("REPLY", plain(line));
  if (const std::optional<char32_t> open = first_unknown(line); open && names.size() > 1) {
    for (const std::string& name : names) set(name, Text(1, *open));
    return;
  }
  const Text ifs = separators();
  const auto blank = [&](char32_t u) {
    return (u & 0xFFU) == (u & ~kFlags) && ifs.find(u & 0xFFU) != Text::npos &&
           std::isspace(static_cast<unsigned char>(byte_of(u))) != 0;
  };
  for (std::size_t i = 0; i < names.size(); ++i) {
    while (!line.empty() && blank(line.front())) line.erase(0, 1);
    if (i + 1 == names.size()) {
      while (!line.empty() && blank(line.back())) line.pop_back();
      set(names[i], plain(line));
      break;
    }
    std::size_t end = 0;
    while (end < line.size() && (is_unknown(line[end]) || ifs.find(line[end] & 0xFFU) == Text::npos)) ++end;
    set(names[i], plain(line.substr(0, end)));
    while (end < line.size() && blank(line[end])) ++end;
    if (end < line.size() && !is_unknown(line[end]) && ifs.find(line[end] & 0xFFU) != Text::npos) ++end;
    line.erase(0, end);
  }
}

Status Evaluator::read_array(const Texts& words) {
  bool cut = false;
  std::string name = "MAPFILE";
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = bytes_of(words[i]);
    if (word == "-t")
      cut = true;
    else if (word.size() == 2 && word[0] == '-')
      ++i;
    else
      name = word;
  }
  Variable made;
  made.kind = Variable::Kind::indexed;
  made.set = true;
  Text line;
  const Text all = rest_of_input();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != U'\n' || !cut) line += all[i];
    if (all[i] != U'\n' && i + 1 < all.size()) continue;
    budget_.spend(1);
    made.elements[static_cast<std::int64_t>(made.elements.size())] = std::exchange(line, {});
  }
  variable_for_writing(name) = std::move(made);
  return {};
}

/// POSIX getopts: OPTIND is the argument, optind_ the letter within it.
Status Evaluator::get_options(const Texts& words) {
  if (words.size() < 2) return {2, false, {}};
  const std::string letters = bytes_of(words[0]), name = bytes_of(words[1]);
  const Texts arguments = words.size() > 2 ? Texts(words.begin() + 2, words.end()) : state_.positional;
  std::size_t index = static_cast<std::size_t>(std::max<std::int64_t>(calculated(value_of("OPTIND")), 1));
  if (index != option_argument_) option_argument_ = index, option_letter_ = 1;
  const auto end = [&] {
    set(name, text_of("?"));
    return Status{1, false, {}};
  };
  if (index > arguments.size()) return end();
  if (const std::optional<char32_t> open = first_unknown(arguments[index - 1])) return undecided(*open);
  const std::string word = bytes_of(arguments[index - 1]);
  if (word.size() < 2 || word[0] != '-') return end();
  if (word == "--") {
    set("OPTIND", text_of(fmt::format("{}", index + 1)));
    return end();
  }
  const char letter = word[option_letter_];
  const bool silent = letters.starts_with(':');
  const std::size_t at = letters.find(letter, silent ? 1 : 0);
  unset("OPTARG");
  const auto next = [&](std::size_t argument, std::size_t k) {
    option_argument_ = argument, option_letter_ = k;
    set("OPTIND", text_of(fmt::format("{}", argument)));
  };
  if (option_letter_ + 1 < word.size())
    next(index, option_letter_ + 1);
  else
    next(index + 1, 1);
  if (at == std::string::npos || letter == ':') {
    set(name, text_of("?"));
    if (silent) set("OPTARG", text_of(std::string(1, letter)));
    return {};
  }
  set(name, text_of(std::string(1, letter)));
  if (at + 1 >= letters.size() || letters[at + 1] != ':') return {};
  if (option_argument_ == index) {  // the rest of the word is the value
    set("OPTARG", text_of(word.substr(option_letter_)));
    next(index + 1, 1);
  } else if (option_argument_ <= arguments.size()) {
    set("OPTARG", arguments[option_argument_ - 1]);
    next(option_argument_ + 1, 1);
  } else {
    set(name, text_of(silent ? ":" : "?"));
    if (silent) set("OPTARG", text_of(std::string(1, letter)));
  }
  return {};
}

}  // namespace oomplan::launch
