#include "layers/foak.hpp"

#include <algorithm>

#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

std::string unsupported_foak(const Architecture& a, const KernelOptions& options) {
  if (!options.foak.any()) return {};
  // its rules name the modules of these families (models/llama.py, mistral.py, granite.py)
  const bool known = a.family == "llama" || a.family == "mistral" || a.family == "granite";
  if (!known) return "fms-acceleration's operators of '" + a.family + "' are not supported yet";
  const auto biased = [](const LayerRun& run) { return run.layer.mixer.q_bias || run.layer.mixer.out_bias; };
  if (options.foak.lora && std::any_of(a.runs.begin(), a.runs.end(), biased))
    return "fms-acceleration's fused adapters beside biases are not supported yet";
  if (options.tensor > 1 || options.ulysses > 1) return "fms-acceleration's operators on parts of a layer are not supported yet";
  return {};
}

namespace foak {

Tensor rms_norm(Eager& g, const Tensor& x, int weight, const std::string& name) {
  const Tensor w = g.leaf(weight);
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor root = g.make(name + ".rstd", with_last(x.shape, 1), DType::fp32);
  if (!g.will_record({&x})) return out;
  Saved saved = g.save(x), saved_weight = g.save(w), saved_root = g.save(root);
  g.record(out, "Fast_RMS_LayernormBackward", {&x}, [saved, saved_weight, saved_root](Gradients in) {
    (void)saved.get();
    (void)saved_weight.get();
    (void)saved_root.get();
    return Gradients{in[0].alias(in[0].shape)};
  });
  return out;
}

Tensor rope(Eager& g, const Tensor& x, const Tensor& cos, const Tensor& sin, bool by_head) {
  Tensor out = x.alias(x.shape);
  const bool recorded = g.record(out, "Fast_RoPE_EmbeddingBackward", {&x}, [&g, by_head](Gradients in) {
    if (!by_head) return in;
    return Gradients{g.make("rope_backward", in[0].shape, in[0].dtype, Category::temporaries)};
  });
  if (recorded) out.grad_fn->attributes = {cos.alias(cos.shape), sin.alias(sin.shape)};
  return out;
}

namespace {

constexpr std::int64_t kMostColumns = 65536;  // MAX_FUSED_SIZE

/// One fp32 a row; of wide rows from the logsumexp of each part of them.
Tensor logsumexp_of_rows(Eager& g, const Shape& rows, std::int64_t vocab, const Tensor& labels) {
  if (vocab <= kMostColumns) return g.make("logsumexp", rows, DType::fp32);
  Shape parts = rows;
  parts.emplace_back(ceil_div(vocab, kMostColumns));
  Tensor sum;
  {
    Tensor by_part = g.make("logsumexp.parts", parts, DType::fp32);
    Tensor hidden = g.make("logsumexp.exp", parts, DType::fp32, Category::temporaries);  // inside of torch.logsumexp
    hidden.reset();
    sum = g.make("logsumexp", rows, DType::fp32);
  }
  Tensor ignored = g.make("labels.ignored", labels.shape, DType::boolean);
  return sum;
}

}  // namespace

Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels) {
  const Shape rows(logits.shape.begin(), logits.shape.end() - 1);
  Tensor losses = g.make("losses", rows, DType::fp32);
  Tensor sum = logsumexp_of_rows(g, rows, logits.shape.back().coefficient, labels);
  if (g.will_record({&logits})) {
    Saved saved = g.save(logits), saved_sum = g.save(sum), saved_labels = g.save(labels);
    g.record(losses, "Fast_CrossEntropyLossBackward", {&logits}, [saved, saved_sum, saved_labels](const Gradients&) {
      const Tensor& self = saved.get();
      (void)saved_sum.get();
      (void)saved_labels.get();
      return Gradients{self.alias(self.shape)};
    });
  }
  sum.reset();
  {
    Tensor counted = g.make("labels.counted", labels.shape, DType::boolean);
  }
  Tensor loss = g.make("loss", {}, DType::fp32);
  g.record(loss, "SumBackward0", {&losses}, [rows](Gradients in) { return Gradients{in[0].alias(rows)}; });  // expand: a view
  return loss;
}

}  // namespace foak
}  // namespace oomplan
