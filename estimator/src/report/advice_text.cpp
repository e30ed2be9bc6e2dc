// Advice for a person: a table of changes, and behind every one what it costs and how to write it.
#include <algorithm>

#include <fmt/format.h>

#include "job/names.hpp"
#include "report/format.hpp"
#include "report/live_table.hpp"
#include "report/process_parts.hpp"
#include "report/report.hpp"

namespace oomplan {
namespace {

using Align = Table::Align;

std::string for_shell(std::string_view argument) {
  const auto safe = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_./:=+-,@%").find(c) != std::string_view::npos;
  };
  if (!argument.empty() && std::all_of(argument.begin(), argument.end(), safe)) return std::string(argument);
  std::string out = "'";
  for (const char c : argument) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::size_t width_of(const TextStyle& style) { return static_cast<std::size_t>(std::max(40, style.width)); }

/// "actor.backend: fsdp:d4 -> fsdp:d8".
std::string changed(const std::string& key, const std::string& from, const std::string& to) {
  constexpr std::size_t kWhole = 56;  // a longer one shows what differs
  return printable(key) + ": " + change_text(printable(from), printable(to), kWhole);
}

std::string table(const std::vector<Remedy>& remedies, const TextStyle& style) {
  Table rows({Align::right, Align::right, Align::left, Align::right, Align::left, Align::left});
  rows.row({head("#"), head("gain"), head("alone"), head("step time"), head("changes"), head("what to change")});
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    const Remedy& r = remedies[i];
    rows.row({std::to_string(i + 1), bytes_text(r.gain),
              r.fits ? Table::Cell("fits", Colour::good) : Table::Cell("not enough", Colour::dim),
              r.step_time ? fmt::format("{:.2f}", *r.step_time) : "-", std::string(spelling(r.effect)),
              changed(r.key, r.from, r.to)});
  }
  return rows.text(2, style.colour, width_of(style));
}

std::string patch_lines(const Patch& patch, std::size_t width) {
  std::string out = change_lines(patch.overrides, width, 5);
  const bool written = patch.diff.empty() && !patch.file.empty();
  if (written) out += "     or leave out  " + shell_lines(patch.stale, width, 19) + ": the file says it already\n";
  if (patch.file.empty() && patch.in_file) out += "     the text of the file cannot be edited so: only the command line\n";
  if (!written && !patch.stale.empty()) out += "     with --diff leave out  " + shell_lines(patch.stale, width, 28) + "\n";
  return out;
}

std::string details(const std::vector<Remedy>& remedies, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    const Remedy& r = remedies[i];
    out += fmt::format("  {}. {}\n", i + 1, wrapped(printable(r.text), width - 4, 5));
    out += patch_lines(r.patch, width);
  }
  return out;
}

/// The cheapest changes that are enough together.
std::string together(const Together& t, const TextStyle& style, std::size_t width) {
  std::string out =
      "\n" + paint("None is enough alone; together these are, the cheapest that were found", Colour::strong, style.colour) + "\n";
  Table rows({Align::left, Align::left});
  for (const Change& change : t.changes)
    rows.row({{std::string(spelling(change.effect)), Colour::dim}, changed(change.key, change.from, change.to)});
  out += rows.text(2, style.colour, width);
  std::string line = fmt::format("gain {}", bytes_text(t.gain));
  if (t.fit_probability) line += fmt::format(", probability that it fits {}", probability_text(*t.fit_probability));
  if (t.step_time) line += fmt::format(", step time {:.2f}", *t.step_time);
  out += "  " + wrapped(line, width - 2, 4) + "\n";
  for (const auto& text : t.texts) out += "   - " + wrapped(printable(text), width - 4, 5) + "\n";
  return out + patch_lines(t.patch, width);
}

/// Where no change is enough alone.
std::string hardware(const Advice& advice, const TextStyle& style, std::size_t width) {
  if (advice.estimate.fits() || (advice.together && !advice.larger_gpu && !advice.more_gpus)) return {};
  if (std::any_of(advice.remedies.begin(), advice.remedies.end(), [](const Remedy& r) { return r.fits; })) return {};
  const char* const title = advice.together ? "Or other hardware" : "Nor is any pair or triple of them enough";
  std::string out = "\n" + paint(title, Colour::strong, style.colour) + "\n";
  const auto line = [&](const std::string& where, const Hardware& h) {
    const std::string how = h.changes.empty() ? "as it is" : "with " + printable(h.changes);
    out += "  " + wrapped(fmt::format("fits {}: {}", where, how), width - 2, 4) + "\n";
  };
  if (advice.larger_gpu)
    line(fmt::format("on {}, the smallest kind of GPU that does", advice.larger_gpu->gpu), *advice.larger_gpu);
  if (advice.more_gpus)
    line(fmt::format("on {} GPUs of this kind, the fewest that were found", grouped(advice.more_gpus->gpus)), *advice.more_gpus);
  if (!advice.larger_gpu && !advice.more_gpus) out += "  nor any kind of GPU that is known, nor more of them\n";
  return out;
}

