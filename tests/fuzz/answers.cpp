// The door of jobs that are valid, or nearly: an example and a few overrides. Its figures keep promises that hold for every job.
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>

#include <nlohmann/json.hpp>

#include "checks.hpp"
#include "job/knobs.hpp"

namespace oomplan::fuzz {
namespace {

/// Job files of the examples, by name.
const std::map<std::string, std::string>& examples() {
  static const auto all = [] {
    std::map<std::string, std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(OOMPLAN_SOURCE_DIR "/examples")) {
      if (entry.path().extension() != ".yaml") continue;
      std::ifstream in(entry.path());
      out[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return out;
  }();
  return all;
}

/// What a GPU holds more than the same chip with less.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kMoreMemory{
    {{"A100-40GB", "A100-80GB"}, {"H100-80GB", "H200-141GB"}}};

void check_answer(const Estimate& answer, const Job& job) {
  check_json(to_json(answer, job));
  check_text(to_text(answer, job));
  check_text(to_html(answer, job));
  for (const GpuAnswer& gpu : answer.gpus) {
    require(gpu.phases.empty() || gpu.worst < gpu.phases.size(), "a worst phase that is not there");
    for (const Moment& phase : gpu.phases) {
      const std::string where = gpu.ranks + " " + phase.phase;
      require(phase.usage.allocated >= 0 && phase.usage.device >= 0, where + ": less than nothing");
      require(phase.usage.device >= phase.usage.allocated, where + ": the device holds less than is allocated");
      require(phase.usage.capacity_needed >= phase.usage.allocated, where + ": less is needed than is allocated");
    }
  }
}

/// Levels alone are a lower bound of what the allocator's replay needs.
void check_bound(const Estimate& quick, const Estimate& full) {
  require(quick.gpus.size() == full.gpus.size(), "a quick answer of other GPUs");
  for (const GpuAnswer& low : quick.gpus) {
    const auto same = std::find_if(full.gpus.begin(), full.gpus.end(), [&](const GpuAnswer& g) { return g.gpus == low.gpus; });
    require(same != full.gpus.end() && same->phases.size() == low.phases.size(), low.ranks + ": a quick answer of other phases");
    for (std::size_t i = 0; i < low.phases.size(); ++i)
      require(low.phases[i].usage.capacity_needed <= same->phases[i].usage.capacity_needed,
              low.ranks + " " + low.phases[i].phase + ": the bound is above the replay");
  }
  require(quick.fits() || !full.fits(), "what does not fit by its levels fits when it is replayed");
}

/// Micro-batches of twice the tokens, and as many of them as before, need no less at any moment.
void check_tokens(Source source, const Reading& reading, const Estimate& quick) {
  const Job& job = reading.job;
  std::vector<std::string> packed;
  for (const Role& role : job.roles)
    if (!role.serves() && role.trainer.sequences_per_micro_batch == 0) packed.push_back(role.name);
  if (packed.empty() || job.sequences_per_step <= 0) return;
  for (const std::string& name : packed)
    source.overrides.push_back(name +
                               ".tokens_per_micro_batch=" + std::to_string(2 * job.role(name)->trainer.tokens_per_micro_batch));
  source.overrides.push_back("sequences_per_step=" + std::to_string(2 * job.sequences_per_step));
  Estimate more;
  if (!answers([&] { more = estimate_quick(read(source).job); }) || more.gpus.size() != quick.gpus.size()) return;
  for (std::size_t i = 0; i < quick.gpus.size(); ++i)
    for (std::size_t j = 0; j < std::min(quick.gpus[i].phases.size(), more.gpus[i].phases.size()); ++j)
      require(more.gpus[i].phases[j].usage.capacity_needed >= quick.gpus[i].phases[j].usage.capacity_needed,
              quick.gpus[i].ranks + " " + quick.gpus[i].phases[j].phase + ": less is needed with twice the tokens");
}

/// Reads it again with one more override. False: it is refused.
bool fits_with(Source source, const std::string& key, std::string value, bool replayed, bool& fits) {
  source.overrides.push_back(key + "=" + std::move(value));
  return answers([&] {
    const Job job = read(source).job;
    fits = (replayed ? estimate(job) : estimate_quick(job)).fits();
  });
}

}  // namespace

void put_answers(std::string_view text) {
  auto lines = lines_of(text);
  if (lines.empty() || !examples().contains(lines[0])) return;
  Source source{examples().at(lines[0]), lines[0]};
  source.overrides.assign(lines.begin() + 1, lines.end());
  Reading reading;
  Estimate quick, full;
  if (!answers([&] {
        reading = read(source);
        quick = estimate_quick(reading.job);
        full = estimate(reading.job);
      }))
    return;
  check_answer(quick, reading.job);
  check_answer(full, reading.job);
  check_bound(quick, full);
  check_tokens(source, reading, quick);
  const Cluster& cluster = reading.job.cluster;
  for (const auto& [less, more] : kMoreMemory) {
    bool still = true;
    if (cluster.gpu != less || !full.fits()) continue;
    if (fits_with(source, "gpus", std::to_string(cluster.gpus) + " x " + std::string(more), true, still))
      require(still, "what fits on " + std::string(less) + " does not fit on " + std::string(more));
  }
  bool still = false;
  if (!quick.fits() && cluster.others == 0 && fits_with(source, "others", "4GiB", false, still))
    require(!still, "it fits once others hold 4 GiB of the GPU");
}

namespace {

class Changer {
 public:
  Changer(std::string_view text, unsigned seed) : random_(seed), lines_(lines_of(text)) {
    if (lines_.empty() || !examples().contains(lines_[0])) lines_ = {std::next(examples().begin(), at(examples().size()))->first};
  }
  std::string run() {
    constexpr std::size_t kMost = 7;
    for (std::ptrdiff_t n = 1 + at(3); n > 0; --n) {
      if (at(12) == 0) lines_ = {std::next(examples().begin(), at(examples().size()))->first};
      if (lines_.size() > 1 && (at(4) == 0 || lines_.size() > kMost))
        lines_.erase(lines_.begin() + 1 + at(lines_.size() - 1));
      else
        lines_.push_back(an_override());
    }
    std::string out;
    for (const auto& line : lines_) out += line + "\n";
    return out;
  }

