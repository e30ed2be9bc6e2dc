#include "frontends/transformers/accelerate.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/compose/compose.hpp"
#include "frontends/compose/scalar.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

/// Flags without a value.
constexpr std::array<std::string_view, 16> kSwitches{"multi_gpu",
                                                     "cpu",
                                                     "tpu",
                                                     "use_deepspeed",
                                                     "use_fsdp",
                                                     "use_megatron_lm",
                                                     "use_xpu",
                                                     "same_network",
                                                     "debug",
                                                     "quiet",
                                                     "no_python",
                                                     "module",
                                                     "standalone",
                                                     "use_env",
                                                     "enable_cpu_affinity",
                                                     "use_parallelism_config"};
/// accelerate launch, 1.15: beginnings of groups, and names.
constexpr std::array<std::string_view, 7> kGroups{"fsdp_",   "zero3_", "offload_",           "deepspeed_",
                                                  "dynamo_", "fp8_",   "parallelism_config_"};
constexpr std::array<std::string_view, 26> kNames{"config_file",
                                                  "accelerate_config",
                                                  "num_processes",
                                                  "num_machines",
                                                  "mixed_precision",
                                                  "gpu_ids",
                                                  "machine_rank",
                                                  "main_process_ip",
                                                  "main_process_port",
                                                  "zero_stage",
                                                  "tee",
                                                  "log_dir",
                                                  "role",
                                                  "rdzv_backend",
                                                  "rdzv_conf",
                                                  "max_restarts",
                                                  "monitor_interval",
                                                  "num_cpu_threads_per_process",
                                                  "downcast_bf16",
                                                  "main_training_function",
                                                  "mpirun_hostfile",
                                                  "gradient_clipping",
                                                  "env",
                                                  "vm",
                                                  "m",
                                                  "mpirun_ccl"};

/// What `--accelerate_config` names: trl/accelerate_configs, 1.9.
struct PresetRow {
  std::string_view name, text;
};
constexpr std::array<PresetRow, 8> kPresets{{
    {"single_gpu", "{distributed_type: 'NO', mixed_precision: bf16}"},
    {"multi_gpu", "{distributed_type: MULTI_GPU, mixed_precision: bf16, num_machines: 1, num_processes: 8}"},
    {"fsdp1",
     "{distributed_type: FSDP, mixed_precision: bf16, num_machines: 1, num_processes: 8, fsdp_config: {fsdp_version: 1, "
     "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_forward_prefetch: true, "
     "fsdp_reshard_after_forward: FULL_SHARD, fsdp_use_orig_params: true}}"},
    {"fsdp2",
     "{distributed_type: FSDP, mixed_precision: bf16, num_machines: 1, num_processes: 8, fsdp_config: {fsdp_version: 2, "
     "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_reshard_after_forward: true}}"},
    {"zero1",
     "{distributed_type: DEEPSPEED, mixed_precision: bf16, num_machines: 1, num_processes: 8, deepspeed_config: {zero_stage: 1, "
     "gradient_accumulation_steps: 1}}"},
    {"zero2",
     "{distributed_type: DEEPSPEED, mixed_precision: bf16, num_machines: 1, num_processes: 8, deepspeed_config: {zero_stage: "
     "2}}"},
    {"zero3",
     "{distributed_type: DEEPSPEED, mixed_precision: bf16, num_machines: 1, num_processes: 8, deepspeed_config: {zero_stage: "
     "3}}"},
    {"", "{}"},
}};

std::string flag_name(std::string word) {
  while (word.starts_with('-')) word.erase(0, 1);
  std::replace(word.begin(), word.end(), '-', '_');
  return word;
}

bool is_switch(std::string_view name) { return std::find(kSwitches.begin(), kSwitches.end(), name) != kSwitches.end(); }

class LauncherReader {
 public:
  LauncherReader(const std::vector<std::string>& words, const std::function<std::optional<std::string>(const std::string&)>& open)
      : words_(words), open_(open) {
    out_.settings.kind = Node::Kind::map;
  }

  Launcher run() {
    find_kind();
    if (out_.kind == LauncherKind::none) return std::move(out_);
    read_flags();
    if (out_.kind == LauncherKind::accelerate) accelerate();
    count();
    return std::move(out_);
  }

 private:
  void find_kind() {
    for (const std::string& word : words_) {
      const std::string name = word.substr(word.rfind('/') == std::string::npos ? 0 : word.rfind('/') + 1);
      if (name == "torchrun" || word.starts_with("torch.distributed.")) out_.kind = LauncherKind::torchrun;
      if (name == "deepspeed") out_.kind = LauncherKind::deepspeed;
      if (name == "accelerate" || word == "accelerate.commands.launch" || name == "trl") out_.kind = LauncherKind::accelerate;
      if (out_.kind != LauncherKind::none) return;
    }
  }

