// Redirections: what a script writes to a file can be read from it again; other files are asked for (Bash Reference Manual 5.2,
// 3.6).
#include <charconv>

#include <fmt/format.h>

#include "frontends/launch/evaluator.hpp"
#include "frontends/launch/paths.hpp"

namespace oomplan::launch {

std::string Evaluator::path_of(const Text& path) const { return joined_path(bytes_of(state_.folder), bytes_of(path)); }

bool Evaluator::redirect(const std::vector<Redirection>& all) {
  for (const Redirection& one : all) redirect_one(one);
  return true;
}

void Evaluator::redirect_one(const Redirection& r) {
  if (r.op == "<<") {
    const Text body = joined_text(r.document->body);
    streams_.in = std::make_shared<Input>(Input{body, 0});
    return;
  }
  const Text target = joined_text(r.target);
  if (r.op == "<<<") {
    streams_.in = std::make_shared<Input>(Input{target + text_of("\n"), 0});
    return;
  }
  const bool reads = r.op == "<" || r.op == "<&" || r.op == "<>";
  const int from = r.descriptor >= 0 ? r.descriptor : reads ? 0 : 1;
  const std::string name = bytes_of(target);
  int number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = !name.empty() && error == std::errc{} && end == name.data() + name.size();
  if (r.op == "<&") return;
  if (r.op == "<" || r.op == "<>") {
    if (from == 0) open_input(target);
    return;
  }
  if (r.op == ">&" && (is_number || name == "-")) {
    const auto at = streams_.out.find(number);
    streams_.out[from] = name == "-" || at == streams_.out.end() ? nullptr : at->second;
    return;
  }
  const bool both = r.op == "&>" || r.op == "&>>" || r.op == ">&";
  const Sink sink = file_sink(target, r.op == ">>" || r.op == "&>>");
  streams_.out[from] = sink;
  if (both) streams_.out[2] = sink;
}

Sink Evaluator::file_sink(const Text& path, bool append) {
  const std::string name = bytes_of(path);
  if (name == "/dev/null") return nullptr;
  if (name == "/dev/stderr" || name == "/dev/stdout" || name == "/dev/tty") return terminal_;
  if (files_.size() > 10'000) throw TooMuch("more than 10000 files written");
  Sink& sink = files_[is_known(path) ? text_of(path_of(path)) : path];
  if (!append || !sink) sink = std::make_shared<Text>();
  return sink;
}

std::optional<std::string> Evaluator::file_text(const Text& path) {
  if (!is_known(path) || path.empty() || !input_.open) return std::nullopt;
  budget_.spend(100);
  return without_zero_bytes(input_.open(path_of(path)));
}

void Evaluator::open_input(const Text& path) {
  const auto made = files_.find(is_known(path) ? text_of(path_of(path)) : path);
  if (made != files_.end()) {
    streams_.in = std::make_shared<Input>(Input{*made->second, 0});
  } else if (bytes_of(path) == "/dev/null") {
    streams_.in = std::make_shared<Input>();
  } else if (const std::optional<std::string> text = file_text(path)) {
    streams_.in = std::make_shared<Input>(Input{text_of(*text), 0});
  } else {
    streams_.in = std::make_shared<Input>(Input{unknown_text(Unknown::Kind::outside, shown(path)), 0});
  }
}

void Evaluator::write(int descriptor, const Text& text) {
  const auto at = streams_.out.find(descriptor);
  if (at == streams_.out.end() || !at->second) return;
  Text& out = *at->second;
  if (at->second == terminal_ && out.size() > 8192) out.erase(0, 4096);
  budget_.text(out.size() + text.size());
  out += plain(text);
}

Text Evaluator::rest_of_input() {
  if (!streams_.in) return unknown_text(Unknown::Kind::outside, "standard input");
  Text out = streams_.in->text.substr(std::min(streams_.in->at, streams_.in->text.size()));
  streams_.in->at = streams_.in->text.size();
  budget_.text(out.size());
  return out;
}

}  // namespace oomplan::launch
