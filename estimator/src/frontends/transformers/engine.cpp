#include "frontends/transformers/engine.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

namespace oomplan::transformers {
namespace {

using compose::Node;

/// accelerate/utils/constants.py: FSDP_SHARDING_STRATEGY, from 1 on.
constexpr std::array<std::string_view, 5> kStrategies{"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                                      "HYBRID_SHARD_ZERO2"};

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}
std::string truth(const std::string& text) {
  std::string low(text);
  std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const std::string_view yes : {"y", "yes", "t", "true", "on", "1"})
    if (low == yes) return "true";
  return "false";
}
std::string strategy(const std::string& text) {
  if (text.size() == 1 && text[0] >= '1' && text[0] <= '5')
    return std::string(kStrategies[static_cast<std::size_t>(text[0] - '1')]);
  return upper(text);
}

class Finder {
 public:
  explicit Finder(const HfText& text) : text_(text) {}

  Engine run() {
    find_mixed();
    find_name();
    if (out_.name.value != "fsdp") return std::move(out_);
    of_arguments_ ? fsdp_of_arguments() : fsdp_of_accelerate();
    out_.name.value = out_.fsdp.version == 2 ? "fsdp2" : "fsdp1";
    return std::move(out_);
  }

 private:
  std::string at(const std::string& path) const { return text_at(text_.root, path); }
  bool is(const std::string& path) const { return at(path) == "true"; }

  void find_mixed() {
    const bool trl = text_.trl();
    const Node* bf16 = text_.root.find("bf16");
    if (is("fp16"))
      out_.mixed = {"fp16", "fp16"};
    else if (is("bf16") || (trl && bf16 != nullptr && bf16->kind == Node::Kind::null))  // SFTConfig's __post_init__
      out_.mixed = {"bf16", "bf16"};
    else if (const std::string said = at("accelerate.mixed_precision"); !said.empty())
      out_.mixed = {said == "false" ? "no" : said, "accelerate.mixed_precision"};  // YAML's `no`
    else
      out_.mixed = {"no", "bf16"};
  }

  void find_name() {
    const Node* deepspeed = text_.root.find("deepspeed");
    const std::string type = at("accelerate.distributed_type");
    const Node* fsdp = text_.root.find("fsdp");
    of_arguments_ = fsdp != nullptr && ((fsdp->kind == Node::Kind::text && !fsdp->text.empty() && fsdp->text != "false") ||
                                                fsdp->kind == Node::Kind::boolean
                                            ? fsdp->boolean || fsdp->kind == Node::Kind::text
                                            : !fsdp->items.empty());
    if (deepspeed != nullptr && deepspeed->kind == Node::Kind::map)
      out_.name = {"deepspeed", "deepspeed"};
    else if (type == "DEEPSPEED")
      out_.name = {"deepspeed", "accelerate.distributed_type"};
    else if (of_arguments_)
      out_.name = {"fsdp", "fsdp"};
    else if (type == "FSDP")
      out_.name = {"fsdp", "accelerate.distributed_type"};
    else
      out_.name = {text_.world.gpus() > 1 ? "ddp" : "single", ""};
  }

  // ---- accelerate launch: accelerate/commands/launch.py, utils/launch.py, 1.15

  /// Of a text or a list, with commas between.
  Said classes(std::string path) const {
    const Node* n = text_.root.at(path);
    std::string all = at(path);
    if (n != nullptr && n->kind == Node::Kind::list)
      for (const Node& item : n->items) all += (all.empty() ? "" : ",") + item.text;
    return {std::move(all), std::move(path)};
  }
  Said of_accelerate(const char* key, const std::string& otherwise) const {
    const std::string path = std::string("accelerate.fsdp_config.fsdp_") + key, said = at(path);
    return {said.empty() ? otherwise : said, path};
  }
  void fsdp_of_accelerate() {
    Fsdp& f = out_.fsdp;
    f.home = "accelerate.fsdp_config";
    f.version = of_accelerate("version", "1").value == "2" ? 2 : 1;
    f.strategy = of_accelerate("sharding_strategy", "FULL_SHARD");  // reshard_after_forward is for FSDP2: the launcher sets both
    f.strategy.value = strategy(f.strategy.value);
    f.reshard = of_accelerate("reshard_after_forward", "true");
    f.reshard.value = truth(f.reshard.value);
    f.backward = of_accelerate("backward_prefetch", "NO_PREFETCH");
    f.backward.value = upper(f.backward.value);
    f.wrap = of_accelerate("auto_wrap_policy", "NO_WRAP");
    f.wrap.value = upper(f.wrap.value);
    const auto flag = [&](const char* key, const char* otherwise) {
      Said said = of_accelerate(key, otherwise);
      said.value = truth(said.value);
      return said;
    };
    f.forward = flag("forward_prefetch", "false");
    f.original = flag("use_orig_params", "true");
    f.offload = flag("offload_params", "false");
    f.checkpoints = flag("activation_checkpointing", "false");
    f.layers = classes("accelerate.fsdp_config.fsdp_transformer_layer_cls_to_wrap");
    f.offload_checkpoints = flag("activation_checkpointing_offload", "false").on();
  }