  void read_flags() {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::string& word = words_[i];
      if (!word.starts_with('-') || word.size() < 2) continue;
      const auto equals = word.find('=');
      const std::string name = flag_name(word.substr(0, equals));
      if (equals != std::string::npos)
        flags_.emplace_back(name, word.substr(equals + 1));
      else if (is_switch(name) || name == "m" || i + 1 >= words_.size())
        flags_.emplace_back(name, "true");
      else
        flags_.emplace_back(name, words_[++i]);
    }
  }
  std::string flag(std::string_view name) const {
    std::string out;
    for (const auto& [key, value] : flags_)
      if (key == name) out = value;
    return out;
  }

  // ---- accelerate

  void accelerate() {
    if (const std::string preset = flag("accelerate_config"); !preset.empty())
      load(preset, true);
    else if (const std::string file = flag("config_file"); !file.empty())
      load(file, false);
    for (const auto& [name, value] : flags_) set(name, value);
    check();
  }

  void load(const std::string& path, bool may_be_preset) {
    std::optional<std::string> text = open_ ? open_(path) : std::nullopt;
    const auto preset = std::find_if(kPresets.begin(), kPresets.end(), [&](const PresetRow& r) { return r.name == path; });
    const char* const key = may_be_preset ? "--accelerate_config" : "--config_file";
    if (!text && may_be_preset && preset != kPresets.end()) text = std::string(preset->text);
    if (!text) {
      out_.problems.push_back({{"command line", 0, 0, key},
                               fmt::format("no file {}", path),
                               may_be_preset
                                   ? "a file, or a name of TRL's: single_gpu, multi_gpu, fsdp1, fsdp2, zero1, zero2 or zero3"
                                   : "the file that it names",
                               {},
                               {}});
      return;
    }
    compose::Composed read = compose::load_with_dotlist(*text, path, {}, {});
    for (Problem& p : read.problems) out_.problems.push_back(std::move(p));
    for (auto& entry : read.root.entries) {
      if (entry.key == "fsdp_config") prefix(entry.value, "fsdp_");
      put(out_.settings, entry.key, std::move(entry.value));
    }
  }
  static void prefix(Node& map, std::string_view with) {
    for (auto& entry : map.entries)
      if (!entry.key.starts_with("fsdp")) entry.key = std::string(with) + entry.key;
  }

  /// A flag wins over the file.
  void set(const std::string& name, const std::string& value) {
    Node n = compose::plain_scalar(value);
    n.origin = {Origin::Kind::override_, {"command line", 0, 0, "--" + name}, fmt::format("--{} {}", name, value), {}};
    if (name == "use_fsdp" || name == "use_deepspeed" || name == "multi_gpu") {
      n.kind = Node::Kind::text;
      n.text = name == "use_fsdp" ? "FSDP" : name == "use_deepspeed" ? "DEEPSPEED" : "MULTI_GPU";
      put(out_.settings, "distributed_type", std::move(n));
    } else if (name.starts_with("fsdp_")) {
      put(section("fsdp_config"), name, std::move(n));
    } else if (name.starts_with("zero") || name.starts_with("offload_") || name.starts_with("deepspeed_")) {
      put(section("deepspeed_config"), name, std::move(n));
    } else if (name.starts_with("dynamo_")) {
      put(section("dynamo_config"), name, std::move(n));
    } else {
      put(out_.settings, name, std::move(n));
    }
  }
  Node& section(const std::string& key) {
    if (Node* there = out_.settings.find(key); there != nullptr && there->kind == Node::Kind::map) return *there;
    Node made;
    made.kind = Node::Kind::map;
    put(out_.settings, key, std::move(made));
    return *out_.settings.find(key);
  }
  static void put(Node& map, const std::string& key, Node value) {
    if (Node* there = map.find(key))
      *there = std::move(value);
    else
      map.entries.push_back({key, Node::Kind::text, value.origin.place, std::move(value)});
  }

  void check() {
    const Node* type = out_.settings.find("distributed_type");
    if (type == nullptr) return;
    const std::vector<std::string> known{"NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TPU"};
    const std::string text = type->kind == Node::Kind::boolean ? "NO" : compose::python_text(*type);  // YAML's own word for false
    Place place = type->origin.place;
    place.path = "distributed_type";
    if (std::find(known.begin(), known.end(), text) == known.end())
      out_.problems.push_back({place, fmt::format("'{}'", text), list_of(known), nearest(text, known), {}});
    else if (text == "MEGATRON_LM" || text == "MULTI_CPU" || text == "XLA" || text == "TPU")
      out_.problems.push_back(
          {place, text, {}, {}, fmt::format("not supported yet: accelerate's {}", text), ProblemKind::not_supported});
  }

  // ---- how many there are

  static std::int64_t number(const std::string& text) {
    const auto said = read_count(text);
    return said && *said.value <= 131072 ? *said.value : 0;
  }
  std::int64_t setting(const char* key) {
    const Node* n = out_.settings.find(key);
    if (n == nullptr) return 0;
    out_.place = n->origin.place;
    return number(compose::python_text(*n));
  }

  void count() {
    if (out_.kind == LauncherKind::torchrun) {
      const std::string nodes = flag("nnodes");
      out_.nodes = number(nodes.substr(nodes.rfind(':') == std::string::npos ? 0 : nodes.rfind(':') + 1));
      out_.per_node = number(flag("nproc_per_node"));
    } else if (out_.kind == LauncherKind::deepspeed) {
      out_.nodes = number(flag("num_nodes"));
      out_.per_node = number(flag("num_gpus"));
      if (const std::string include = flag("include"); out_.per_node == 0 && include.find(':') != std::string::npos)
        out_.per_node =
            1 + std::count(include.begin(),
                           include.begin() + static_cast<std::ptrdiff_t>(std::min(include.find('@'), include.size())), ',');
    } else {
      out_.nodes = setting("num_machines");
      out_.processes = setting("num_processes");
    }
    if (out_.place.path.empty()) out_.place = {"command line", 0, 0, "num_processes"};
  }

  const std::vector<std::string>& words_;
  const std::function<std::optional<std::string>(const std::string&)>& open_;
  std::vector<std::pair<std::string, std::string>> flags_;
  Launcher out_;
};

}  // namespace

bool is_accelerate_flag(std::string_view flag) {
  const std::string name = flag_name(std::string(flag));
  return is_switch(name) || std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         std::any_of(kGroups.begin(), kGroups.end(), [&](std::string_view group) { return name.starts_with(group); });
}

Launcher read_launcher(const std::vector<std::string>& words,
                       const std::function<std::optional<std::string>(const std::string&)>& open) {
  return LauncherReader(words, open).run();
}

}  // namespace oomplan::transformers
