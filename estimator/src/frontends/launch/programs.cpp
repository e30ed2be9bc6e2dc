// Programs outside of the shell that change nothing and whose output follows from their arguments and input, and the probes that
// ask which machine this is.
#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/paths.hpp"
#include "frontends/launch/regular.hpp"
#include "frontends/launch/wrappers.hpp"

namespace oomplan::launch {
namespace {

/// That answer with their status, which nobody can know here.
constexpr std::array<std::string_view, 17> kAsk{"curl", "wget", "pgrep", "ping", "lsof",  "diff", "cmp",  "ray",  "lspci",
                                                "ss",   "nc",   "git",   "pip",  "conda", "jq",   "find", "pidof"};

std::vector<Text> lines_of(const Text& text) {
  std::vector<Text> out;
  Text line;
  for (const char32_t unit : text) {
    if (unit != U'\n') {
      line += unit;
      continue;
    }
    out.push_back(std::exchange(line, {}));
  }
  if (!line.empty()) out.push_back(line);
  return out;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return out;
}

/// The characters of a set of tr.
std::string set_of(const std::string& text) {
  static constexpr std::pair<std::string_view, std::string_view> kClasses[] = {{"[:upper:]", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
                                                                               {"[:lower:]", "abcdefghijklmnopqrstuvwxyz"},
                                                                               {"[:digit:]", "0123456789"},
                                                                               {"[:space:]", " \t\n\v\f\r"}};
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool named = false;
    for (const auto& [name, members] : kClasses)
      if (std::string_view(text).substr(i).starts_with(name)) out += members, i += name.size() - 1, named = true;
    if (named) continue;
    if (text[i] == '\\' && i + 1 < text.size()) {
      ++i;
      out += text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : text[i] == 'r' ? '\r' : text[i];
    } else if (i + 2 < text.size() && text[i + 1] == '-' && text[i] <= text[i + 2]) {
      for (int c = static_cast<unsigned char>(text[i]); c <= static_cast<unsigned char>(text[i + 2]); ++c)
        out += static_cast<char>(c);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::optional<Status> Evaluator::program(const std::string& path, const Texts& words) {
  using Run = std::optional<Status> (*)(Evaluator&, const Texts&);
  static const std::map<std::string, Run, std::less<>> kTable{
      {"cat", [](Evaluator& e, const Texts& w) { return e.cat(w); }},
      {"tee", [](Evaluator& e, const Texts& w) { return e.tee(w); }},
      {"seq", [](Evaluator& e, const Texts& w) { return e.seq(w); }},
      {"dirname", [](Evaluator& e, const Texts& w) { return e.name_of_path(w, true); }},
      {"basename", [](Evaluator& e, const Texts& w) { return e.name_of_path(w, false); }},
      {"realpath", [](Evaluator& e, const Texts& w) { return e.whole_path(w); }},
      {"readlink", [](Evaluator& e, const Texts& w) { return e.whole_path(w); }},
      {"git", [](Evaluator& e, const Texts& w) { return e.git(w); }},
      {"mktemp", [](Evaluator& e, const Texts& w) { return e.new_file(w); }},
      {"wc", [](Evaluator& e, const Texts& w) { return e.count_lines(w); }},
      {"head", [](Evaluator& e, const Texts& w) { return e.ends_of(w, true); }},
      {"tail", [](Evaluator& e, const Texts& w) { return e.ends_of(w, false); }},
      {"tr", [](Evaluator& e, const Texts& w) { return e.translate(w); }},
      {"cut", [](Evaluator& e, const Texts& w) { return e.cut(w); }},
      {"sed", [](Evaluator& e, const Texts& w) { return e.sed(w); }},
      {"jq", [](Evaluator& e, const Texts& w) { return e.jq(w); }},
      {"grep", [](Evaluator& e, const Texts& w) { return e.grep(w, false); }},
      {"egrep", [](Evaluator& e, const Texts& w) { return e.grep(w, true); }},
      {"xargs", [](Evaluator& e, const Texts& w) { return e.xargs(w); }},
      {"uname", [](Evaluator& e, const Texts& w) { return e.uname(w); }},
      {"which", [](Evaluator& e, const Texts& w) { return std::optional(e.ask_for_program(w)); }},
      {"nvidia-smi", [](Evaluator& e, const Texts& w) { return e.nvidia_smi(w); }},
      {"rocm-smi", [](Evaluator& e, const Texts&) { return e.other_machine("rocm-smi"); }},
      {"npu-smi", [](Evaluator& e, const Texts&) { return e.other_machine("npu-smi"); }},
      {"rocminfo", [](Evaluator& e, const Texts&) { return e.other_machine("rocminfo"); }},
      {"expr", [](Evaluator& e, const Texts& w) { return e.expr(w); }},
  };
  const std::string name = last_part(path);
  if (name.starts_with("python")) {
    if (const std::optional<Status> asked = python_probe(words)) return asked;
    if (const std::optional<Status> made = python_json(words)) return made;
  }
  const auto at = kTable.find(name);
  if (at != kTable.end()) {
    budget_.spend(5);
    if (const std::optional<Status> done = at->second(*this, words)) return done;
  }
  const bool asks = std::find(kAsk.begin(), kAsk.end(), name) != kAsk.end() || at != kTable.end() ||
                    (name.starts_with("python") && !words.empty() && bytes_of(words[0]) == "-c");
  if (!asks) return std::nullopt;
  std::string written = name;
  for (const Text& word : words) written += " " + shown(word);
  if (written.size() > 120) written = written.substr(0, 117) + "...";
  const char32_t unit = unknown(Unknown::Kind::outside, written);
  if (streams_.out[1] != terminal_) write(1, Text(1, unit));
  if (tested_ == 0) return Status{0, true, {}};
  return undecided(unit);
}

std::optional<Status> Evaluator::other_machine(const std::string& name) {
  note(Note::Level::info, fmt::format("`{}` is not there: taken for a machine with NVIDIA GPUs", name));
  return Status{127, false, {}};
}

/// python3 -c 'import torch_npu' and the number of GPUs.
std::optional<Status> Evaluator::python_probe(const Texts& words) {
  if (words.size() < 2 || bytes_of(words[0]) != "-c") return std::nullopt;
  const std::string code = bytes_of(words[1]);
  if (code.find("torch_npu") != std::string::npos && code.find("import") != std::string::npos && code.size() < 40) {
    note(Note::Level::info, "`import torch_npu` fails: taken for a machine with GPUs (DEVICE and the like can be set)");
    return Status{1, false, {}};
  }
  if (code.find("cuda.device_count()") != std::string::npos &&
      code.find("print(torch.cuda.device_count())") != std::string::npos) {
    write(1, text_of(fmt::format("{}\n", gpus_of_machine("torch.cuda.device_count()"))));
    return Status{};
  }
  return std::nullopt;
}

std::int64_t Evaluator::gpus_of_machine(const std::string& asked) {
  const std::int64_t gpus = std::clamp<std::int64_t>(input_.machine.gpus.value_or(8), 0, 1024);
  note(Note::Level::info,
       fmt::format("`{}` is answered for a machine with {} GPUs{}", asked, gpus, input_.machine.gpus ? "" : kNobodySaid));
  return gpus;
}

std::optional<Status> Evaluator::nvidia_smi(const Texts& words) {
  const std::string first = words.empty() ? "" : bytes_of(words[0]);
  Text out;
  if (first == "-L" || first == "--list-gpus") {
    const std::int64_t gpus = gpus_of_machine("nvidia-smi " + first);
    for (std::int64_t i = 0; i < gpus; ++i)
      out += text_of(fmt::format("GPU {}: {} (UUID: GPU-{:08x})\n", i, input_.machine.gpu, i));
  } else if (first == "topo") {
    const std::int64_t gpus = gpus_of_machine("nvidia-smi topo -m");
    for (std::int64_t i = 0; i < gpus; ++i) {
      out += text_of(fmt::format("GPU{}", i));
      for (std::int64_t k = 0; k < gpus; ++k) out += text_of(k == i ? "\t X " : "\tNV18");
      out += text_of("\n");
    }
  } else if (first.starts_with("--query-gpu=")) {
    const std::string asked = first.substr(12);
    const bool plain = words.size() > 1 && bytes_of(words[1]).find("noheader") != std::string::npos;
    if (asked != "name" && asked != "index" && asked != "count" && asked != "gpu_name") return std::nullopt;
    const std::int64_t gpus = gpus_of_machine("nvidia-smi " + first);
    if (!plain) out += text_of(asked + "\n");
    for (std::int64_t i = 0; i < gpus; ++i)
      out += text_of(asked == "index"   ? fmt::format("{}\n", i)
                     : asked == "count" ? fmt::format("{}\n", gpus)
                                        : input_.machine.gpu + "\n");
  } else if (words.empty()) {
    note(Note::Level::info, "`nvidia-smi` is there: taken for a machine with GPUs");
    out = unknown_text(Unknown::Kind::outside, "nvidia-smi");
  } else {
    return std::nullopt;
  }
  write(1, out);
  return Status{};
}

/// command -v, which, type
Status Evaluator::ask_for_program(const Texts& words) {
  for (const Text& word : words) {
    const std::string name = bytes_of(word);
    if (name.starts_with('-') || name.empty()) continue;
    if (name == "nvidia-smi") {
      note(Note::Level::info, "`nvidia-smi` is there: taken for a machine with GPUs");
      write(1, text_of("/usr/bin/nvidia-smi\n"));
      return {};
    }
    if (name == "npu-smi" || name == "rocm-smi" || name == "rocminfo" || name == "xpu-smi") return *other_machine(name);
    if (state_.functions.contains(name)) return write(1, word + text_of("\n")), Status{};
    const char32_t unit = unknown(Unknown::Kind::outside, "command -v " + name);
    if (streams_.out[1] != terminal_) write(1, Text(1, unit));
    return tested_ == 0 ? Status{0, true, {}} : undecided(unit);
  }
  return {1, false, {}};
}

std::optional<Status> Evaluator::cat(const Texts& words) {
  Text out;
  bool any = false;
  for (const Text& word : words) {
    if (is_known(word) && (bytes_of(word) == "-" || bytes_of(word) == "--")) continue;
    if (is_known(word) && bytes_of(word).starts_with('-')) return std::nullopt;
    any = true;
    const Streams streams = streams_;
    open_input(word);
    out += rest_of_input();
    streams_ = streams;
    budget_.text(out.size());
  }
  if (!any) out = rest_of_input();
  write(1, out);
  return Status{};
}

std::optional<Status> Evaluator::tee(const Texts& words) {
  bool append = false;
  const Text all = streams_.in ? rest_of_input() : Text();
  for (const Text& word : words) {
    const std::string name = bytes_of(word);
    if (name == "-a" || name == "--append") append = true;
    if (name.starts_with('-')) continue;
    if (const Sink sink = file_sink(word, append)) {
      budget_.text(sink->size() + all.size());
      *sink += all;
    }
  }
  write(1, all);
  return Status{};
}

std::optional<Status> Evaluator::seq(const Texts& words) {
  std::vector<std::int64_t> numbers;
  std::string separator = "\n";
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (const std::optional<char32_t> open = first_unknown(words[i])) return write(1, Text(1, *open)), Status{};
    const std::string word = bytes_of(words[i]);
    if (word == "-s" && i + 1 < words.size()) {
      separator = bytes_of(words[++i]);
      continue;
    }
    const auto n = number(word);
    if (!n) return std::nullopt;
    numbers.push_back(*n);
  }
  if (numbers.empty() || numbers.size() > 3) return std::nullopt;
  const std::int64_t first = numbers.size() > 1 ? numbers[0] : 1, last = numbers.back(),
                     step = numbers.size() == 3 ? numbers[1] : 1;
  if (step == 0) return std::nullopt;
  std::string out;
  for (std::int64_t i = first; step > 0 ? i <= last : i >= last;) {
    out += (out.empty() ? "" : separator) + fmt::format("{}", i);
    budget_.text(out.size());
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  write(1, text_of(out.empty() ? "" : out + "\n"));
  return Status{};
}

/// mktemp: a name of its own for every call, where the real one has letters by chance. What the script writes there is read back.
std::optional<Status> Evaluator::new_file(const Texts& words) {
  std::string pattern = "/tmp/tmp.XXXXXXXXXX";
  for (const Text& word : words) {
    if (!is_known(word)) return std::nullopt;
    const std::string text = bytes_of(word);
    if (text == "-d" || text == "-q" || text == "--directory" || text == "--quiet") continue;
    if (text.starts_with('-')) return std::nullopt;
    pattern = text;
  }
  const std::size_t last = pattern.rfind('X');
  std::size_t first = last;
  while (first != std::string::npos && first > 0 && pattern[first - 1] == 'X') --first;
  if (last == std::string::npos || last - first < 2) return std::nullopt;
  const std::size_t width = last - first + 1;
  std::string number = fmt::format("{:0{}}", ++new_files_, width);
  pattern.replace(first, width, number.substr(number.size() - width));
  write(1, text_of(pattern + "\n"));
  return Status{0, true, {}};
}

std::optional<Status> Evaluator::name_of_path(const Texts& given, bool folder) {
  Texts words = given;
  std::string suffix;
  if (!folder && words.size() == 3 && bytes_of(words[0]) == "-s")
    suffix = bytes_of(words[1]), words.erase(words.begin(), words.begin() + 2);
  if (!words.empty() && bytes_of(words[0]) == "--") words.erase(words.begin());
  if (words.empty() || (is_known(words[0]) && bytes_of(words[0]).starts_with('-'))) return std::nullopt;
  if (!folder && words.size() > 1) suffix = bytes_of(words[1]);
  const Text path = words[0];
  const std::size_t slash = path.rfind(U'/');
  const Text last = slash == Text::npos ? path : path.substr(slash + 1);
  Text out;
  if (is_known(path)) {
    std::string text = folder ? folder_of(bytes_of(path)) : last_part(bytes_of(path));
    if (!folder && !suffix.empty() && text.size() > suffix.size() && text.ends_with(suffix))
      text.resize(text.size() - suffix.size());
    out = text_of(text);
  } else if (is_known(last) && !last.empty()) {  // what is unknown stands in front of the last slash
    out = folder ? path.substr(0, slash) : last;
    if (!folder && !suffix.empty() && bytes_of(out).ends_with(suffix)) out.resize(out.size() - suffix.size());
  } else {
    out = Text(1, *first_unknown(path));
  }
  write(1, out + text_of("\n"));
  return Status{};
}

std::optional<Status> Evaluator::whole_path(const Texts& words) {
  for (const Text& word : words) {
    if (is_known(word) && bytes_of(word).starts_with('-')) continue;
    const bool known = is_known(word) && is_known(state_.folder);
    write(1, (known ? text_of(path_of(word)) : word) + text_of("\n"));
  }
  return Status{};
}

/// git [-C FOLDER] rev-parse --show-toplevel: the nearest folder with .git, which is a file in a worktree.
std::optional<Status> Evaluator::git(const Texts& words) {
  const bool elsewhere = words.size() == 4 && bytes_of(words[0]) == "-C";
  const std::size_t first = elsewhere ? 2 : 0;
  const Text from = elsewhere ? words[1] : state_.folder;
  if (words.size() != first + 2 || !is_known(from) || !is_known(state_.folder)) return std::nullopt;
  if (bytes_of(words[first]) != "rev-parse" || bytes_of(words[first + 1]) != "--show-toplevel") return std::nullopt;
  const auto is_root = [this](const std::string& folder) {
    try {
      return file_text(text_of(folder + "/.git/HEAD")) || file_text(text_of(folder + "/.git"));
    } catch (const InputError&) {  // not to be looked at
      return false;
    }
  };
  for (std::string at = path_of(from), below; at != below && !at.empty(); at = folder_of(below = at))
    if (is_root(at)) {
      write(1, text_of(at + "\n"));
      return Status{};
    }
  return std::nullopt;
}

std::optional<Status> Evaluator::count_lines(const Texts& words) {
  if (words.size() != 1) return std::nullopt;
  const std::string how = bytes_of(words[0]);
  const Text all = rest_of_input();
  if (const std::optional<char32_t> open = first_unknown(all)) return write(1, Text(1, *open)), Status{};
  std::size_t count = all.size();
  if (how == "-l") {
    count = static_cast<std::size_t>(std::count(all.begin(), all.end(), U'\n'));
  } else if (how == "-w") {
    count = 0;
    bool inside = false;
    for (const char32_t unit : all) {
      const bool blank = std::isspace(static_cast<unsigned char>(byte_of(unit))) != 0;
      if (!blank && !inside) ++count;
      inside = !blank;
    }
  } else if (how != "-c") {
    return std::nullopt;
  }
  write(1, text_of(fmt::format("{}\n", count)));
  return Status{};
}

std::optional<Status> Evaluator::ends_of(const Texts& words, bool front) {
  std::int64_t count = 10;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string word = bytes_of(words[i]);
    if (word == "-n" && i + 1 < words.size()) word = "-n" + bytes_of(words[++i]);
    if (!word.starts_with('-')) return std::nullopt;
    const auto n = number(word.substr(word.starts_with("-n") ? 2 : 1));
    if (!n || *n < 0) return std::nullopt;
    count = *n;
  }
  const Text all = rest_of_input();
  if (const std::optional<char32_t> open = first_unknown(all)) return write(1, Text(1, *open)), Status{};
  std::vector<Text> lines = lines_of(all);
  const std::size_t keep = std::min(lines.size(), static_cast<std::size_t>(count));
  Text out;
  for (std::size_t i = 0; i < keep; ++i) out += lines[front ? i : lines.size() - keep + i] + text_of("\n");
  write(1, out);
  return Status{};
}

std::optional<Status> Evaluator::translate(const Texts& words) {
  if (words.size() != 2 || !is_known(words[0]) || !is_known(words[1])) return std::nullopt;
  const bool deletes = bytes_of(words[0]) == "-d";
  const std::string from = set_of(bytes_of(words[deletes ? 1 : 0])), to = deletes ? "" : set_of(bytes_of(words[1]));
  if (!deletes && (bytes_of(words[0]).starts_with('-') || to.empty())) return std::nullopt;
  Text out;
  for (const char32_t unit : rest_of_input()) {
    const std::size_t at = is_unknown(unit) ? std::string::npos : from.find(byte_of(unit));
    if (at == std::string::npos)
      out += unit;
    else if (!deletes)
      out += unit_of(to[std::min(at, to.size() - 1)]);
  }
  write(1, out);
  return Status{};
}

std::optional<Status> Evaluator::cut(const Texts& words) {
  char32_t delimiter = U'\t';
  std::string field;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = bytes_of(words[i]);
    const std::string value = word.size() > 2 ? word.substr(2) : i + 1 < words.size() ? bytes_of(words[i + 1]) : "";
    if (!word.starts_with("-d") && !word.starts_with("-f")) return std::nullopt;
    if (word.size() == 2) ++i;
    if (word[1] == 'd' && value.size() == 1) delimiter = unit_of(value[0]);
    if (word[1] == 'f') field = value;
  }
  const auto wanted = number(field);
  if (!wanted || *wanted < 1) return std::nullopt;
  Text out;
  for (const Text& line : lines_of(rest_of_input())) {
    if (const std::optional<char32_t> open = first_unknown(line)) return write(1, out + Text(1, *open)), Status{};
    std::size_t from = 0;
    for (std::int64_t k = 1; k < *wanted && from != Text::npos; ++k) {
      from = line.find(delimiter, from);
      if (from != Text::npos) ++from;
    }
    const bool whole = line.find(delimiter) == Text::npos;
    if (whole)
      out += line;
    else if (from != Text::npos)
      out += line.substr(from, line.find(delimiter, from) - from);
    out += U'\n';
  }
  write(1, out);
  return Status{};
}

std::optional<Status> Evaluator::grep(const Texts& words, bool extended) {
  bool only = false, quiet = false, inverted = false, ignore = false, counts = false;
  std::optional<std::string> pattern;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_known(words[i])) return std::nullopt;
    const std::string word = bytes_of(words[i]);
    if (pattern) return std::nullopt;  // files
    if (word.size() < 2 || word[0] != '-') {
      pattern = word;
      continue;
    }
    for (const char c : word.substr(1)) {
      only = only || c == 'o', quiet = quiet || c == 'q', inverted = inverted || c == 'v', ignore = ignore || c == 'i',
      counts = counts || c == 'c';
      extended = extended || c == 'E';
      if (std::string_view("oqviEcs").find(c) == std::string_view::npos) return std::nullopt;
    }
  }
  const std::optional<Regular> regular = pattern ? Regular::compile(*pattern, extended, ignore) : std::nullopt;
  if (!regular) return std::nullopt;
  Text out;
  std::size_t found = 0;
  for (const Text& line : lines_of(rest_of_input())) {
    if (const std::optional<char32_t> open = first_unknown(line)) {
      if (!quiet) write(1, Text(1, *open));
      return undecided(*open);
    }
    const std::string text = bytes_of(line);
    std::vector<Span> match = regular->find(text, 0, budget_);
    if (match.empty() == inverted) ++found;
    if (only && !inverted) {
      for (; !match.empty(); match = regular->find(text, match[0].begin + std::max<std::size_t>(match[0].length, 1), budget_)) {
        if (match[0].length > 0) out += text_of(text.substr(match[0].begin, match[0].length) + "\n");
        if (match[0].begin + match[0].length >= text.size()) break;
      }
    } else if (match.empty() == inverted) {
      out += line + text_of("\n");
    }
    budget_.text(out.size());
  }
  if (!quiet) write(1, counts ? text_of(fmt::format("{}\n", found)) : out);
  return of(found > 0);
}

/// Alone it only trims.
std::optional<Status> Evaluator::xargs(const Texts& words) {
  if (!words.empty()) return std::nullopt;
  Text out;
  for (const char32_t unit : rest_of_input()) {
    const bool blank = unit == U' ' || unit == U'\n' || unit == U'\t';
    if (unit == U'\'' || unit == U'"' || unit == U'\\') return std::nullopt;
    if (!blank)
      out += unit;
    else if (!out.empty() && out.back() != U' ')
      out += U' ';
  }
  while (!out.empty() && out.back() == U' ') out.pop_back();
  write(1, out + text_of("\n"));
  return Status{};
}

std::optional<Status> Evaluator::uname(const Texts& words) {
  const std::string how = words.empty() ? "-s" : bytes_of(words[0]);
  if (how != "-s" && how != "-m") return std::nullopt;
  write(1, text_of(how == "-s" ? "Linux\n" : "x86_64\n"));
  return Status{};
}

std::optional<Status> Evaluator::expr(const Texts& words) {
  Text whole;
  for (const Text& word : words) whole += (whole.empty() ? Text() : text_of(" ")) + word;
  if (const std::optional<char32_t> open = first_unknown(whole)) return write(1, Text(1, *open)), Status{};
  const std::string text = bytes_of(whole);
  if (text.find_first_not_of("0123456789+-*/% ()") != std::string::npos) return std::nullopt;
  const std::int64_t value = calculated(whole);
  write(1, text_of(fmt::format("{}\n", value)));
  return of(value != 0);
}

}  // namespace oomplan::launch
