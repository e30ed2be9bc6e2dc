#include "layers/activation_offload.hpp"

#include <algorithm>

#include "layers/families.hpp"

namespace oomplan {
namespace {

/// verl reloads on a stream of its own, whose blocks no other stream gets.
constexpr std::uint8_t kReloadStream = 3;

}  // namespace

std::string ActivationOffload::name_of(const Tensor& x) const {
  return x.leaf >= 0 ? g_.leaves[static_cast<std::size_t>(x.leaf)].name : g_.storages[static_cast<std::size_t>(x.storage())].name;
}

/// As large as what the variable shows of its storage.
Tensor ActivationOffload::copy_of(const Tensor& x, const std::string& suffix, Pool pool) {
  const std::string name = name_of(x) + suffix;
  Tensor out = g_.make(name, x.shape, x.dtype, pool == Pool::torch ? Category::activations : Category::host_copy);
  g_.storages.back().name = name;
  g_.storages.back().pool = pool;
  return out;
}

std::shared_ptr<PackedVariable> ActivationOffload::pack(const Tensor& x) {
  if (x.storage() < 0 && x.leaf < 0) return nullptr;
  return in_groups() ? pack_into_group(x) : pack_alone(x);
}

std::shared_ptr<PackedVariable> ActivationOffload::pack_alone(const Tensor& x) {
  const bool pinned = how_ != OffloadActivations::save_on_cpu;
  Tensor host = copy_of(x, ".on_host", pinned ? Pool::pinned : Pool::pageable);
  // pinned memory gets one block: what is none is made one on the device first (aten/src/ATen/native/cuda/Copy.cu,
  // copy_requires_temporaries); pageable memory keeps the strides
  if (pinned && x.transposed) copy_of(x, ".contiguous", Pool::torch);
  const std::string name = name_of(x) + ".from_host";
  auto packed = std::make_shared<PackedVariable>();
  packed->eager = &g_;
  packed->unpack = [&g = g_, host, name] {
    Tensor device = g.make(name, host.shape, host.dtype);
    g.storages.back().name = name;
    return device;
  };
  return packed;
}

std::shared_ptr<PackedVariable> ActivationOffload::pack_into_group(const Tensor& x) {
  if (x.leaf >= 0) return nullptr;  // FSDPParameterFilter
  if (groups_.size() == current_) groups_.push_back({g_.scope, {}, {}, {}});
  Group& group = groups_.back();
  auto variable = std::make_shared<Variable>();
  variable->tensor = x;
  variable->tensor.grad_fn = nullptr;
  group.variables.push_back(variable);
  // what the layer before made belongs to the layer whose group takes it away
  Storage& storage = g_.storages[static_cast<std::size_t>(x.storage())];
  if (current_ > 0 && storage.scope == groups_[current_ - 1].scope) storage.scope = g_.scope;
  auto packed = std::make_shared<PackedVariable>();
  packed->eager = &g_;
  packed->unpack = [variable] { return std::exchange(variable->tensor, {}); };
  return packed;
}

void ActivationOffload::begin_copies(Group& group) {
  for (const auto& variable : group.variables) {
    const Tensor& x = variable->tensor;
    const auto same = [&](const Copy& copy) { return copy.storage == x.storage() && copy.part == x.part; };
    const auto at = std::find_if(group.copies.begin(), group.copies.end(), same);
    variable->copy = static_cast<std::size_t>(at - group.copies.begin());
    if (at == group.copies.end()) group.copies.push_back({x.storage(), x.part, copy_of(x, ".on_host", Pool::pinned), {}});
    group.leaving.push_back(std::exchange(variable->tensor, {}));
  }
}

void ActivationOffload::bring_back(Group& group) {
  for (Copy& copy : group.copies) {
    copy.device = copy_of(copy.host, "", Pool::torch);
    Storage& made = g_.storages.back();
    made.name.replace(made.name.rfind(".on_host"), std::string::npos, ".from_host");
    made.stream = kReloadStream;
    made.scope = group.scope;
    copy.host.reset();
  }
  for (const auto& variable : group.variables) variable->tensor = group.copies[variable->copy].device;
  group.copies.clear();
}

Tensor ActivationOffload::commit(Tensor out) {
  if (!in_groups()) return out;
  if (groups_.size() == current_) groups_.push_back({g_.scope, {}, {}, {}});
  const std::size_t last = static_cast<std::size_t>(layers_) - 1;
  if (current_ > 0) groups_[current_ - 1].leaving.clear();
  if (current_ < last) begin_copies(groups_[current_]);
  ++current_;
  Tensor same = out.alias(out.shape);
  g_.record(same, "GroupCommitFunctionBackward", {&out}, [this](Gradients in) {
    commit_backward();
    return in;
  });
  return same;
}

void ActivationOffload::commit_backward() {
  if (--current_ > 0) bring_back(groups_[current_ - 1]);
}

namespace {

/// Of verl's, what was executed: gated delta rules. A slice of a turn that begins where the whole tensor does has that tensor's
/// address, by which verl's handler knows copies (_get_unique_tensor_key), and so gets its copy back, which is too large.
std::string unsupported_loops(const Architecture& a, const PassOptions& o) {
  if (!scans(a)) return {};
  const bool delta = std::all_of(a.runs.begin(), a.runs.end(), [](const LayerRun& run) {
    const MixerKind kind = run.layer.mixer.kind;
    return kind == MixerKind::gated_delta || kind == MixerKind::attention;
  });
  if (o.kernels.offload_activations != OffloadActivations::verl || !delta)
    return "offload of activations of a loop over the sequence is not supported yet";
  if (o.training && o.recompute == Recompute::none && o.kernels.delta.kernels == LinearAttention::torch)
    return "verl itself fails to offload transformers' loop over the sequence: say recompute: full, or linear_attention: fla";
  return {};
}

}  // namespace

std::string unsupported_offload(const Architecture& a, const PassOptions& o) {
  if (o.kernels.offload_activations == OffloadActivations::none) return {};
  std::int64_t layers = 0;
  bool sinks = false;
  for (const LayerRun& run : a.runs) {
    layers += run.count;
    sinks = sinks || run.layer.mixer.sinks;
  }
  if (std::string why = unsupported_loops(a, o); !why.empty()) return why;
  if (a.family == "gpt2" && o.recompute == Recompute::full && o.kernels.offload_activations != OffloadActivations::verl)
    return "offload of a mask, which GPT-2 gives its checkpoints by position, is not supported yet";
  if (sinks) return "offload of activations beside attention sinks is not supported yet";
  const FamilyCode& code = family_code(a.family);
  const bool joins = code.rotary.splits_head || code.rotary.form == RotaryForm::halves;
  if (o.kernels.offload_activations == OffloadActivations::trl && o.kernels.kernels == Kernels::hf_flash && joins)
    return "TRL's offload of queries that lie by head under flash-attention is not supported yet";
  if (o.kernels.offload_activations == OffloadActivations::verl && layers + (o.kernels.head_is_unit ? 1 : 0) < 3)
    return "verl offloads nothing of fewer than three layers";
  return {};
}

}  // namespace oomplan
