// The table that a person reads in a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "job/names.hpp"
#include "report/blocks.hpp"
#include "report/curve_text.hpp"
#include "report/format.hpp"
#include "report/in_service.hpp"
#include "report/live_table.hpp"
#include "report/process_parts.hpp"
#include "report/report.hpp"
#include "report/serving_table.hpp"

namespace oomplan {
namespace {

using Align = Table::Align;

constexpr std::size_t kLiveRows = 20;  // explain: tensors shown of one class of GPUs
constexpr int kCategoryBar = 24;

Colour colour_of(Bytes part, Bytes whole) {
  if (part > whole) return Colour::bad;
  return static_cast<double>(part) > 0.9 * static_cast<double>(whole) ? Colour::near : Colour::good;
}

std::size_t width_of(const TextStyle& style) { return static_cast<std::size_t>(std::max(40, style.width)); }

std::string heading(const std::string& text, const TextStyle& style) {
  return "\n" + paint(text, Colour::strong, style.colour) + "\n";
}

std::string sum_text(std::int64_t n, const char* one, const char* many) {
  return fmt::format("{} {}", grouped(n), n == 1 ? one : many);
}

/// Columns of the phases for which there is room; a terminal of 80 columns has it for all.
struct PhaseColumns {
  int bar = 0;  ///< 0: none
  bool spare = true;

