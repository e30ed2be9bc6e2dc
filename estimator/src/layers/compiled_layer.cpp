#include "layers/compiled_layer.hpp"

#include <array>
#include <map>
#include <memory>
#include <utility>

#include "layers/compiled_float8.hpp"
#include "layers/compiled_graphs.hpp"
#include "layers/compiled_ring.hpp"
#include "layers/compiled_split.hpp"
#include "layers/titan.hpp"

namespace oomplan {
namespace {

using Buffers = std::map<std::string, Tensor, std::less<>>;

const CompiledGraph* graph_of(const Architecture& a, const KernelOptions& o, Recompute recompute) {
  const Mixer& m = a.runs.front().layer.mixer;
  const bool repeats = o.repeat_kv && m.kv_heads < m.heads;
  if (o.ulysses > 1)
    return o.float8_gathered ? nullptr : find_ring_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.ulysses);
  if (o.tensor > 1) return find_split_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.several_sequences);
  if (o.float8 != Float8::none) return find_float8_graph(a.family, o.rms_norm, repeats, recompute, o.float8, o.float8_gathered);
  return find_compiled_graph(a.family, o.rms_norm, repeats, recompute);
}

/// What the words of a program stand for.
struct CompiledWords {
  const Architecture& a;
  const Layer& layer;
  std::int64_t ranks;  ///< that divide the layer

  Dim dim(char letter) const {
    const Mixer& m = layer.mixer;
    switch (letter) {
      case 'T':
        return axis::T;
      case 'S':
        return axis::S;
      case 'W':
        return Dim(ranks) * axis::T;
      case 'Z':
        return Dim(ranks) * axis::S;
      case 'H':
        return a.hidden;
      case 'A':
        return m.q_width();
      case 'K':
        return m.k_width();
      case 'F':
        return layer.feed_forward.width;
      case 'a':
        return m.heads;
      case 'g':
        return m.kv_heads;
      default:
        return m.head_dim;
    }
  }

  /// "T.F": [T, F]; "P.H": as many numbers as ceil(H / 128) for every token; "16.T.H": 16 times as many as T.H; "T.H~": half of
  /// them.
  Shape shape(std::string_view words) const {
    Shape out;
    const bool partial = words.front() == 'P';
    std::int64_t factor = 0;
    for (const char letter : words) {
      if (letter >= '0' && letter <= '9') {
        factor = 10 * factor + (letter - '0');
      } else if (letter == '.') {
        if (factor > 0) out.push_back(std::exchange(factor, 0));
      } else if (letter == '~') {
        out.back() = Dim(out.back().coefficient / 2);
      } else {
        out.push_back(letter == 'P' ? axis::T : dim(letter));
      }
    }
    if (partial) out.back() = Dim((out.back().coefficient + 127) / 128);
    return out;
  }
};

/// Calls `each` with every word.
template <class Each>
void for_words(std::string_view program, const Each& each) {
  while (!program.empty()) {
    const std::size_t end = program.find(' ');
    if (const std::string_view word = program.substr(0, end); !word.empty()) each(word);
    program.remove_prefix(end == std::string_view::npos ? program.size() : end + 1);
  }
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
      const std::size_t is = word.find('=');
      const std::string buffer(word.substr(1, is - 1));
      if (word.front() == '-') {
        buffers.erase(buffer);
        return;
      }
      std::string_view size = word.substr(is + 1);
      const DType format = size.ends_with(":4") ? DType::fp32 : size.ends_with(":1") ? DType::fp8 : dtype;
      if (format != dtype) size.remove_suffix(2);
      buffers[buffer] = g.make(std::string(name) + buffer, words.shape(size), format, category);
    });
  }
};

/// The leaf that a word of CompiledGraph::gradients names.
int leaf_of(const LayerLeaves& w, std::string_view name) {
  const std::array<std::pair<std::string_view, int>, 11> leaves{{{"attention_norm", w.before_attention.weight},
                                                                 {"ffn_norm", w.before_feed_forward.weight},
                                                                 {"q", w.q},
                                                                 {"k", w.k},
                                                                 {"v", w.v},
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

std::string unsupported_compiled(const Architecture& a, const KernelOptions& o, Recompute recompute) {
  if (o.kernels != Kernels::torchtitan) return "torch.compile of models other than torchtitan's is not supported yet";
  const Mixer& m = a.runs.front().layer.mixer;
  if (o.tensor > 1 && m.q_width() != a.hidden)
    return "torch.compile under tensor parallelism with queries wider than hidden states is not supported yet";
  if (o.tensor > 1 && o.float8_gathered) return "a float8 all-gather under tensor parallelism is not supported yet";
  if (o.parameters != DType::bf16 && o.parameters != DType::fp16) return "torch.compile in fp32 is not supported yet";
  if (o.ulysses > 1 && m.q_width() != a.hidden)
    return "torch.compile under context parallelism with queries wider than hidden states is not supported yet";
  if (graph_of(a, o, recompute) == nullptr)
    return std::string("torch.compile of this model") +
           (o.ulysses > 1  ? " under context parallelism of this degree"
            : o.tensor > 1 ? " under tensor parallelism"
                           : "") +
           " with this rms_norm, repeat_kv and float8 is not supported yet: " + compiled_releases(o);
  return {};
}

Tensor run_compiled_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                          Recompute recompute, const Tensor& x) {
  const CompiledGraph& graph = *graph_of(a, options, recompute);
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

  auto saved = std::make_shared<std::map<std::string, Saved, std::less<>>>();
  for_words(graph.kept, [&](std::string_view word) {
    if (word == "x")
      saved->emplace(word, g.save(x));
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
