#include "layers/compiled_layer.hpp"

#include <array>
#include <map>
#include <memory>
#include <utility>

#include "layers/compiled_float8.hpp"
#include "layers/compiled_graphs.hpp"
#include "layers/compiled_order.hpp"
#include "layers/compiled_ring.hpp"
#include "layers/compiled_split.hpp"
#include "layers/compiled_words.hpp"
#include "layers/titan.hpp"

namespace oomplan {
namespace {

using Buffers = std::map<std::string, Tensor, std::less<>>;

const CompiledGraph* graph_of(const Architecture& a, const KernelOptions& o, Recompute recompute, bool training) {
  if (o.kernels == Kernels::archon)
    return training ? find_archon_graph(a.family, recompute, o.compiled_order) : find_archon_inference(a.family);
  const Mixer& m = a.runs.front().layer.mixer;
  const bool repeats = o.repeat_kv && m.kv_heads < m.heads;
  if (o.ulysses > 1)
    return o.float8_gathered ? nullptr : find_ring_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.ulysses);
  if (o.tensor > 1) return find_split_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.several_sequences);
  if (o.float8 != Float8::none) return find_float8_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.float8_gathered);
  return find_compiled_graph(a.family, o.rms_norm, repeats, recompute);
}

/// Buffers that attention's backward kernel has for itself (kernels.cpp, flash-attention 2), for all or half of the queries.
void attention_internals(Eager& g, const Mixer& m, Dim tokens, bool half, bool grouped, DType dtype) {
  const std::int64_t parts = half ? 2 : 1;
  const Shape whole{tokens, Dim(m.q_width())};
  Tensor dq = g.make("attention.dq_accum", {tokens, Dim(m.q_width() / parts)}, DType::fp32, Category::workspace);
  Tensor d = g.make("attention.softmax_d", {tokens, Dim(m.heads / parts)}, DType::fp32, Category::workspace);
  if (!grouped) return;
  Tensor dk = g.make("attention.dk_expanded", whole, dtype, Category::workspace);
  Tensor dv = g.make("attention.dv_expanded", whole, dtype, Category::workspace);
}

struct CompiledPlay {
  Eager& g;
  const CompiledWords words;
  DType dtype;
  bool internals, grouped;

  void operator()(std::string_view program, std::string_view name, Category category, Buffers& buffers) const {
    for_words(program, [&](std::string_view word) {
      if (word.front() == '!') {
        if (internals) attention_internals(g, words.layer.mixer, words.dim('W'), word != "!", grouped, dtype);
        return;
      }
      if (word.front() == '-') {
        buffers.erase(std::string(word.substr(1)));
        return;
      }
      const CompiledBuffer made = words.allocated(word, dtype);
      const std::string buffer(made.name);
      buffers[buffer] = g.make(std::string(name) + buffer, made.shape, made.dtype, category);
    });
  }
};

/// The leaf that a word of CompiledGraph::gradients names.
int leaf_of(const LayerLeaves& w, std::string_view name) {
  const std::array<std::pair<std::string_view, int>, 14> leaves{{{"attention_norm", w.before_attention.weight},
                                                                 {"ffn_norm", w.before_feed_forward.weight},
                                                                 {"q", w.q},
                                                                 {"k", w.k},
                                                                 {"v", w.v},
                                                                 {"q_bias", w.q_bias},
                                                                 {"k_bias", w.k_bias},
                                                                 {"v_bias", w.v_bias},
                                                                 {"o", w.o},
                                                                 {"q_norm", w.q_norm.weight},
                                                                 {"k_norm", w.k_norm.weight},
                                                                 {"w1", w.gate},
                                                                 {"w3", w.up},
                                                                 {"w2", w.down}}};
  for (const auto& [known, leaf] : leaves)
    if (known == name) return leaf;
  return -1;
}