 private:
  std::ptrdiff_t at(std::size_t n) { return n == 0 ? 0 : static_cast<std::ptrdiff_t>(random_() % n); }
  template <class T>
  const T& one_of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(at(all.size()))];
  }

  std::string an_override() {
    std::vector<std::string> keys;
    Job job;
    try {
      job = read(Source{examples().at(lines_[0]), lines_[0]}).job;
    } catch (const InputError&) {
      return "gpus=8 x H100-80GB";
    }
    for (const auto& key : keys_of(nullptr)) keys.push_back(key);
    for (const auto& role : job.roles)
      for (const auto& key : keys_of(&role)) keys.push_back(role.name + "." + key);
    const std::string key = one_of(keys);
    return key + "=" + value(job, key);
  }
  std::string value(const Job& job, const std::string& key) {
    const Knob& knob = *find_knob(job, key).knob;
    const std::int64_t least = knob.limits.least, most = knob.limits.most;
    switch (knob.type) {
      case KnobType::flag:
        return at(2) == 0 ? "true" : "false";
      case KnobType::choice:
      case KnobType::items:
        return knob.choices.empty() ? "none" : one_of(knob.choices);
      case KnobType::bytes:
      case KnobType::count:
        if (at(8) == 0 && !knob.zero.empty()) return std::string(knob.zero);
        if (at(8) == 0) return std::to_string(at(2) == 0 ? least : most);
        return std::to_string(
            std::clamp<std::int64_t>(std::int64_t{1} << at(static_cast<std::size_t>(at(2) == 0 ? 40 : 16)), least, most));
      case KnobType::number:
        return std::to_string(knob.least + (knob.most - knob.least) * static_cast<double>(at(101)) / 100);
      case KnobType::layout: {
        std::string out;
        for (const char* const letter : {"d", "t", "p", "c", "e"})
          if (at(2) == 0) out += letter + std::to_string(1 << at(4));
        return out.empty() ? "d8" : out;
      }
      case KnobType::text:
        break;
    }
    static const std::vector<std::string> kModels{"qwen2.5-0.5b", "qwen2.5-7b",  "llama-3.1-8b", "qwen3-30b-a3b",
                                                  "gemma-3-4b",   "deepseek-v3", "mixtral-8x7b", "qwen2.5-vl-7b"};
    static const std::vector<std::string> kGpus{"8 x H100-80GB", "1 x A100-40GB", "16 x A100-40GB", "64 x H100-80GB",
                                                "4 x RTX-4090"};
    if (key == "gpus") return one_of(kGpus);
    if (key == "model" || key.ends_with(".model")) return one_of(kModels);
    return get(job, key);
  }

  std::mt19937 random_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string change_answers(std::string_view text, unsigned seed) { return Changer(text, seed).run(); }

}  // namespace oomplan::fuzz