/// The first is where the job ends.
std::string causes(const Advice& advice, const TextStyle& style, std::size_t width) {
  if (advice.causes.empty()) return {};
  std::string out = paint("What breaks, in the order of the run", Colour::strong, style.colour) + "\n";
  for (const Cause& c : advice.causes) {
    std::string line = fmt::format("{} of {}: {}", c.phase, printable(c.ranks), printable(c.text));
    if (c.needed > 0) line += fmt::format("; {} of {} usable", bytes_text(c.needed), bytes_text(c.usable));
    if (c.others > 0)
      line += fmt::format(", {} of it held by {}", bytes_text(c.others),
                          c.beside.empty() ? "other processes on the GPU" : processes_text(c.beside));
    if (!c.log.empty()) line += fmt::format(". Seen in {}", c.log);
    out += "  " + wrapped(line, width - 2, 4) + "\n";
    if (!c.tensors.empty()) out += live_table(c.tensors, c.tensors.size(), 4, style);
  }
  return out + "\n";
}

}  // namespace

std::string shell_lines(const std::vector<std::string>& arguments, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t used = indent;
  for (const auto& argument : arguments) {
    const std::string text = printable(for_shell(argument));
    if (!out.empty()) {
      const bool next_line = used + 1 + columns(text) > width;
      out += next_line ? "\n" + std::string(indent, ' ') : " ";
      used = next_line ? indent : used + 1;
    }
    out += text;
    used += columns(text);
  }
  return out;
}

std::string to_text(const Advice& advice, const TextStyle& style) {
  const auto width = static_cast<std::size_t>(std::max(40, style.width));
  const bool fits = advice.estimate.fits();
  std::string out = paint(verdict(advice.estimate), fits ? Colour::good : Colour::bad, style.colour) + "\n\n";
  out += causes(advice, style, width);
  if (advice.remedies.empty()) {
    out += "No single change that is allowed saves a MiB at the worst moment; `oomplan search` combines changes.\n";
  } else {
    out += paint("What would help, most gain for the least cost first", Colour::strong, style.colour) + "\n";
    out += table(advice.remedies, style) + "\n" + details(advice.remedies, width);
  }
  if (advice.together) out += together(*advice.together, style, width);
  out += hardware(advice, style, width);
  if (!advice.other_tasks.empty()) {
    out += "\n" + paint("What another task would need less (--allow semantics)", Colour::strong, style.colour) + "\n";
    out += table(advice.other_tasks, style) + "\n" + details(advice.other_tasks, width);
  }
  if (!advice.left_out.empty()) {
    out += "\n" + paint("What the file cannot say", Colour::strong, style.colour) + "\n";
    for (const auto& note : advice.left_out)
      out += "  " + wrapped(printable(note.place.path) + ": " + printable(note.text), width - 2, 4) + "\n";
  }
  bool noted = false;
  for (const auto& note : advice.reading.notes) {
    if (note.level != Note::Level::warning) continue;
    if (!noted) out += "\n" + paint("Notes", Colour::strong, style.colour) + "\n";
    noted = true;
    Problem line;
    line.place = note.place;
    line.why = note.text;
    out += "  " + wrapped("warning: " + printable(to_text(line)), width - 2, 4) + "\n";
  }
  return out;
}

std::string change_lines(const std::vector<std::string>& overrides, std::size_t width, std::size_t indent) {
  std::vector<std::string> append, take_out;
  for (const std::string& one : overrides)
    if (one.starts_with("~--"))
      take_out.push_back(one.substr(1));
    else
      append.push_back(one);
  const std::string blank(indent, ' ');
  std::string out;
  if (!append.empty() || take_out.empty()) out += blank + "append  " + shell_lines(append, width, indent + 8) + "\n";
  if (!take_out.empty()) out += blank + "take out  " + shell_lines(take_out, width, indent + 10) + "\n";
  return out;
}

}  // namespace oomplan
