// How rows of the knob table are put together, and the parts of the table.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "job/knob_access.hpp"
#include "job/knobs.hpp"

namespace oomplan {

std::vector<Knob> job_rows();
std::vector<Knob> role_rows();
std::vector<Knob> trainer_rows();
std::vector<Knob> adapter_rows();
std::vector<Knob> server_rows();

namespace knob {

inline Knob row(std::string_view key, KnobOf of, KnobType type, Access access, Effect effect, std::string_view help) {
  Knob k;
  k.key = key;
  k.of = of;
  k.type = type;
  k.get = access.get;
  k.set = access.set;
  k.effect = effect;
  k.help = help;
  return k;
}
inline Knob&& within(Knob&& k, Limit64 limits, std::string_view unit = {}) {
  k.limits = limits;
  k.unit = unit;
  return std::move(k);
}
inline Knob&& between(Knob&& k, double least, double most) {
  k.least = least;
  k.most = most;
  return std::move(k);
}
inline Knob&& zero_is(Knob&& k, std::string_view word) {
  k.zero = word;
  return std::move(k);
}
inline Knob&& one_of(Knob&& k, std::vector<std::string> choices) {
  k.choices = std::move(choices);
  return std::move(k);
}
inline Knob&& only_for(Knob&& k, EngineKind engine) {
  k.engine = engine;
  return std::move(k);
}
inline Knob&& saves(Knob&& k, std::string_view remedy) {
  k.remedy = remedy;
  return std::move(k);
}

/// A count for which 0 is written "none".
template <auto M>
std::string none_or(const Job& j, const Role* r) {
  return knob::read<M>(j, r) == 0 ? std::string("none") : knob::count<M>().get(j, r);
}

/// "sglang 0.5.10": a name and perhaps a version.
struct NameAndVersion {
  std::string_view name, version;
};
NameAndVersion split_version(std::string_view text);
/// A number first, then digits, letters, dots, plus and minus.
bool is_version(std::string_view);
/// "[a, b]", "a, b", "a"; none of "[]" and "none".
std::vector<std::string_view> items_of(std::string_view text);
/// Modules beside which adapters stand, of a trainer or a server.
Access slot_targets_access();

}  // namespace knob
}  // namespace oomplan
