#include "report/serving_table.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "report/format.hpp"
#include "report/report.hpp"

namespace oomplan {
namespace {

/// "d2 t4 e4": the letters that are above one.
std::string layout_words(const Layout& l) {
  std::string out;
  const auto put = [&](char letter, std::int64_t n) {
    if (n > 1) out += fmt::format("{}{}{}", out.empty() ? "" : " ", letter, n);
  };
  put('d', l.data);
  put('t', l.tensor);
  put('p', l.pipeline);
  put('e', l.expert);
  return out.empty() ? "1 GPU" : out;
}

std::string changes_of(const Candidate& c) {
  std::string out;
  for (const Change& change : c.changes) {
    const auto dot = change.key.find('.');
    const std::string key = dot == std::string::npos ? change.key : change.key.substr(dot + 1);
    if (key == "layout" || key == "gpus" || key == "gpus_per_node") continue;
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", key, change.to);
  }
  return out.empty() ? "nothing else" : out;
}

}  // namespace

std::string serving_table(const Found& found, const TextStyle& style) {
  using Align = Table::Align;
  Table table({Align::right, Align::right, Align::right, Align::right, Align::right, Align::right, Align::left, Align::left});
  table.row({head("#"), head("throughput"), head("cached tokens"), head("at once"), head("needed"), head("P(fit)"),
             head("layout"), head("what to change")});
  for (std::size_t i = 0; i < found.best.size(); ++i) {
    const Candidate& c = found.best[i];
    const GpuAnswer* gpu = tightest(c.estimate);
    const Layout& layout = c.job.roles.at(0).server.layout;
    const ServerAnswer* server = c.estimate.servers.empty() ? nullptr : &c.estimate.servers.front();
    const std::int64_t replicas = c.job.roles.at(0).cache_groups();
    const bool stated = server != nullptr && server->in_service.has_value();
    table.row({std::to_string(i + 1), fmt::format("{:.2f}", c.relative_throughput),
               server == nullptr ? "-" : grouped(server->kv_tokens * replicas),
               stated ? grouped(server->in_service->at_once * replicas) : "-",
               bytes_text(gpu == nullptr ? 0 : gpu->phases[gpu->worst].usage.capacity_needed),
               c.estimate.fit_probability ? short_probability(*c.estimate.fit_probability) : "-", layout_words(layout),
               printable(changes_of(c))});
  }
  std::string out = table.text(2, style.colour, static_cast<std::size_t>(std::max(40, style.width)));
  const Candidate& first = found.best.front();
  if (!first.overrides.empty()) {
    std::vector<std::string> words;
    for (const std::string& word : first.overrides) words.push_back(printable(word));
    out += "\nAppend to the command line\n  " + shell_lines(words, static_cast<std::size_t>(std::max(40, style.width - 2)), 2) +
           "\n";
  }
  return out +
         "\nThe throughput is relative to the first row: a model of memory, arithmetic and all-reduces (docs/search.md), not a "
         "measurement.\n";
}

}  // namespace oomplan
