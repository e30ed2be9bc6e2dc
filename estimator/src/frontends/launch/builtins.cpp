// Programs of the shell itself (Bash Reference Manual 5.2, chapter 4).
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/parser.hpp"
#include "frontends/launch/paths.hpp"
#include "frontends/launch/quote.hpp"

namespace oomplan::launch {
namespace {

/// That change nothing which a reader follows.
constexpr std::array<std::string_view, 16> kIdle{":",    "true", "trap", "wait", "ulimit", "umask", "shopt",  "alias",
                                                 "hash", "jobs", "bg",   "fg",   "disown", "times", "enable", "set_color"};

std::int64_t number_of(const std::vector<Text>& words, std::size_t i, std::int64_t otherwise) {
  if (i >= words.size()) return otherwise;
  const std::string text = bytes_of(words[i]);
  std::int64_t out = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

}  // namespace

std::optional<Status> Evaluator::builtin(const std::string& name, const Texts& words) {
  using Run = Status (*)(Evaluator&, const std::string&, const Texts&);
  static const std::map<std::string, Run, std::less<>> kTable{
      {"false", [](Evaluator&, const std::string&, const Texts&) { return Status{1, false, {}}; }},
      {"echo", [](Evaluator& e, const std::string&, const Texts& w) { return e.echo(w); }},
      {"printf", [](Evaluator& e, const std::string&, const Texts& w) { return e.print(w); }},
      {"set", [](Evaluator& e, const std::string&, const Texts& w) { return e.options(w); }},
      {"shift", [](Evaluator& e, const std::string&, const Texts& w) { return e.shift(w); }},
      {"unset", [](Evaluator& e, const std::string&, const Texts& w) { return e.unset_all(w); }},
      {"source", [](Evaluator& e, const std::string&, const Texts& w) { return e.source(w); }},
      {".", [](Evaluator& e, const std::string&, const Texts& w) { return e.source(w); }},
      {"cd", [](Evaluator& e, const std::string&, const Texts& w) { return e.change_folder(w); }},
      {"pushd", [](Evaluator& e, const std::string&, const Texts& w) { return e.change_folder(w); }},
      {"popd", [](Evaluator& e, const std::string&, const Texts&) { return e.change_folder({text_of("-")}); }},
      {"pwd",
       [](Evaluator& e, const std::string&, const Texts&) { return e.write(1, e.state_.folder + text_of("\n")), Status{}; }},
      {"read", [](Evaluator& e, const std::string&, const Texts& w) { return e.read_line(w); }},
      {"mapfile", [](Evaluator& e, const std::string&, const Texts& w) { return e.read_array(w); }},
      {"readarray", [](Evaluator& e, const std::string&, const Texts& w) { return e.read_array(w); }},
      {"getopts", [](Evaluator& e, const std::string&, const Texts& w) { return e.get_options(w); }},
      {"eval", [](Evaluator& e, const std::string&, const Texts& w) { return e.evaluate(w); }},
      {"exec", [](Evaluator& e, const std::string&, const Texts& w) { return e.replace_shell(w); }},
      {"command", [](Evaluator& e, const std::string&, const Texts& w) { return e.run_program(w); }},
      {"builtin", [](Evaluator& e, const std::string&, const Texts& w) { return e.run_program(w); }},
      {"type", [](Evaluator& e, const std::string&, const Texts& w) { return e.ask_for_program(w); }},
      {"let", [](Evaluator& e, const std::string&, const Texts& w) { return e.let(w); }},
      {"test", [](Evaluator& e, const std::string&, const Texts& w) { return e.test_words(w); }},
      {"[",
       [](Evaluator& e, const std::string&, const Texts& w) {
         if (w.empty() || bytes_of(w.back()) != "]") return Status{2, false, {}};
         return e.test_words({w.begin(), w.end() - 1});
       }},
      {"exit", [](Evaluator& e, const std::string&, const Texts& w) { return e.leave(Flow::ended, w); }},
      {"return", [](Evaluator& e, const std::string&, const Texts& w) { return e.leave(Flow::from_function, w); }},
      {"break", [](Evaluator& e, const std::string&, const Texts& w) { return e.leave_loop(Flow::out_of_loop, w); }},
      {"continue", [](Evaluator& e, const std::string&, const Texts& w) { return e.leave_loop(Flow::next, w); }},
  };
  if (std::find(kIdle.begin(), kIdle.end(), name) != kIdle.end()) return Status{};
  const auto at = kTable.find(name);
  if (at == kTable.end()) return std::nullopt;
  budget_.spend(1);
  return at->second(*this, name, words);
}

Status Evaluator::leave(Flow how, const Texts& words) {
  Status status = last_;
  if (!words.empty()) {
    status = {};
    if (const std::optional<char32_t> open = first_unknown(as_bash(words[0])))
      status = undecided(*open);
    else
      status.code = static_cast<int>(number_of(words, 0, 2) & 0xFF);
  }
  if (how == Flow::from_function && functions_.empty() && sources_.size() < 3)
    return {1, false, {}};  // not in a function or a sourced file
  if (how == Flow::ended) {
    end_script(status.code);
    if (status.unknown) last_ = status;
  } else {
    flow_ = how;
  }
  last_ = status;
  return status;
}

Status Evaluator::leave_loop(Flow how, const Texts& words) {
  if (loops_ == 0) return {};
  levels_ = static_cast<int>(std::clamp<std::int64_t>(number_of(words, 0, 1), 1, 1000));
  flow_ = how;
  return {};
}

Status Evaluator::echo(const Texts& words) {
  std::size_t first = 0;
  bool line = true, escapes = false;
  for (; first < words.size(); ++first) {
    const std::string word = is_known(words[first]) ? bytes_of(words[first]) : "";
    if (word.size() < 2 || word[0] != '-' || word.find_first_not_of("neE", 1) != std::string::npos) break;
    for (const char c : word) {
      if (c == 'n') line = false;
      if (c == 'e') escapes = true;
      if (c == 'E') escapes = false;
    }
  }
  Text out;
  for (std::size_t i = first; i < words.size(); ++i) out += (i > first ? text_of(" ") : Text()) + words[i];
  if (escapes) out = with_escapes(out);
  write(1, out + (line ? text_of("\n") : Text()));
  return {};
}

Text Evaluator::with_escapes(const Text& text) const {
  static constexpr std::string_view kNames = "abefnrtv\\", kBytes = "\a\b\033\f\n\r\t\v\\";
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto name =
        i + 1 < text.size() && byte_of(text[i]) == '\\' ? kNames.find(byte_of(text[i + 1])) : std::string_view::npos;
    if (name == std::string_view::npos) {
      out += text[i];
      continue;
    }
    out += unit_of(kBytes[name]);
    ++i;
  }
  return out;
}

/// The format is used again until all arguments are.
Text Evaluator::formatted(const Texts& words, std::size_t first) {
  const Text format = with_escapes(words[first]);
  Text out;
  std::size_t next = first + 1;
  do {
    const std::size_t before = next;
    for (std::size_t i = 0; i < format.size(); ++i) {
      if (byte_of(format[i]) != '%') {
        out += format[i];
        continue;
      }
      if (i + 1 < format.size() && byte_of(format[i + 1]) == '%') {
        out += format[i++];
        continue;
      }
      std::string how;
      for (++i; i < format.size(); ++i) {
        if (std::string_view("-+ #0123456789.").find(byte_of(format[i])) == std::string_view::npos) break;
        how += byte_of(format[i]);
      }
      if (i >= format.size()) break;
      const Text value = next < words.size() ? words[next] : Text();
      ++next;
      out += one_formatted(how, byte_of(format[i]), value);
      budget_.text(out.size());
    }
    if (next == before) break;
  } while (next < words.size());
  return out;
}

Text Evaluator::one_formatted(const std::string& how, char type, const Text& value) {
  if (const std::optional<char32_t> open = first_unknown(value)) return how.empty() ? value : Text(1, *open);
  const std::string text = bytes_of(value);
  const bool left = how.starts_with('-'), zeros = !left && how.starts_with('0');
  const std::size_t dot = how.find('.');
  std::size_t width = 0, precision = std::string::npos;
  std::from_chars(how.data() + (left || zeros ? 1 : 0), how.data() + how.size(), width);
  if (dot != std::string::npos) {
    precision = 0;
    std::from_chars(how.data() + dot + 1, how.data() + how.size(), precision);
  }
  width = std::min<std::size_t>(width, 10'000);
  std::string out = text;
  if (type == 'd' || type == 'i' || type == 'u') {
    try {
      out = fmt::format("{}", calculated(value));
    } catch (const NoArithmetic&) {
      out = "0";
    }
  } else if (type == 'q') {
    out = escaped_word(text);
  } else if (type == 'b') {
    out = bytes_of(with_escapes(value));
  } else if (type == 's') {
    out = text.substr(0, precision);
  } else if (type == 'c') {
    out = text.substr(0, 1);
  } else {
    return unknown_text(Unknown::Kind::outside, fmt::format("printf %{}{} {}", how, type, text));
  }
  if (out.size() < width)
    out = left ? out + std::string(width - out.size(), ' ') : std::string(width - out.size(), zeros ? '0' : ' ') + out;
  return text_of(out);
}

Status Evaluator::print(const Texts& words) {
  std::size_t first = 0;
  std::string into;
  if (words.size() > 1 && bytes_of(words[0]) == "-v") {
    into = bytes_of(words[1]);
    first = 2;
  }
  if (first < words.size() && bytes_of(words[first]) == "--") ++first;
  if (first >= words.size()) return {2, false, {}};
  const Text out = formatted(words, first);
  if (into.empty())
    write(1, out);
  else
    set(into, out);
  return {};
}

Status Evaluator::options(const Texts& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = bytes_of(words[i]);
    if (word == "--" || (word.size() > 0 && word[0] != '-' && word[0] != '+') || word.empty()) {
      state_.positional.assign(words.begin() + static_cast<std::ptrdiff_t>(i) + (word == "--" ? 1 : 0), words.end());
      return {};
    }
    const bool on = word[0] == '-';
    for (const char c : word.substr(1)) {
      std::string option;
      if (c == 'o' && i + 1 < words.size()) option = bytes_of(words[++i]);
      if (c == 'e' || option == "errexit") state_.errexit = on;
      if (c == 'u' || option == "nounset") state_.nounset = on;
      if (option == "pipefail") state_.pipefail = on;
    }
  }
  return {};
}

Status Evaluator::shift(const Texts& words) {
  const std::int64_t n = number_of(words, 0, 1);
  if (n < 0 || n > static_cast<std::int64_t>(state_.positional.size())) return {1, false, {}};
  state_.positional.erase(state_.positional.begin(), state_.positional.begin() + n);
  return {};
}

Status Evaluator::unset_all(const Texts& words) {
  bool functions = false;
  for (const Text& word : words) {
    const std::string name = bytes_of(word);
    if (name.starts_with('-')) {
      functions = name == "-f";
      continue;
    }
    const std::size_t bracket = name.find('[');
    if (functions) {
      state_.functions.erase(name);
    } else if (bracket != std::string::npos && name.ends_with(']')) {
      if (Variable* v = state_.find(name.substr(0, bracket))) {
        const std::string subscript = name.substr(bracket + 1, name.size() - bracket - 2);
        if (v->kind == Variable::Kind::indexed) v->elements.erase(index_for(subscript));
        std::erase_if(v->named, [&](const auto& x) { return x.first == subscript; });
      }
    } else {
      if (state_.find(name) == nullptr) state_.functions.erase(name);
      unset(name);
    }
  }
  return {};
}

Status Evaluator::declare(const std::string& name, const std::vector<Argument>& arguments) {
  bool global = false, functions = false, print_only = false;
  Variable made;
  made.exported = name == "export", made.readonly = name == "readonly";
  bool plus = false;
  const auto flags = [&](const std::string& word) {
    plus = word[0] == '+';
    for (const char c : word.substr(1)) {
      if (c == 'x') made.exported = !plus;
      if (c == 'n' && name == "export") made.exported = false, plus = true;
      if (c == 'i') made.integer = !plus;
      if (c == 'r') made.readonly = !plus;
      if (c == 'a') made.kind = Variable::Kind::indexed;
      if (c == 'A') made.kind = Variable::Kind::associative;
      if (c == 'l' || c == 'u') made.letters = c;
      if (c == 'g') global = true;
      if (c == 'f' || c == 'F') functions = true;
      if (c == 'p') print_only = true;
    }
  };
  const auto target = [&](const std::string& variable) -> Variable& {
    const bool here = name == "local" || ((name == "declare" || name == "typeset") && !functions_.empty() && !global);
    if (here && state_.scopes.size() > 1) return state_.scopes.back()[variable];
    return variable_for_writing(variable);
  };
  const auto mark = [&](const std::string& variable) -> Variable& {
    const bool fresh = state_.find(variable) == nullptr;
    Variable& v = target(variable);
    if (fresh && made.exported && !v.set && !state_.erased.contains(variable))
      if (const auto given = input_.environment.find(variable); given != input_.environment.end())
        v.set = true, v.value = text_of(given->second);
    if (made.exported || plus) v.exported = made.exported;
    v.integer = v.integer || made.integer;
    if (made.letters != 0) v.letters = made.letters;
    if (made.kind != Variable::Kind::scalar && v.kind != made.kind)
      v.kind = made.kind, v.elements.clear(), v.named.clear(), v.set = true;
    return v;
  };
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i].assignment) {
      const Assignment& a = *arguments[i].assignment;
      // the value may use the variable that it hides
      Assignment copy = a;
      Variable value;
      if (!a.is_array && !a.subscript && !a.append) {
        const Text text = assigned_text(a.value);
        Variable& v = mark(a.name);
        store(v, a.name, text);
      } else {
        assign(copy, a.subscript ? std::function<Variable&()>() : [&]() -> Variable& { return mark(a.name); });
      }
      if (made.readonly) target(a.name).readonly = true;
      continue;
    }
    std::vector<Field> fields;
    expand_word(arguments[i].word, fields);
    for (const Field& field : fields) {
      const std::string word = bytes_of(field.text);
      if (word.size() > 1 && (word[0] == '-' || word[0] == '+') && word != "--") {
        flags(word);
        continue;
      }
      if (functions || print_only) continue;
      const std::size_t sign = word.find('=');
      if (sign != std::string::npos && is_name(word.substr(0, sign)))  // from an expansion
        store(mark(word.substr(0, sign)), word.substr(0, sign), plain(field.text.substr(field.text.find(U'=') + 1)));
      else if (is_name(word))
        mark(word);
    }
  }
  return {};
}

