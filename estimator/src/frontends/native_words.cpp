#include "frontends/native_words.hpp"

#include "job/knobs.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

/// A native value as YAML has it: numbers and flags plain, items as a list.
FactValue native_value(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (!text.empty() && text.size() < 18 && text.find_first_not_of("0123456789") == std::string::npos)
    return static_cast<std::int64_t>(std::stoll(text));
  if (!text.starts_with('[') || !text.ends_with(']')) {
    const auto number = read_number(text);
    return number ? FactValue(*number.value) : FactValue(text);
  }
  FactValue out = FactValue::list();
  for (std::size_t at = 1; at + 1 < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size() - 1);
    out.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(", ", end);
  }
  return out;
}

}  // namespace

Rewrite NativeWords::rewrite(const Settings& asked) const {
  Rewrite out;
  for (const auto& [key, text] : asked) {
    const Knob* knob = find_knob(reading_.job, key).knob;
    out.changes.push_back(
        {key, knob == nullptr ? "" : get(reading_.job, key), text, knob == nullptr ? Effect::semantics : knob->effect});
    out.overrides.push_back(key + "=" + text);
  }
  return out;
}

FactValue NativeWords::value_of(const Rewrite& rewrite, std::size_t number) const {
  return native_value(rewrite.changes[number].to);
}

bool NativeWords::means_the_same(const Source& changed, const Rewrite& rewrite) const {
  try {
    return same_settings(read_(changed).job, job_with(rewrite));
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace oomplan
