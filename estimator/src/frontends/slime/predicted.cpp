// Relax: relax/backends/megatron/model_provider.py (configure_mtp_detach_paths, bridge_keys, freeze_model_params), model.py
// (_attach_mtp_forward_kwargs, _bypass_output_layer), loss.py (mtp_only_loss_function) (redai-studio/Relax, 07d5d193).
#include "frontends/slime/predicted.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace oomplan::slime {
namespace {

class Predicted {
 public:
  Predicted(SlimeText& text, const std::string& role) : t_(text), role_(role) {}

  std::vector<Setting> run() {
    if (!trains_predicted(t_))
      own("mtp_runs", "false", "enable_mtp_training");
    else {
      loss();
      paths();
      if (alone()) own("mtp_alone", "true", "mtp_only_training");
      if (alone() && !t_.megatron.given("mtp_num_layers")) own("mtp_layers", "1", "mtp_only_training");
    }
    return std::move(out_);
  }

 private:
  bool alone() const { return t_.own.on("mtp_only_training"); }
  void put(const char* knob, const char* value, std::string place, bool given) {
    out_.push_back({fmt::format("{}.{}", role_, knob),
                    value,
                    {given ? Origin::Kind::file : Origin::Kind::derived,
                     {t_.told.file, 0, 0, std::move(place)},
                     given ? "" : fmt::format("{}'s code", t_.family->name),
                     {}}});
  }
  void own(const char* knob, const char* value, const char* name) { put(knob, value, t_.own.place(name), t_.own.given(name)); }
  void refuse(std::string place, std::string found, const char* expected, std::string_view what) {
    t_.told.add(std::move(place), std::move(found), expected, fmt::format("not supported yet: {}", what));
    t_.told.problems.back().kind = ProblemKind::not_supported;
  }

  void loss() {
    const megatron::Arguments& a = t_.megatron;
    if (!a.on("cross_entropy_loss_fusion")) return;
    if (const std::string impl = a.text("cross_entropy_fusion_impl"); impl != "native")
      return refuse(a.place("cross_entropy_fusion_impl"), fmt::format("'{}'", impl), "native",
                    "multi-token prediction with another fused loss than Megatron's own");
    put("mtp_fused_loss", "true", a.place("cross_entropy_loss_fusion"), true);
  }

  /// All three unless it is said.
  void paths() {
    if (!t_.own.given("mtp_detach_paths")) return;
    const nlohmann::json& paths = t_.own.value("mtp_detach_paths");
    const auto named = [&](std::string_view path) {
      return paths.is_array() && std::any_of(paths.begin(), paths.end(), [&](const auto& p) { return p == path; });
    };
    constexpr std::array<std::string_view, 3> kAll{"embedding", "backbone", "lm-head"};
    const bool none = named("none"), all = std::ranges::all_of(kAll, named);
    if (!none && !all)
      refuse(t_.own.place("mtp_detach_paths"), paths.dump(), "none, or embedding backbone lm-head",
             "multi-token prediction whose gradients reach a part of the model");
    if (none) own("mtp_detached", "false", "mtp_detach_paths");
  }

  SlimeText& t_;
  const std::string& role_;
  std::vector<Setting> out_;
};

}  // namespace

bool trains_predicted(const SlimeText& t) { return t.own.on("enable_mtp_training") || t.own.on("mtp_only_training"); }

std::vector<Setting> predicted_of(SlimeText& text, const std::string& role) {
  if (text.megatron.whole_or("mtp_num_layers", 0) == 0 && !trains_predicted(text)) return {};
  return Predicted(text, role).run();
}

}  // namespace oomplan::slime