  PhaseColumns(int width, int phases) {
    // indent 4, needed 12, percent 9, to spare 10, "worst" 5, and a gap of two behind all but the last
    const int rest = 4 + phases + 12 + 9 + 10 + 5 + 10;
    constexpr int kNeeded = 6, kLeast = 8;  // needed and to spare are mostly two columns narrower
    const int room = width - rest;
    bar = room >= kNeeded ? std::clamp(room, kLeast, 40) : 0;
    spare = bar > 0 || room + 2 >= 0;
  }
  std::vector<Align> alignment() const {
    std::vector<Align> out{Align::left, Align::right};
    if (bar > 0) out.push_back(Align::left);
    out.push_back(Align::right);
    if (spare) out.push_back(Align::right);
    out.push_back(Align::left);
    return out;
  }
  std::vector<Table::Cell> cells(Table::Cell phase, Table::Cell needed, Table::Cell drawn, Table::Cell percent, Table::Cell left,
                                 Table::Cell mark) const {
    std::vector<Table::Cell> out{std::move(phase), std::move(needed)};
    if (bar > 0) out.push_back(std::move(drawn));
    out.push_back(std::move(percent));
    if (spare) out.push_back(std::move(left));
    out.push_back(std::move(mark));
    return out;
  }
};

std::string phase_table(const Estimate& estimate, const TextStyle& style) {
  std::size_t phases = 5;
  const std::vector<GpuBlock> blocks = blocks_of(estimate.gpus);
  for (const auto& gpu : estimate.gpus)
    for (const auto& phase : gpu.phases) phases = std::max(phases, columns(printable(phase.phase)));
  phases = std::min<std::size_t>(phases, 32);
  const PhaseColumns shown(style.width, static_cast<int>(phases));
  // One table for all classes, so that columns are aligned; it is cut at the classes' headings afterwards.
  Table table(shown.alignment());
  table.row(shown.cells(head("phase"), head("needed"), "", head("of usable"), head("to spare"), ""));
  for (const auto& [gpu, spread] : blocks) {
    for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
      const Moment& phase = gpu.phases[i];
      const Bytes needed = phase.usage.capacity_needed;
      const std::string mark = i != gpu.worst || gpu.phases.size() < 2 ? "" : "worst";
      table.row(shown.cells(
          clipped(printable(phase.phase), phases), (phase.bound ? "<= " : "") + bytes_text(needed),
          {bar(needed, gpu.usable, shown.bar, style.unicode), colour_of(needed, gpu.usable)}, percent_text(needed, gpu.usable),
          {bytes_text(gpu.usable - needed), needed > gpu.usable ? Colour::bad : Colour::none}, {mark, Colour::dim}));
    }
  }
  const std::string all = table.text(4, style.colour);
  std::size_t at = all.find('\n') + 1;
  std::string out = all.substr(0, at);
  for (const auto& [gpu, spread] : blocks) {
    out += "  " + paint(printable(gpu.ranks), Colour::strong, style.colour);
    if (!gpu.gpus.empty()) out += fmt::format(" ({} x {})", gpu.gpus.size(), printable(gpu.gpu));
    if (gpu.phases.empty()) out += " does nothing";
    if (spread > 0) {
      const std::string note = fmt::format("the most of any; they differ by {} at most", bytes_text(spread));
      const std::size_t line = columns(printable(gpu.ranks)) + columns(printable(gpu.gpu)) + columns(note) + 16;
      out += (line > width_of(style) ? ",\n      " : ", ") + note;
    }
    out += '\n';
    for (std::size_t i = 0; i < gpu.phases.size(); ++i) {
      const std::size_t end = all.find('\n', at) + 1;
      out += all.substr(at, end - at);
      at = end;
    }
  }
  return out;
}

std::string categories(const GpuAnswer& gpu, const Estimate& estimate, const TextStyle& style) {
  const Moment& worst = gpu.phases[gpu.worst];
  const Usage& usage = worst.usage;
  std::string out = heading(fmt::format("{}, {}{}: what is on the device", printable(gpu.ranks), printable(worst.phase),
                                        worst.step.empty() ? "" : ", " + printable(worst.step)),
                            style);
  Table table({Align::left, Align::right, Align::left, Align::right});
  Bytes named = 0;
  Bytes largest = 0;
  for (const Bytes bytes : usage.by_category) {
    named += bytes;
    largest = std::max(largest, bytes);
  }
  Bytes beside = 0;
  for (const ProcessShare& process : worst.beside) {
    beside += process.device;
    largest = std::max(largest, process.device);
  }
  const Bytes loose = named > 0 ? std::max<Bytes>(0, usage.device - named - beside) : 0;
  largest = std::max(largest, loose);
  for (std::size_t i = 0; i < usage.by_category.size() && i < static_cast<std::size_t>(kCategories); ++i) {
    const Bytes bytes = usage.by_category[i];
    if (bytes == 0) continue;
    table.row({category_words(static_cast<Category>(i)), bytes_text(bytes), bar(bytes, largest, kCategoryBar, style.unicode),
               percent_text(bytes, std::max(usage.device, named))});
  }
  if (loose > 0)
    table.row({"in no live tensor", bytes_text(loose), bar(loose, largest, kCategoryBar, style.unicode),
               percent_text(loose, usage.device)});
  for (const ProcessShare& process : worst.beside) {
    table.row({fmt::format("held by {}", printable(process.roles)), bytes_text(process.device),
               bar(process.device, largest, kCategoryBar, style.unicode), percent_text(process.device, usage.device)});
    for (const auto& [label, bytes] : parts_of(process)) table.row({"  " + label, bytes_text(bytes)});
  }
  out += table.text(2, style.colour);
  out += fmt::format("  allocated {}, reserved {}{}, on the device {}, smallest device that would do {}",
                     bytes_text(usage.allocated), bytes_text(usage.reserved), estimate.replayed ? "" : " or more",
                     bytes_text(usage.device), bytes_text(usage.capacity_needed));
  if (worst.allocator_retries > 0)
    out += fmt::format("; {}", sum_text(worst.allocator_retries, "allocator retry a step", "allocator retries a step"));
  out += '\n';
  if (worst.bound) out += "  An upper bound: how two processes take turns here is not known.\n";
  return out;
}

std::string curve(const GpuAnswer& gpu, const TextStyle& style) {
  if (gpu.curve.empty()) return {};
  return heading(fmt::format("{}: one iteration, in the order of its allocations", printable(gpu.ranks)), style) +
         curve_text(gpu.curve, gpu.usable, style);
}

std::string live_below(const std::vector<LiveTensor>& live, const TextStyle& style) {
  return live.empty() ? "" : "\n" + live_table(live, kLiveRows, 2, style);
}

std::string servers(const Estimate& estimate, const TextStyle& style) {
  if (estimate.servers.empty()) return {};
  std::string out = heading("Servers", style);
  for (const auto& server : estimate.servers) {
    out += fmt::format("  {}: per GPU {} weights, {} KV pool, {} besides\n", printable(server.role), bytes_text(server.weights),
                       bytes_text(server.kv_pool), bytes_text(server.non_kv));
    out += fmt::format("    one replica caches {} tokens ({} a token and GPU)", grouped(server.kv_tokens),
                       bytes_text(server.kv_bytes_per_token));
    if (server.tokens_per_request > 0)
      out += fmt::format(", {} of {} tokens", sum_text(server.requests_of_full_length, "request", "requests"),
                         grouped(server.tokens_per_request));
    if (server.requests_asked > 0) out += fmt::format("; {} asked", grouped(server.requests_asked));
    out += '\n';
    if (!server.shortage.empty())
      out += "    " +
             paint(server.refused ? "does not start" : "short of KV memory", server.refused ? Colour::bad : Colour::near,
                   style.colour) +
             ": " + wrapped(printable(server.shortage), static_cast<std::size_t>(std::max(40, style.width)), 6) + "\n";
    if (server.in_service) out += in_service_lines(*server.in_service, 4, static_cast<std::size_t>(std::max(40, style.width)));
  }
  return out;
}

std::string hosts(const Estimate& estimate, const TextStyle& style) {
  if (estimate.hosts.empty()) return {};
  std::string out = heading("Host memory", style);
  Table table({Align::left, Align::left, Align::right, Align::left, Align::right});
  for (const auto& host : estimate.hosts) {
    if (host.phases.empty()) continue;
    const auto& [phase, bytes] = host.phases[host.worst];
    table.row(
        {"node " + printable(host.nodes), printable(phase), bytes_text(bytes),
         host.usable > 0 ? Table::Cell(bar(bytes, host.usable, kCategoryBar, style.unicode), colour_of(bytes, host.usable))
                         : Table::Cell(""),
         host.usable > 0 ? percent_text(bytes, host.usable) + " of " + bytes_text(host.usable) : "size of the host not stated"});
  }
  return out + table.text(2, style.colour);
}

std::string remedies(const Estimate& estimate, const TextStyle& style) {
  if (estimate.remedies.empty()) return {};
  std::string out = heading("What would help (each alone, judged by an estimate of its own)", style);
  Table table({Align::right, Align::left, Align::left, Align::left});
  table.row({head("gain"), head("alone"), head("costs"), head("what to change")});
  for (const auto& remedy : estimate.remedies) {
    table.row({bytes_text(remedy.gain), remedy.fits ? Table::Cell("fits", Colour::good) : Table::Cell("not enough", Colour::dim),
               std::string(spelling(remedy.effect)),
               printable(remedy.key) + ": " + change_text(printable(remedy.from), printable(remedy.to), 56)});
  }
  out += table.text(2, style.colour, width_of(style));
  std::string told;
  for (const auto& remedy : estimate.remedies)
    if (!remedy.text.empty())
      told +=
          "    " +
          wrapped(printable(remedy.key) + ": " + printable(remedy.text), static_cast<std::size_t>(std::max(40, style.width)), 6) +
          "\n";
  return out + told;
}

std::string probability(const Estimate& estimate, const TextStyle& style) {
  if (!estimate.fit_probability) return {};
  const double p = *estimate.fit_probability;
  const Colour colour = p >= 0.9 ? Colour::good : p >= 0.1 ? Colour::near : Colour::bad;
  return paint("probability that it fits: " + probability_text(p), colour, style.colour) + "\n";
}

std::string evidence(const Estimate& estimate) {
  const Evidence& e = estimate.evidence;
  if (e.measurements <= 0) return "\nEvidence: no measured case is like this job yet.\n";
  return fmt::format("\nEvidence for the fullest GPU: {} known cases were met within {:.3g} % (median) and {:.3g} % (p95){}.\n",
                     e.measurements, e.error_p50_percent, e.error_p95_percent, e.like.empty() ? "" : ": " + printable(e.like));
}

std::string place_text(const Place& place) {
  std::string out = printable(place.file);
  if (place.line > 0) out += ":" + std::to_string(place.line);
  if (place.line > 0 && place.column > 0) out += ":" + std::to_string(place.column);
  if (!place.path.empty()) out += (out.empty() ? "" : " ") + printable(place.path);
  return out;
}

std::string notes(const Estimate& estimate, const TextStyle& style) {
  if (estimate.notes.empty()) return {};
  std::string out = heading("Notes", style);
  for (const auto& note : estimate.notes) {
    const std::string place = place_text(note.place);
    const bool warning = note.level == Note::Level::warning;
    const std::string text = std::string(warning ? "warning: " : "") + (place.empty() ? "" : place + ": ") + printable(note.text);
    std::string lines = wrapped(text, static_cast<std::size_t>(std::max(40, style.width - 2)), 4);
    if (warning && style.colour && lines.starts_with("warning:")) lines = paint("warning:", Colour::near, true) + lines.substr(8);
    out += "  " + lines + "\n";
  }
  return out;
}

std::string defaults(const Estimate& estimate, const Job& job, const TextStyle& style) {
  const auto taken = assumed(job);
  if (taken.empty()) return {};
  if (!estimate.explained)
    return fmt::format("\n{} the engines' own; `oomplan explain` lists them.\n",
                       sum_text(static_cast<std::int64_t>(taken.size()), "value that the job leaves open is",
                                "values that the job leaves open are"));
  std::string out = heading("Not written in the job, so the engines' own", style);
  Table table({Align::left, Align::left, Align::left, Align::left});
  for (const auto& row : taken)
    table.row({printable(row.key),
               clipped(printable(row.value), 24),
               clipped(printable(row.origin->because), 44),
               {clipped(printable(row.origin->source), 48), Colour::dim}});
  return out + table.text(2, style.colour);
}

std::string changes_text(const std::vector<Change>& changes) {
  std::string out;
  for (const auto& change : changes) {
    const bool gone = change.to == "taken out";  // a switch of a command line
    out += (out.empty() ? "" : " ") + (gone ? "~" + printable(change.key) : printable(change.key) + "=" + printable(change.to));
  }
  return out.empty() ? "(the job as it is)" : out;
}

std::int64_t tokens_of(const Job& job) {
  std::int64_t tokens = 0;
  for (const auto& role : job.roles)
    if (!role.serves() && (role.kind == RoleKind::actor || role.kind == RoleKind::trainer)) {
      const Trainer& t = role.trainer;
      tokens = t.sequences_per_micro_batch > 0 ? t.sequences_per_micro_batch * t.sequence_tokens : t.tokens_per_micro_batch;
    }
  return tokens;
}

}  // namespace