Status Evaluator::let(const Texts& words) {
  std::int64_t value = 0;
  for (const Text& word : words) value = calculated(word);
  return of(value != 0);
}

Status Evaluator::evaluate(const Texts& words) {
  Text whole;
  for (const Text& word : words) whole += (whole.empty() ? Text() : text_of(" ")) + word;
  if (const std::optional<char32_t> open = first_unknown(as_bash(whole))) {
    note(Note::Level::warning, fmt::format("eval of a text that is not known: {}", shown(whole)));
    return undecided(*open);
  }
  if (++depth_ > 150) throw TooMuch("eval in eval without end");
  Parsed parsed = parse(bytes_of(whole), file_, line_);
  const Status out = run(keep(parsed.script));
  --depth_;
  return parsed.broken ? Status{1, false, {}} : out;
}

/// exec: what comes behind it is never reached.
Status Evaluator::replace_shell(const Texts& words) {
  if (words.empty()) return {};
  const Status out = run_program(words);
  if (flow_ != Flow::on) return out;
  end_script(0);
  ending_->place = {};
  return out;
}

Status Evaluator::run_program(const Texts& words) {
  if (words.empty()) return {};
  const std::string option = bytes_of(words[0]);
  if (option == "-v" || option == "-V") return ask_for_program({words.begin() + 1, words.end()});
  const Texts rest(words.begin() + (option == "-p" || option == "--" ? 1 : 0), words.end());
  if (rest.empty()) return {};
  const std::string name = first_unknown(rest[0]) ? "" : bytes_of(rest[0]);
  if (const std::optional<Status> done = name.empty() ? std::nullopt : builtin(name, {rest.begin() + 1, rest.end()}))
    return *done;
  std::vector<StartedWord> started;
  for (const Text& word : rest) started.push_back({word, false});
  return start(std::move(started), exported());
}