  // ---- TrainingArguments.fsdp and fsdp_config

  Said of_config(const std::string& key, std::string otherwise) const {
    for (const std::string& path : {"fsdp_config." + key, "fsdp_config.fsdp_" + key})
      if (const std::string said = at(path); !said.empty()) return {said, path};
    return {std::move(otherwise), "fsdp_config." + key};
  }
  std::vector<std::string> options() const {
    const Node* n = text_.root.find("fsdp");
    std::vector<std::string> out;
    if (n->kind == Node::Kind::list)
      for (const Node& item : n->items) out.push_back(item.text);
    for (std::size_t at = 0; n->kind == Node::Kind::text && at < n->text.size();) {
      const std::size_t end = std::min(n->text.find(' ', at), n->text.size());
      if (end > at) out.push_back(n->text.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }
  void fsdp_of_arguments() {
    Fsdp& f = out_.fsdp;
    f.home = "fsdp_config";
    const bool by_config = transformers_from(text_.release, "5.12.0");  // from then on all is fsdp_config's
    const bool first = !transformers_from(text_.release, "5.0.0");
    f.version = !first && of_config("version", by_config ? "2" : "1").value == "2" ? 2 : 1;
    f.strategy = {"FULL_SHARD", "fsdp"};
    f.offload = of_config("cpu_offload", "false");
    if (!by_config) f.offload = {"false", "fsdp"};
    bool wraps = by_config;
    for (const std::string& option : options()) {
      if (option == "offload")
        f.offload = {"true", "fsdp"};
      else if (option == "auto_wrap")
        wraps = true;
      else if (std::find(kStrategies.begin(), kStrategies.end(), upper(option)) != kStrategies.end())
        f.strategy.value = upper(option);
    }
    if (by_config)
      if (const Said said = of_config("reshard_after_forward", ""); !said.value.empty() && f.version == 1)
        f.strategy = {strategy(said.value), said.path};
    const bool grad_op = f.strategy.value == "SHARD_GRAD_OP";
    const bool keeps = !transformers_from(text_.release, "5.5.0");  // 5.0: "false" by default
    f.reshard = of_config("reshard_after_forward", grad_op || keeps ? "false" : "true");
    f.wrap = of_config("auto_wrap_policy", by_config ? "TRANSFORMER_BASED_WRAP" : "");
    if (!by_config) f.wrap = {wraps ? "TRANSFORMER_BASED_WRAP" : "NO_WRAP", "fsdp"};
    const std::string least = of_config("min_num_params", "0").value;
    if (wraps && !by_config && least != "0") f.wrap.value = "SIZE_BASED_WRAP";
    f.backward = of_config("backward_prefetch", "NO_PREFETCH");
    f.backward.value = upper(f.backward.value);
    f.forward = of_config("forward_prefetch", "false");
    f.original = of_config("use_orig_params", "true");
    f.checkpoints = of_config("activation_checkpointing", "false");
    f.layers = classes("fsdp_config.transformer_layer_cls_to_wrap");
    if (f.layers.value.empty()) f.layers = classes("fsdp_config.fsdp_transformer_layer_cls_to_wrap");
    for (Said* said : {&f.reshard, &f.forward, &f.original, &f.checkpoints, &f.offload}) said->value = truth(said->value);
  }

  const HfText& text_;
  Engine out_;
  bool of_arguments_ = false;
};

}  // namespace

std::string text_at(const compose::Node& root, std::string_view path) {
  const Node* n = root.at(path);
  if (n == nullptr || n->is_container() || n->kind == Node::Kind::null || n->kind == Node::Kind::missing) return {};
  if (n->kind == Node::Kind::boolean) return n->boolean ? "true" : "false";
  return compose::python_text(*n);
}

std::string checkpointing_key(const HfText& text) {
  const Node* now = text.given.find("activation_checkpointing");
  return now != nullptr && now->kind != Node::Kind::null ? "activation_checkpointing" : "gradient_checkpointing";
}

Engine engine_of(const HfText& text) { return Finder(text).run(); }

}  // namespace oomplan::transformers
