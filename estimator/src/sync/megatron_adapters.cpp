// Adapters of AReaL's Megatron engine as they travel: Megatron-Bridge's pairs under the names of peft, those of joint matrices
// once for each part, and of a rank's experts, which share a pair, once for every expert
// (areal/engine/megatron_utils/megatron_lora.py: convert_qwen3_lora_to_hf, convert_qwen3_moe_lora_to_hf, 1.0.4 and the
// development after 2.0.0).
#include <algorithm>
#include <utility>

#include "layers/megatron_lora.hpp"
#include "sync/sync.hpp"

namespace oomplan {
namespace {

class Pairs {
 public:
  Pairs(const Architecture& a, const MegatronAdapters& beside, DType format) : a_(a), beside_(beside) {
    out_.storage = out_.wire = format;
  }

  SyncModel model() {
    std::int32_t layer = 0;
    for (const LayerRun& run : a_.runs) {
      const std::size_t first = out_.tensors.size();
      copies_.clear();
      add_layer(run.layer);
      for (std::int64_t l = 0; l < run.count; ++l, ++layer)
        for (std::size_t i = 0; i < copies_.size(); ++i)
          for (std::int32_t c = 0; c < copies_[i]; ++c) step(first + i, layer, c);
    }
    return std::move(out_);
  }

 private:
  void add_layer(const Layer& l) {
    const Mixer& m = l.mixer;
    const FeedForward& f = l.feed_forward;
    const bool moe = f.kind == FeedForwardKind::moe;
    const std::int64_t width = moe ? f.expert_width : f.width;
    const auto copies = static_cast<std::int32_t>(moe ? f.experts : 1);
    if (beside_.qkv) {
      pair("q_proj", a_.hidden, m.q_width(), 1);
      pair("k_proj", a_.hidden, m.k_width(), 1);
      pair("v_proj", a_.hidden, m.v_width(), 1);
    }
    if (beside_.proj) pair("o_proj", m.out_width(), a_.hidden, 1);
    if (beside_.fc1) {
      pair("gate_proj", a_.hidden, width, copies);
      pair("up_proj", a_.hidden, width, copies);
    }
    if (beside_.fc2) pair("down_proj", width, a_.hidden, copies);
  }
  void pair(const std::string& name, std::int64_t in, std::int64_t out, std::int32_t copies) {
    tensor(name + ".lora_A", {beside_.rank, in}, copies);
    tensor(name + ".lora_B", {out, beside_.rank}, copies);
  }
  void tensor(std::string name, std::vector<std::int64_t> shape, std::int32_t copies) {
    const Bytes bytes = bytes_of(shape[0] * shape[1], out_.wire);
    out_.tensors.push_back({std::move(name), std::move(shape), bytes, bytes});
    out_.largest_stored = out_.largest_sent = std::max(out_.largest_sent, bytes);
    copies_.push_back(copies);
  }
  void step(std::size_t tensor, std::int32_t layer, std::int32_t copy) {
    out_.order.push_back({static_cast<std::uint32_t>(tensor), layer, copy});
    out_.total_sent += out_.tensors[tensor].sent;
  }

  const Architecture& a_;
  const MegatronAdapters& beside_;
  SyncModel out_;
  std::vector<std::int32_t> copies_;
};

}  // namespace

SyncModel megatron_adapters_model(const Architecture& a, const MegatronAdapters& beside, DType format) {
  return Pairs(a, beside, format).model();
}

}  // namespace oomplan