/// Whose graphs there are, in the words of the job.
std::string compiled_releases(const KernelOptions& o) {
  if (o.ulysses > 1 || o.tensor > 1) return "torchtitan's Llama of February 2025 is (rms_norm: by_hand, repeat_kv: true)";
  if (o.float8 != Float8::none)
    return "torchtitan's Llama of February 2025 (rms_norm: by_hand, repeat_kv: true) and September 2025 (rms_norm: fused, "
           "repeat_kv: true) is";
  return "torchtitan's Llama of February 2025 (rms_norm: by_hand, repeat_kv: true), its Llama and Qwen3 of September 2025 "
         "(rms_norm: fused, repeat_kv: true) and of 0.2.2 (rms_norm: fused, repeat_kv: false) are";
}

}  // namespace

std::string unsupported_compiled(const Architecture& a, const KernelOptions& o, Recompute recompute, bool training) {
  if (o.parameters != DType::bf16 && o.parameters != DType::fp16) return "torch.compile in fp32 is not supported yet";
  if (o.kernels == Kernels::archon) return {};  // unsupported_archon
  if (o.kernels != Kernels::torchtitan)
    return "torch.compile of models other than torchtitan's and Archon's is not supported yet";
  if (!training) return "a forward-only pass of torchtitan under torch.compile is not supported yet";
  const Mixer& m = a.runs.front().layer.mixer;
  if (o.tensor > 1 && m.q_width() != a.hidden)
    return "torch.compile under tensor parallelism with queries wider than hidden states is not supported yet";
  if (o.tensor > 1 && o.float8_gathered) return "a float8 all-gather under tensor parallelism is not supported yet";
  if (o.ulysses > 1 && m.q_width() != a.hidden)
    return "torch.compile under context parallelism with queries wider than hidden states is not supported yet";
  if (graph_of(a, o, recompute, training) == nullptr)
    return std::string("torch.compile of this model") +
           (o.ulysses > 1  ? " under context parallelism of this degree"
            : o.tensor > 1 ? " under tensor parallelism"
                           : "") +
           " with this rms_norm, repeat_kv and float8 is not supported yet: " + compiled_releases(o);
  return {};
}

Tensor run_compiled_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                          const CompiledPass& pass, const Tensor& x) {
  const CompiledGraph& graph = *graph_of(a, options, pass.recompute, pass.training);
  const bool grouped = !options.repeat_kv && layer.mixer.kv_heads < layer.mixer.heads;
  const CompiledPlay play{g, {a, layer, options.tensor}, x.dtype, options.kernel_internals, grouped};

  std::vector<Tensor> inputs{x};
  std::vector<std::string> gradients;
  for_words(graph.gradients, [&](std::string_view word) {
    const std::size_t is = word.find('=');
    gradients.emplace_back(word.substr(is + 1));
    if (const int leaf = leaf_of(w, word.substr(0, is)); leaf >= 0) inputs.push_back(g.leaf(leaf));
  });
  Buffers buffers;
  play(graph.forward, "buf", Category::activations, buffers);
  Tensor out = std::move(buffers.find(std::to_string(graph.output))->second);
  out.shape = x.shape;
  for (std::size_t i = 1; i < inputs.size(); ++i) g.leave(inputs[i].leaf);
  if (!pass.training) return out;

  auto saved = std::make_shared<std::map<std::string, Saved, std::less<>>>();
  for_words(graph.kept, [&](std::string_view word) {
    if (word == "x")
      saved->emplace(word, g.save(x));
    else if (word == "rope")
      saved->emplace(word, g.save(pass.table));
    else
      saved->emplace("f" + std::string(word), g.save(buffers.find(word)->second));
  });
  buffers.clear();
  std::vector<const Tensor*> wants;
  for (const Tensor& input : inputs) wants.push_back(&input);
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape);
  // CompiledFunction.backward gives what was saved to the program, which drops it; the gradient that came in is held by the
  // caller
  g.record(out, "CompiledFunctionBackward", wants, [=, &graph, &layer, &a, &g](Gradients in) {
    Buffers held;
    for (const auto& [name, tensor] : *saved) held.emplace(name, tensor.get());
    saved->clear();
    const CompiledPlay again{g, {a, layer, play.words.ranks}, in[0].dtype, play.internals, play.grouped};
    again(graph.backward, "backward.buf", Category::temporaries, held);
    Gradients made;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      made.push_back(std::move(held.find(gradients[i])->second));
      made.back().shape = shapes[i];
    }
    return made;
  });
  return out;
}

}  // namespace oomplan
