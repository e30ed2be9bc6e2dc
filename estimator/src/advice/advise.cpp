// advise(): every single change that the knobs call a remedy, judged by a second estimate, strongest first.
#include <algorithm>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/validate.hpp"
#include "layout/rules.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr Bytes kWorthSaying = kMiB;

/// How far the fullest GPU is above (or below) what it has.
Bytes excess(const Estimate& e) {
  Bytes most = -(Bytes{1} << 60);
  for (const auto& g : e.gpus)
    if (!g.phases.empty()) most = std::max(most, g.phases[g.worst].usage.capacity_needed - g.usable);
  return most;
}

std::vector<std::string> layouts(const Role& role) {
  const Mixer& m = role.architecture->runs.front().layer.mixer;
  const ModelShape shape{m.heads, m.kv_heads, 0, role.architecture->layers()};
  const std::int64_t world = role.layout().world();
  std::vector<std::string> out;
  if (role.serves()) {
    for (const auto t : tensor_degrees(world, shape))
      if (world % t == 0) out.push_back("d" + std::to_string(world / t) + "t" + std::to_string(t));
  } else {
    for (const auto c : ulysses_degrees(world, shape)) out.push_back("d" + std::to_string(world / c) + "c" + std::to_string(c));
  }
  return out;
}

/// Values to try for a knob, from mild to strong.
std::vector<std::string> values_of(const Job& job, const Role* role, const Knob& k) {
  std::vector<std::string> out;
  switch (k.type) {
    case KnobType::flag:
      out = {k.get(job, role) == "true" ? "false" : "true"};
      break;
    case KnobType::choice:
      out = k.choices;
      break;
    case KnobType::layout:
      out = layouts(*role);
      break;
    case KnobType::items:
      out = {"[optimizer]", "[parameters, optimizer]"};
      break;
    case KnobType::count:
    case KnobType::bytes: {
      const std::string text = k.get(job, role);
      const auto said = k.type == KnobType::bytes ? read_bytes(text) : read_count(text);
      if (!said.value) break;
      const std::int64_t number = *said.value;
      for (const std::int64_t part : {2, 4, 8})
        if (number / part >= std::max<std::int64_t>(1, k.limits.least))
          out.push_back(k.type == KnobType::bytes ? exact_bytes_text(number / part) : std::to_string(number / part));
      // A token budget is at least the longest sequence.
      const std::int64_t longest = job.prompt_tokens + job.response_tokens;
      if (k.key.find("tokens") != std::string_view::npos && longest > 0 && longest < number)
        out.push_back(std::to_string(longest));
      break;
    }
    case KnobType::number:
      for (const double less : {0.05, 0.1, 0.2, 0.3})
        if (role != nullptr && role->server.memory_fraction - less > 0.1)
          out.push_back(number_text(role->server.memory_fraction - less));
      break;
    case KnobType::text:
      break;
  }
  return out;
}

/// The change of one knob that gains most; the mildest of those that are enough by themselves.
std::optional<Remedy> best_of(const Job& job, const Role* role, const Knob& k, Bytes before, const Catalog& catalog,
                              TapeStore& store) {
  std::optional<Remedy> best;
  const std::string key = role == nullptr ? std::string(k.key) : role->name + "." + std::string(k.key);
  for (const auto& value : values_of(job, role, k)) {
    Job changed = job;
    try {
      set_as_read(changed, key, value);
    } catch (const InputError&) {
      continue;  // the knob's own limits
    }
    if (get(changed, key) == get(job, key) || !problems(changed, catalog).empty()) continue;
    Estimate e;
    try {
      e = assemble(changed, catalog, store).estimate;
    } catch (const InputError&) {
      continue;  // not supported yet: not a remedy
    }
    Remedy r;
    r.key = key;
    r.from = get(job, key);
    r.to = get(changed, key);
    r.text = std::string(k.remedy);
    r.effect = k.effect;
    r.gain = before - excess(e);
    r.fits = e.fits();
    if (r.gain < kWorthSaying) continue;
    if (best && best->fits) break;
    if (!best || r.gain > best->gain || r.fits) best = std::move(r);
  }
  return best;
}

}  // namespace

std::vector<Remedy> advise(const Job& job, Effect allow, const Catalog* given) {
  const Catalog& catalog = given != nullptr ? *given : Catalog::builtin();
  TapeStore& store = TapeStore::shared();
  const Bytes before = excess(assemble(job, catalog, store).estimate);
  std::vector<Remedy> out;
  const auto consider = [&](const Role* role) {
    for (const auto& k : knobs()) {
      if (k.remedy.empty() || k.effect > allow || (role == nullptr) != (k.of == KnobOf::job)) continue;
      if (role != nullptr && !applies(k, *role)) continue;
      if (auto r = best_of(job, role, k, before, catalog, store)) out.push_back(std::move(*r));
    }
  };
  consider(nullptr);
  for (const auto& role : job.roles) consider(&role);
  std::stable_sort(out.begin(), out.end(),
                   [](const Remedy& a, const Remedy& b) { return std::pair(a.fits, a.gain) > std::pair(b.fits, b.gain); });
  return out;
}

}  // namespace oomplan
