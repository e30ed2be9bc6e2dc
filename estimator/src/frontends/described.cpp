#include "frontends/described.hpp"

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/dialect.hpp"
#include "job/limits.hpp"
#include "job/names.hpp"
#include "units/enums.hpp"
#include "units/json_depth.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

struct NumberRow {
  std::string_view key;
  std::int64_t StartAsked::* member;
  std::int64_t most;
};
constexpr std::array<NumberRow, 7> kNumbers{{{"gpus", &StartAsked::gpus, 1 << 17},
                                             {"nodes", &StartAsked::nodes, 1 << 16},
                                             {"prompt_tokens", &StartAsked::prompt_tokens, kTokenLimit.most},
                                             {"response_tokens", &StartAsked::response_tokens, kTokenLimit.most},
                                             {"samples", &StartAsked::samples, 1 << 20},
                                             {"batch", &StartAsked::batch, 1 << 24},
                                             {"lora", &StartAsked::lora, 4096}}};
constexpr std::array<std::pair<std::string_view, std::string StartAsked::*>, 3> kWords{
    {{"model", &StartAsked::model}, {"gpu", &StartAsked::gpu}, {"release", &StartAsked::release}}};

Problem wrong(std::string_view key, std::string found, std::string expected, std::string near = {}) {
  return {{"", 0, 0, std::string(key)}, std::move(found), std::move(expected), std::move(near), {}, {}};
}

struct DescriptionReader {
  StartAsked asked;
  std::string framework;
  std::vector<Problem> problems;

  /// False: the key has no value of this type.
  bool take(const std::string& key, const nlohmann::json& value) {
    for (const NumberRow& row : kNumbers) {
      if (row.key != key) continue;
      const bool whole = value.is_number_integer() && value >= 1 && value <= row.most;
      if (whole)
        asked.*row.member = value.get<std::int64_t>();
      else
        problems.push_back(wrong(key, json_text(value), fmt::format("1 to {}", row.most)));
      return true;
    }
    for (const auto& [name, member] : kWords)
      if (name == key && value.is_string()) return asked.*member = value.get<std::string>(), true;
    if (key == "framework" && value.is_string()) return framework = value.get<std::string>(), true;
    if (key == "reference" && value.is_boolean()) return asked.reference = value.get<bool>(), true;
    if (key != "algorithm" || !value.is_string()) return false;
    try {
      asked.algorithm = algorithm_named(value.get<std::string>());
    } catch (const InputError& error) {
      for (const Problem& p : error.problems) problems.push_back(wrong(key, p.found, p.expected, p.nearest));
    }
    return true;
  }
};

std::vector<std::string> known_keys() {
  std::vector<std::string> keys{"framework", "algorithm", "reference"};
  for (const auto& row : kNumbers) keys.emplace_back(row.key);
  for (const auto& [name, member] : kWords) keys.emplace_back(name);
  return keys;
}

}  // namespace

Described described(const std::string& framework, const StartAsked& asked, const Catalog& catalog) {
  if (is_own(framework) || (asked.gpus == 1 && framework.empty())) {
    StartAsked plain{asked.model, asked.gpus};
    plain.gpu = asked.gpu;
    if (asked != plain)
      throw InputError(Problem{{"", 0, 0, "framework"},
                               "a job that is described, without a framework",
                               "areal",
                               {},
                               "our own job file says it by its keys",
                               {}});
    return {std::nullopt, default_job(asked.model, asked.gpus, asked.gpu.empty() ? "H100-80GB" : asked.gpu, &catalog).job,
            "GRPO in a job file of oomplan: prompts of 1k and responses of 8k tokens, 1k sequences a step"};
  }
  const std::string name = framework.empty() ? "areal" : framework;
  Started started = started_in(name, asked, catalog);
  const StartAsked& a = started.start.asked;
  std::string assumed;
  for (const std::string& one : started.start.assumed) assumed += (assumed.empty() ? "; assumed: " : ", ") + one;
  Job job = read(started.source, &catalog).job;
  return {std::move(started.source), std::move(job),
          fmt::format("{} of {} by {} {}{}", spelling(a.algorithm), started.start.model_id, name, a.release, assumed)};
}

Described described(const std::string& json, const Catalog& catalog) {
  if (const std::string deep = too_deep(json); !deep.empty()) throw InputError(wrong("", deep, "a JSON object"));
  const auto object = nlohmann::json::parse(json, nullptr, false);
  if (!object.is_object()) throw InputError(wrong("", "something else", "a JSON object"));
  DescriptionReader reader;
  const std::vector<std::string> keys = known_keys();
  for (const auto& [key, value] : object.items())
    if (!reader.take(key, value))
      reader.problems.push_back(wrong(key, "a key or a value of this type that is not known", list_of(keys), nearest(key, keys)));
  for (const std::string_view key : {"model", "gpus"})
    if (!object.contains(key)) reader.problems.push_back(wrong(key, "nothing", key == "gpus" ? "a number of GPUs" : "a model"));
  if (!reader.problems.empty()) throw InputError(std::move(reader.problems));
  return described(reader.framework, reader.asked, catalog);
}

}  // namespace oomplan
