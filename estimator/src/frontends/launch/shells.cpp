// Shells that a script starts, and files that it sources: they are read as the script is.
#include <algorithm>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/paths.hpp"
#include "frontends/launch/wrappers.hpp"

namespace oomplan::launch {

/// As written; else, where a script names the folder of its own checkout ("/root/slime/scripts/x.sh"), the same file below one
/// of the folders that the script itself stands in.
std::optional<std::string> Evaluator::file_for_source(const Text& name, std::string& path) {
  if (!is_known(name) || name.empty() || !input_.open) return std::nullopt;
  budget_.spend(100);
  const auto asked = [&](const std::string& candidate) -> std::optional<std::string> {
    try {
      return without_zero_bytes(input_.open(candidate));
    } catch (const InputError& e) {
      if (candidate == path) note(Note::Level::warning, to_text(e.problems[0]));
      return std::nullopt;
    }
  };
  if (std::optional<std::string> text = asked(path)) return text;
  const std::string wanted = path;
  if (!bytes_of(name).starts_with('/') || (!input_.folder.empty() && wanted.starts_with(input_.folder + "/")))
    return std::nullopt;
  std::string folder = joined_path(input_.folder.empty() ? "." : input_.folder, folder_of(input_.name));
  for (int up = 0; up < 6; ++up, folder = folder_of(folder)) {
    for (std::size_t slash = wanted.find('/', 1); slash != std::string::npos; slash = wanted.find('/', slash + 1)) {
      const std::string tail = wanted.substr(slash + 1);
      if (tail.find('/') == std::string::npos) break;
      const std::string candidate = joined_path(folder, tail);
      if (std::optional<std::string> text = asked(candidate)) {
        note(Note::Level::info, fmt::format("{} is taken from {}", wanted, candidate));
        path = candidate;
        return text;
      }
    }
    if (folder == "/" || folder == ".") break;
  }
  return std::nullopt;
}

namespace {

struct ShellCall {
  std::optional<Text> text;  ///< of -c
  std::optional<Text> file;
  bool reads_input = false;
  bool errexit = false, nounset = false;
  std::vector<Text> arguments;  ///< $0 of -c first
};

ShellCall shell_call(const std::vector<StartedWord>& words, std::size_t at) {
  ShellCall out;
  std::vector<Text> all;
  for (std::size_t i = at; i < words.size(); ++i)
    if (!words[i].vanishes) all.push_back(words[i].text);
  std::size_t i = 1;
  bool is_text = false;
  for (; i < all.size(); ++i) {
    const std::string word = is_known(all[i]) ? bytes_of(all[i]) : "";
    if (word.size() < 2 || (word[0] != '-' && word[0] != '+')) break;
    if (word == "--") {
      ++i;
      break;
    }
    if (word.starts_with("--")) {
      if (word == "--rcfile" || word == "--init-file") ++i;
      continue;
    }
    for (const char c : word.substr(1)) {
      is_text = is_text || c == 'c';
      out.errexit = out.errexit || c == 'e';
      out.nounset = out.nounset || c == 'u';
      out.reads_input = out.reads_input || c == 's';
      if (c == 'o' || c == 'O') ++i;
    }
  }
  if (i < all.size() && is_text)
    out.text = all[i++];
  else if (i < all.size() && !out.reads_input)
    out.file = all[i++];
  else
    out.reads_input = true;
  out.arguments.assign(all.begin() + static_cast<std::ptrdiff_t>(std::min(i, all.size())), all.end());
  return out;
}

}  // namespace

/// A shell among the words, behind wrappers: what it reads is read here as well.
std::optional<Status> Evaluator::shell(const std::vector<StartedWord>& words, const std::map<std::string, Text>& environment) {
  const Unwrapped found = unwrap(words);
  ShellCall call;
  const std::string name = found.entry.name;
  const bool is_file = found.entry.kind == Entry::Kind::program && (name.ends_with(".sh") || name.ends_with(".bash") ||
                                                                    name.ends_with(".slurm") || name.ends_with(".sbatch"));
  if (found.entry.kind == Entry::Kind::text) {
    call.text = found.entry.whole;
  } else if (found.entry.kind == Entry::Kind::program && is_shell(name)) {
    call = shell_call(words, found.entry.at);
  } else if (is_file) {
    call.file = words[found.entry.at].text;
    for (std::size_t i = found.entry.first; i < words.size(); ++i)
      if (!words[i].vanishes) call.arguments.push_back(words[i].text);
  } else {
    return std::nullopt;
  }
  std::optional<std::string> text;
  std::string file = file_, zero = name;
  int first_line = line_;
  if (call.text) {
    if (is_open(*call.text, unknowns_)) return std::nullopt;
    text = bytes_of(*call.text);
    if (!call.arguments.empty()) zero = bytes_of(call.arguments[0]), call.arguments.erase(call.arguments.begin());
  } else if (call.file) {
    const auto made = files_.find(is_known(*call.file) ? text_of(path_of(*call.file)) : *call.file);
    file = path_of(*call.file);
    text = made != files_.end() ? std::optional(bytes_of(*made->second)) : file_for_source(*call.file, file);
    first_line = 1;
    if (!text) {
      note(Note::Level::warning, shown(*call.file) + std::string(kNotHere));
      return std::nullopt;
    }
    zero = is_known(*call.file) ? bytes_of(*call.file) : file;
    file = zero;
  } else {
    if (!streams_.in) return std::nullopt;
    const Text all = rest_of_input();
    if (is_open(all, unknowns_)) return std::nullopt;
    text = bytes_of(all);
  }
  if (outer_levels_ > 15) throw TooMuch("shells that start each other without end");
  return inner_shell(*text, zero, file, first_line, call.errexit, call.nounset, call.arguments, words, found, environment);
}

Status Evaluator::inner_shell(const std::string& text, const std::string& zero, const std::string& file, int first_line,
                              bool errexit, bool nounset, const Texts& arguments, const std::vector<StartedWord>& words,
                              const Unwrapped& found, std::map<std::string, Text> environment) {
  for (const Wrapper& wrapper : found.wrappers)
    for (const auto& [name, value] : wrapper.environment) environment[name] = value;
  Status out;
  ++outer_levels_;
  const auto outer = outer_;
  const auto sources = std::exchange(sources_, {zero});
  const auto functions = std::exchange(functions_, {});
  const int tested = std::exchange(tested_, 0);
  const std::string before = file_;
  const int line = line_;
  for (const StartedWord& word : words)
    if (!word.vanishes) outer_.push_back(word);
  subshell([&] {
    State fresh;
    fresh.folder = state_.folder;
    fresh.erased = state_.erased;
    fresh.positional = arguments;
    fresh.errexit = errexit, fresh.nounset = nounset;
    for (const auto& [name, value] : environment) {
      Variable& v = fresh.scopes[0][name];
      v.set = true, v.exported = true, v.value = value;
    }
    state_ = std::move(fresh);
    run_text(text, file, first_line, first_line == 1);
    out = last_;
    if (flow_ == Flow::ended && ending_ && out.code != 0)
      note(Note::Level::warning, fmt::format("{} ends at line {} with status {}", file, ending_->place.line, out.code));
  });
  sources_ = sources;
  functions_ = functions;
  tested_ = tested;
  outer_ = outer;
  file_ = before;
  line_ = line;
  --outer_levels_;
  return out;
}

}  // namespace oomplan::launch
