// The predictive distribution of measured against predicted: models/measured_errors.json, which benchmarks/accuracy writes.
#include "estimate/fit_probability.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "catalog/embedded.hpp"
#include "estimate/student_t.hpp"
#include "job/names.hpp"

namespace oomplan {
namespace {

struct Group {
  std::string engine, framework, kernels;  ///< the latter two "": of any
  bool serves = false;                     ///< of servers
  MeasuredErrors errors;

  bool is_for_a_part() const { return !framework.empty() || !kernels.empty(); }
  bool is_for(const Role& role) const {
    return is_for_a_part() && engine == spelling(role.engine) &&
           (framework.empty() || framework == spelling(role.trainer.framework)) &&
           (kernels.empty() || kernels == spelling(role.trainer.kernels));
  }
};

std::vector<Group> read_groups() {
  std::vector<Group> out;
  const auto table = nlohmann::json::parse(embedded_text("measured_errors.json"));
  for (const auto& row : table.at("rows")) {
    const auto only = row.value("only_for", nlohmann::json::object());
    out.push_back({row.at("engine").get<std::string>(), only.value("framework", ""), only.value("kernels", ""),
                   row.at("serves").get<bool>(), MeasuredErrors(row.at("log_ratios").get<std::vector<double>>())});
  }
  return out;
}

struct Mean {
  double sum = 0;
  int members = 0;
  void add(double value) {
    sum += value;
    ++members;
  }
  double value() const { return sum / members; }
};

}  // namespace

MeasuredErrors::MeasuredErrors(std::vector<double> log_ratios) : log_ratios_(std::move(log_ratios)) {
  std::sort(log_ratios_.begin(), log_ratios_.end());
  const auto n = static_cast<double>(log_ratios_.size());
  for (const double e : log_ratios_) mean_ += e / n;
  double squares = 0;
  for (const double e : log_ratios_) squares += (e - mean_) * (e - mean_);
  scale_ = std::sqrt(squares / (n - 1) * (1 + 1 / n));
}

double MeasuredErrors::tail(double log_ratio, double edge) const {
  if (scale_ <= 0) return 1;  // equal errors have no tail
  const int degrees = static_cast<int>(log_ratios_.size()) - 1;
  const double sign = edge > mean_ ? -1 : 1;  // the tail to the right is that of -t to the left
  const double at_edge = student_t_below(sign * (edge - mean_) / scale_, degrees);
  if (at_edge < 1e-12) return 1;  // an edge that far out is beyond what doubles resolve
  return std::clamp(student_t_below(sign * (log_ratio - mean_) / scale_, degrees) / at_edge, 0.0, 1.0);
}

double MeasuredErrors::fit_probability(Bytes needed, Bytes usable) const {
  const double headroom = std::log(static_cast<double>(usable) / static_cast<double>(needed));
  const auto covered = std::upper_bound(log_ratios_.begin(), log_ratios_.end(), headroom) - log_ratios_.begin();
  const auto n = static_cast<double>(log_ratios_.size());
  const double outside = 0.5 / (n + 1);
  if (covered == 0) return outside * tail(headroom, log_ratios_.front());
  if (covered == std::ssize(log_ratios_)) return 1 - outside * tail(headroom, log_ratios_.back());
  return (static_cast<double>(covered) + 0.5) / (n + 1);
}

std::optional<double> fit_probability(const Role& role, Bytes needed, Bytes usable) {
  static const auto groups = read_groups();
  if (usable <= 0) return 0.0;
  if (needed <= 0) return std::nullopt;
  std::map<std::string_view, Mean> engines;
  for (const auto& group : groups) {
    if (group.is_for(role)) return group.errors.fit_probability(needed, usable);
    if (group.serves == role.serves()) engines[group.engine].add(group.errors.fit_probability(needed, usable));
  }
  if (const auto own = engines.find(spelling(role.engine)); own != engines.end()) return own->second.value();
  Mean all;
  for (const auto& [engine, mean] : engines) all.add(mean.value());
  return all.members > 0 ? std::optional(all.value()) : std::nullopt;
}

Bytes likely_need(const Role& role, Bytes usable, double probability) {
  const auto enough = [&](Bytes needed) { return fit_probability(role, needed, usable).value_or(1) >= probability; };
  if (usable <= 1 || enough(usable)) return usable;
  Bytes most = 1, less = usable;  // it only falls with what is needed
  if (!enough(most)) return 0;
  while (less - most > 1) {
    const Bytes middle = most + (less - most) / 2;
    (enough(middle) ? most : less) = middle;
  }
  return most;
}

void judge_probability(Estimate& e, const Job& job) {
  e.fit_probability.reset();
  for (auto& gpu : e.gpus) {
    if (gpu.phases.empty()) continue;
    const Moment& worst = gpu.phases[gpu.worst];
    if (const Role* role = job.role(worst.role))
      gpu.fit_probability = fit_probability(*role, worst.usage.capacity_needed, gpu.usable);
    if (gpu.fit_probability) e.fit_probability = std::min(e.fit_probability.value_or(1.0), *gpu.fit_probability);
  }
  const bool gpus_fit = std::all_of(e.gpus.begin(), e.gpus.end(), [](const GpuAnswer& g) { return g.fits(); });
  if (gpus_fit && !e.fits()) e.fit_probability = 0.0;
}

}  // namespace oomplan
