#include "frontends/relax/servers.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "frontends/relax/resource.hpp"
#include "job/role_names.hpp"

namespace oomplan::relax {
namespace {

using Ordered = nlohmann::ordered_json;
using slime::Served;
using slime::ServerFlag;
using slime::SlimeMeaning;
using slime::SlimeText;

constexpr std::int64_t kMostOfServers = std::int64_t{1} << 17;

void take_out(std::vector<ServerFlag>& flags, std::string_view name) {
  std::erase_if(flags, [&](const ServerFlag& flag) { return flag.name == name; });
}

/// A value of JSON as words behind a flag. nullptr and false: the flag is not there.
void add(std::vector<ServerFlag>& flags, const std::string& key, const Ordered& value, const char* written) {
  ServerFlag flag{key, written, {}};
  std::replace(flag.name.begin(), flag.name.end(), '_', '-');
  take_out(flags, flag.name);
  if (value.is_null() || (value.is_boolean() && !value.get<bool>())) return;
  const auto word = [](const Ordered& one) { return one.is_string() ? one.get<std::string>() : one.dump(); };
  if (value.is_array())
    for (const Ordered& one : value) flag.values.push_back(word(one));
  else if (!value.is_boolean())
    flag.values.push_back(word(value));
  flags.push_back(std::move(flag));
}

/// The last flag's number; 1: it is not there, or no number.
std::int64_t degree(const std::vector<ServerFlag>& flags, std::initializer_list<std::string_view> names) {
  std::int64_t out = 1;
  for (const ServerFlag& flag : flags) {
    if (std::find(names.begin(), names.end(), flag.name) == names.end() || flag.values.empty()) continue;
    const std::string& word = flag.values.front();
    std::from_chars(word.data(), word.data() + word.size(), out);
  }
  return std::clamp<std::int64_t>(out, 1, kMostOfServers);
}
bool says(const std::vector<ServerFlag>& flags, std::string_view name) {
  return std::any_of(flags.begin(), flags.end(), [&](const ServerFlag& flag) { return flag.name == name; });
}

void take_degrees(Served& out) {
  out.groups = degree(out.flags, {"data-parallel-size", "dp-size"});
  out.experts = degree(out.flags, {"expert-parallel-size", "ep-size", "ep"});
  out.stages = degree(out.flags, {"pipeline-parallel-size", "pp-size"});
}

/// Flags of the rollout's servers, but for degrees, with what --genrm-engine-config says instead of them
/// (relax/backends/sglang/sglang_engine.py: _compute_genrm_server_args). Its weights have a copy on the host.
Served judge(const SlimeText& t, const SlimeMeaning& m, const Judge& one) {
  const bool several = t.own.has("genrm_instances");
  const char* const kConfig = several ? "--genrm-instances" : "--genrm-engine-config";
  constexpr std::array<std::string_view, 8> kOwn{
      "data-parallel-size", "dp-size", "pipeline-parallel-size", "pp-size", "expert-parallel-size", "ep-size", "ep",
      "moe-dense-tp-size"};
  Served out;
  out.kind = RoleKind::reward;
  out.flag = t.own.place(several ? "genrm_instances" : "genrm_model_path");
  out.engine_flag = t.own.place(several ? "genrm_instances" : "genrm_num_gpus_per_engine");
  out.model = one.model;
  out.gpus = one.gpus;
  out.engine_gpus = one.engine_gpus;
  out.shares = m.colocated;
  out.sleep = m.colocated && m.offload_rollout ? 1 : 0;
  out.flags = t.server;
  for (const std::string_view name : kOwn) take_out(out.flags, name);
  const Ordered config = Ordered::parse(one.config, nullptr, false);
  if (config.is_object())
    for (const auto& [key, value] : config.items()) add(out.flags, key, value, kConfig);
  take_degrees(out);
  return out;
}

/// Flags of the rollout's servers, with --teacher-sglang-* instead of them (relax/utils/opd/opd_utils.py:
/// build_teacher_overrides). One that sleeps has a copy of its weights on the host where SGLang is told so.
Served teacher(const SlimeText& t, const SlimeMeaning& m, std::int64_t gpus) {
  Served out;
  out.kind = RoleKind::teacher;
  out.flag = t.own.place(t.own.has("opd_teacher_routes") ? "opd_teacher_routes" : "teacher_hf_checkpoint");
  out.engine_flag = t.own.place("teacher_num_gpus_per_engine");
  out.gpus = gpus;
  out.engine_gpus = std::clamp<std::int64_t>(t.own.whole_or("teacher_num_gpus_per_engine", gpus), 1, kMostOfServers);
  out.shares = m.colocated;
  out.flags = t.server;
  for (const ServerFlag& flag : t.second) {
    take_out(out.flags, flag.name);
    out.flags.push_back(flag);
  }
  take_degrees(out);
  out.sleep = !m.colocated || !m.offload_rollout ? 0 : m.backs_up || says(out.flags, "enable-weights-cpu-backup") ? 1 : 2;
  take_out(out.flags, "enable-weights-cpu-backup");
  out.score_chunk = t.score_chunk;
  return out;
}

}  // namespace

std::vector<std::string> teachers_of(const SlimeText& t) {
  if (!t.own.has("opd_teacher_routes")) return {t.own.text("teacher_hf_checkpoint")};
  std::vector<std::string> out;
  const Ordered routes = Ordered::parse(t.own.text("opd_teacher_routes"), nullptr, false);
  if (routes.is_object())
    for (const auto& [source, checkpoint] : routes.items())
      if (checkpoint.is_string()) out.push_back(checkpoint.get<std::string>());
  return out;
}

std::vector<Served> servers_beside(const SlimeText& t, const SlimeMeaning& m) {
  std::vector<Served> out;
  if (!m.serves || m.supervised) return out;
  const Resource r = resource_of(t);
  if (starts_teacher(t, r)) {
    const std::vector<std::string> checkpoints = teachers_of(t);
    const auto count = std::max<std::int64_t>(1, static_cast<std::int64_t>(checkpoints.size()));
    const std::int64_t each = std::clamp<std::int64_t>(r.gpus("teacher") / count, 1, kMostOfServers);
    for (std::size_t i = 0; i < checkpoints.size(); ++i) {
      Served one = teacher(t, m, each);
      one.name = teacher_name(i + 1);
      one.model = checkpoints[i];
      if (one.shares) one.first_gpu = m.rollout_gpus + static_cast<std::int64_t>(i) * each;
      out.push_back(std::move(one));
    }
  }
  if (!starts_judge(t, r)) return out;
  const std::vector<Judge> judges = judges_of(t);
  std::int64_t all = 0;
  for (const Judge& one : judges) all += one.gpus;
  // behind the rollout's GPUs, or from the first one on (GenRMManager._resolve_placement, relax/distributed/ray/genrm.py)
  std::int64_t first = m.rollout_gpus + all <= m.actor_gpus ? m.rollout_gpus : 0;
  for (std::size_t i = 0; i < judges.size(); ++i) {
    Served one = judge(t, m, judges[i]);
    one.name = judge_name(i + 1);
    if (one.shares) one.first_gpu = first;
    first += one.gpus;
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<Judge> judges_of(const SlimeText& t) {
  const auto count = [](std::int64_t n) { return std::clamp<std::int64_t>(n, 1, kMostOfServers); };
  const std::int64_t each = count(t.own.whole_or("genrm_num_gpus_per_engine", 1));
  if (!t.own.has("genrm_instances"))
    return {
        {t.own.text("genrm_model_path"), count(t.own.whole_or("genrm_num_gpus", 1)), each, t.own.text("genrm_engine_config")}};
  std::vector<Judge> out;
  const Ordered said = Ordered::parse(t.own.text("genrm_instances"), nullptr, false);
  if (!said.is_object()) return out;
  for (const auto& [key, one] : said.items()) {
    if (!one.is_object()) continue;
    const auto whole = [&](const char* name, std::int64_t otherwise) {
      return one.contains(name) && one[name].is_number_integer() ? count(one[name].get<std::int64_t>()) : otherwise;
    };
    const bool has = one.contains("model_path") && one["model_path"].is_string();
    out.push_back({has ? one["model_path"].get<std::string>() : "", whole("num_gpus", 1), whole("num_gpus_per_engine", each),
                   one.contains("engine_config") ? one["engine_config"].dump() : t.own.text("genrm_engine_config")});
  }
  return out;
}

}  // namespace oomplan::relax