Status Evaluator::change_folder(const Texts& given) {
  Texts words = given;
  while (!words.empty() && (bytes_of(words[0]) == "--" || bytes_of(words[0]) == "-P" || bytes_of(words[0]) == "-L"))
    words.erase(words.begin());
  Text target = words.empty() ? value_of("HOME") : words[0];
  if (is_known(target) && bytes_of(target) == "-") target = value_of("OLDPWD");
  const Text before = state_.folder;
  const Text known = as_bash(target);
  if (const std::optional<char32_t> open = first_unknown(known))
    state_.folder = known[0] == U'/' || is_unknown(known[0]) ? known : Text(1, *open);
  else if (const std::optional<char32_t> where = first_unknown(state_.folder); where && !bytes_of(known).starts_with('/'))
    state_.folder = Text(1, *where);
  else
    state_.folder = text_of(joined_path(bytes_of(state_.folder), bytes_of(known)));
  set("OLDPWD", before);
  return {};
}

Status Evaluator::source(const Texts& words) {
  if (words.empty()) return {2, false, {}};
  const std::string name = shown(words[0]);
  const auto made = files_.find(is_known(words[0]) ? text_of(path_of(words[0])) : words[0]);
  std::optional<std::string> text = made != files_.end() ? std::optional(bytes_of(*made->second)) : std::nullopt;
  std::string path = path_of(words[0]);
  if (!text) text = file_for_source(words[0], path);
  if (!text) {
    note(Note::Level::warning, fmt::format("{} is not here, so what it sets is not known", name));
    if (state_.sourced_in_vain.empty()) state_.sourced_in_vain = name;
    return {0, true, {}};
  }
  if (sources_.size() > 30) throw TooMuch(fmt::format("{} reads itself without end", name));
  const Texts positional = state_.positional;
  const bool own = words.size() > 1;
  if (own) state_.positional = {words.begin() + 1, words.end()};
  const int line = line_;
  const std::size_t conditions = conditions_.size();
  Left outer = std::exchange(returned_, {});
  run_text(*text, is_known(words[0]) ? bytes_of(words[0]) : path);
  if (flow_ == Flow::from_function) flow_ = Flow::on;
  last_ = met(returned_, last_, conditions);
  returned_ = std::move(outer);
  line_ = line;
  if (own) state_.positional = positional;
  return last_;
}

}  // namespace oomplan::launch