std::string to_text(const Estimate& estimate, const Job& job, const TextStyle& style) {
  std::string out = paint(verdict(estimate), estimate.fits() ? Colour::good : Colour::bad, style.colour) + "\n";
  out += probability(estimate, style);
  if (!estimate.gpus.empty()) out += "\n" + phase_table(estimate, style);
  const GpuAnswer* worst = tightest(estimate);
  for (const auto& gpu : estimate.gpus) {
    if (gpu.phases.empty() || (&gpu != worst && !estimate.explained)) continue;
    out += categories(gpu, estimate, style);
    out += live_below(gpu.phases[gpu.worst].live, style);
    out += curve(gpu, style);
  }
  out += servers(estimate, style);
  out += hosts(estimate, style);
  out += remedies(estimate, style);
  out += notes(estimate, style);
  out += defaults(estimate, job, style);
  out += evidence(estimate);
  return out;
}

namespace {

/// What fits, but not as likely as was asked for; "" nothing.
std::string left_out(const Found& found, const TextStyle& style) {
  if (found.unlikely == 0) return {};
  std::string out =
      fmt::format("left out: {} with less than {:.3g} % probability",
                  sum_text(found.unlikely, "configuration that fits", "configurations that fit"), 100 * found.min_probability);
  if (!found.best.empty() && found.unlikely_step_time > 0 && found.unlikely_step_time < 0.995)
    out += fmt::format(", the fastest of them in {:.2f} of the time", found.unlikely_step_time);
  return wrapped(out + " (--min-probability)", static_cast<std::size_t>(std::max(40, style.width)), 2) + "\n";
}

}  // namespace

