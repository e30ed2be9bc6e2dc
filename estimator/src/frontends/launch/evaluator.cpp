#include "frontends/launch/evaluator.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/launch/parser.hpp"

namespace oomplan::launch {
namespace {

constexpr std::size_t kMostUnknowns = 100'000;

std::string last_line(const Text& text) {
  std::string all = bytes_of(text);
  while (!all.empty() && (all.back() == '\n' || all.back() == ' ')) all.pop_back();
  const std::size_t start = all.rfind('\n');
  return all.substr(start == std::string::npos ? 0 : start + 1);
}

}  // namespace

Evaluator::Evaluator(const ScriptInput& input) : input_(input) {
  for (const std::string& argument : input.arguments) state_.positional.push_back(text_of(argument));
  state_.folder = text_of(input.folder.empty() ? "." : input.folder);
  streams_.out = {{1, terminal_}, {2, terminal_}};
}

char32_t Evaluator::unknown(Unknown::Kind kind, std::string name, std::string why) {
  const std::string key = fmt::format("{}\n{}\n{}", static_cast<int>(kind), name, why);
  const auto [at, made] = known_unknowns_.emplace(key, unknowns_.size());
  if (made) {
    if (unknowns_.size() >= kMostUnknowns) throw TooMuch("more than 100000 unknown values");
    unknowns_.push_back({kind, std::move(name), std::move(why), file_, line_});
  }
  return unknown_unit(at->second);
}

Text Evaluator::as_bash(const Text& text) {
  Text out;
  out.reserve(text.size());
  for (const char32_t unit : text)
    if (!is_unset(unit))
      out += unit;
    else if (rests_on_.size() < 100)
      rests_on_.push_back(unknowns_[index_of(unit)].name);
  return out;
}

std::optional<char32_t> Evaluator::first_unknown(const Text& text) const {
  const auto at = std::find_if(text.begin(), text.end(), is_unknown);
  return at == text.end() ? std::nullopt : std::optional(*at & ~kFlags);
}

std::string Evaluator::shown(const Text& text) const {
  std::string out;
  for (const char32_t unit : text) {
    if (!is_unknown(unit)) {
      out += byte_of(unit);
      continue;
    }
    const std::string& name = unknowns_[index_of(unit)].name;
    out += is_name(name) ? "${" + name + "}" : name;
  }
  return out;
}

void Evaluator::note(Note::Level level, std::string text) {
  const bool told =
      std::any_of(notes_.begin(), notes_.end(), [&](const Note& n) { return n.place.line == line_ && n.text == text; });
  if (!told && notes_.size() < 1000) notes_.push_back({level, here(), std::move(text)});
}

void Evaluator::run_text(const std::string& whole, const std::string& name, int first_line, bool is_file) {
  std::string_view text = whole;
  const std::size_t last = text.find_last_not_of('\\');
  if (is_file && (text.size() - (last == std::string_view::npos ? 0 : last + 1)) % 2 == 1)
    text.remove_suffix(1);  // at the end of a file it is nothing
  Parsed parsed = parse(text, name, first_line);
  const Script& script = keep(parsed.script);
  const std::string file = file_;
  file_ = name;
  sources_.push_back(name);
  for (const AndOr& item : script.items) {
    if (flow_ != Flow::on) break;
    last_ = run(item);
    if (flow_ == Flow::discarded) {
      flow_ = Flow::on;
      errexit_after({1, false, {}}, item.written, item.line);
    }
  }
  sources_.pop_back();
  file_ = file;
  if (parsed.broken && flow_ == Flow::on) {
    if (!out_.broken) out_.broken = *parsed.broken;
    last_ = {2, false, {}};
  }
}

ScriptReading Evaluator::run() {
  try {
    sources_.push_back(input_.name);
    run_text(input_.text, input_.name);
  } catch (const TooMuch& e) {
    throw InputError(Problem{here(), e.what(), "a script that starts a job", {}, {}});
  }
  out_.status = last_.code;
  if (ending_) {
    out_.ended_at = ending_->place;
    out_.ended_by = ending_->by;
    out_.rests_on = ending_->rests_on;
  }
  out_.said = last_line(*terminal_);
  out_.started = std::move(started_);
  out_.unknowns = std::move(unknowns_);
  out_.notes = std::move(notes_);
  for (const auto& [path, text] : files_) out_.written[path] = *text;
  return std::move(out_);
}

ScriptReading read_script(const ScriptInput& input) { return Evaluator(input).run(); }

}  // namespace oomplan::launch