namespace {

/// What the letters of the layouts stand for that occur.
std::string letters_text(const Found& found) {
  struct Letter {
    char letter;
    const char* meaning;
    std::int64_t Layout::* degree;
  };
  constexpr std::array<Letter, 5> kLetters{{{'d', "data parallel", &Layout::data},
                                            {'t', "tensor parallel", &Layout::tensor},
                                            {'c', "ranks that share a sequence", &Layout::context},
                                            {'p', "pipeline stages", &Layout::pipeline},
                                            {'e', "expert parallel", &Layout::expert}}};
  std::string out;
  for (const Letter& l : kLetters) {
    const auto has = [&](const Candidate& c) {
      return std::any_of(c.job.roles.begin(), c.job.roles.end(), [&](const Role& r) { return r.layout().*l.degree > 1; });
    };
    if (std::any_of(found.best.begin(), found.best.end(), has))
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", l.letter, l.meaning);
  }
  return out.empty() ? out : "\nIn layouts: " + out + ".\n";
}

}  // namespace

std::string to_text(const Found& found, const Job& job, const TextStyle& style) {
  std::string out;
  if (found.interrupted)
    out += paint(fmt::format("interrupted after {}", sum_text(found.judged, "configuration", "configurations")), Colour::near,
                 style.colour) +
           "; what was found so far:\n";
  if (found.best.empty() && found.interrupted) return out + "nothing that fits\n";
  if (found.best.empty()) {
    const std::string how = found.unlikely == 0 ? "" : fmt::format(" with {:.3g} % probability", 100 * found.min_probability);
    out += paint(fmt::format("nothing fits{}: {} judged", how, sum_text(found.judged, "configuration", "configurations")),
                 Colour::bad, style.colour) +
           "\n" + left_out(found, style);
    if (found.smallest_gpus) out += fmt::format("The same job would fit on {}.\n", sum_text(*found.smallest_gpus, "GPU", "GPUs"));
    if (!found.limits.empty()) {
      out += heading("What stops it", style);
      Table table({Align::left, Align::left, Align::right, Align::left});
      table.row({head("phase"), head("changed"), head("still missing"), head("")});
      for (const auto& limit : found.limits)
        table.row({printable(limit.phase), printable(limit.axis), bytes_text(limit.missing), printable(limit.text)});
      out += table.text(2, style.colour, width_of(style));
    }
    return out;
  }
  const std::string how = found.estimated > 0 ? fmt::format(" by a lower bound, {} estimated, ", grouped(found.estimated)) : ", ";
  out += paint(fmt::format("{} judged{}{} fit; the best {}, fastest first",
                           sum_text(found.judged, "configuration", "configurations"), how, grouped(found.fitting),
                           grouped(static_cast<std::int64_t>(found.best.size()))),
               Colour::good, style.colour) +
         "\n" + left_out(found, style) + "\n";
  if (found.best.front().relative_throughput > 0) return out + serving_table(found, style);
  constexpr std::size_t kWithBars = 70;
  const bool bars = width_of(style) >= kWithBars;
  Table table({Align::right, Align::right, Align::right, Align::left, Align::right, Align::right, Align::right, Align::left});
  table.row({head("#"), head("step time"), head("needed"), head(""), head("of usable"), head("P(fit)"), head("tokens"),
             head("what to change")});
  const auto row = [&](std::string number, const Candidate& candidate, std::string changes) {
    const GpuAnswer* gpu = tightest(candidate.estimate);
    const Bytes needed = gpu == nullptr ? 0 : gpu->phases[gpu->worst].usage.capacity_needed;
    const Bytes usable = gpu == nullptr ? 0 : gpu->usable;
    const std::int64_t tokens = tokens_of(candidate.job);
    table.row({std::move(number),
               candidate.relative_step_time > 0 ? fmt::format("{:.2f}", candidate.relative_step_time) : "-",
               bytes_text(needed),
               {bars ? bar(needed, usable, 12, style.unicode) : std::string(), colour_of(needed, usable)},
               percent_text(needed, usable),
               candidate.estimate.fit_probability ? short_probability(*candidate.estimate.fit_probability) : "-",
               tokens > 0 ? grouped(tokens) : "-",
               std::move(changes)});
  };
  if (found.as_it_stands)
    row("", *found.as_it_stands, found.as_it_stands->estimate.fits() ? "nothing: the job as it is" : "nothing: it does not fit");
  for (std::size_t i = 0; i < found.best.size(); ++i)
    row(std::to_string(i + 1), found.best[i], changes_text(found.best[i].changes));
  out += table.text(2, style.colour, width_of(style));
  out += letters_text(found);
  const Candidate& first = found.best.front();
  Table changes({Align::left, Align::left, Align::left});
  if (!first.changes.empty()) {
    out += heading("The first one changes", style);
    for (const auto& change : first.changes)
      changes.row({printable(change.key),
                   change_text(printable(change.from), printable(change.to), width_of(style) / 2),
                   {std::string(spelling(change.effect)), Colour::dim}});
    out += changes.text(2, style.colour);
  }
  if (!first.overrides.empty()) {
    out += heading("Append to the command line", style);
    out += "  " + shell_lines(first.overrides, static_cast<std::size_t>(std::max(40, style.width - 2)), 2) + "\n";
  }
  out += fmt::format(
      "\nThe step time is relative to row 1 and comes from a model of compute, memory and links, not from a "
      "measurement{}.\n",
      job.name.empty() ? "" : " (" + printable(job.name) + ")");
  return out;
}

}  // namespace oomplan
