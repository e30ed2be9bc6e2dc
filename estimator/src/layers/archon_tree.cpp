#include "layers/archon_tree.hpp"

namespace oomplan {
namespace {

/// Shapes of one call. T tokens, G query heads for every head of keys.
struct Sizes {
  Shape query, key, by_head, rows, scores, pairs;
  Sizes(const Tensor& q, const Tensor& k)
      : query(q.shape),
        key(k.shape),
        by_head{q.shape[0], q.shape[2], q.shape[1], q.shape[3]},
        rows{q.shape[0], q.shape[2], q.shape[1]},
        scores{q.shape[0], q.shape[2], q.shape[1], q.shape[1]},
        pairs{q.shape[1], q.shape[1]} {}
};

class Dense {
 public:
  Dense(Eager& g, Sizes sizes, DType dtype, std::string prefix)
      : g_(g), s_(std::move(sizes)), dtype_(dtype), prefix_(std::move(prefix)) {}

  Tensor rows(const char* name, DType dtype = DType::fp32) { return make(name, s_.rows, dtype, Category::temporaries); }
  Tensor scores(const char* name, DType dtype = DType::fp32) { return make(name, s_.scores, dtype, Category::temporaries); }
  Tensor by_head(const char* name, DType dtype) { return make(name, s_.by_head, dtype, Category::temporaries); }
  /// mask[q, k] of all pairs.
  Tensor seen() { return make("seen", s_.pairs, DType::boolean, Category::temporaries); }

  /// _math_attention_inner: scores, scaled and masked ones.
  struct Scores {
    Tensor all, masked;
  };
  Scores inner() {
    Tensor wide_q = by_head("query_fp32", DType::fp32), wide_k = by_head("key_fp32", DType::fp32);
    Tensor product = scores("product");
    wide_q.reset();
    wide_k.reset();
    Scores out;
    out.all = scores("scores");
    product.reset();
    const Tensor mask = seen();
    out.masked = scores("masked");
    return out;
  }

  /// sdpa_dense: math_attention, whose result is put in the order of the queries.
  Eager::Results forward() {
    Tensor v = by_head("value_repeated", dtype_), k = by_head("key_repeated", dtype_);
    Scores made = inner();
    {
      Tensor power = scores("logsumexp.exp");  // (x - max).exp() inside the kernel
    }
    Tensor lse = rows("logsumexp");
    Tensor unseen_rows = unseen(made.masked);
    Tensor bounded = rows("logsumexp.bounded");
    lse = std::move(bounded);
    Tensor largest = rows("max");
    {
      Tensor where = rows("max.index", DType::int64);
    }
    made.masked = safe_softmax();
    Tensor narrow = scores("probabilities", dtype_);
    Tensor out = by_head("product_out", dtype_);
    narrow.reset();
    Tensor kept_lse = make("lse", s_.rows, DType::fp32, Category::activations);
    Tensor kept_max = make("max_scores", s_.rows, DType::fp32, Category::activations);
    made = {};
    for (Tensor* each : {&lse, &largest, &unseen_rows, &v, &k}) each->reset();
    Eager::Results results{make("out", s_.by_head, dtype_, Category::activations)};
    results.push_back(std::move(kept_lse));
    results.push_back(std::move(kept_max));
    return results;
  }

  /// sdpa_dense_backward.
  std::vector<Tensor> backward() {
    std::vector<Tensor> grads;
    for (const Shape* shape : {&s_.query, &s_.key, &s_.key}) {
      Tensor plain = make("backward.plain", *shape, dtype_, Category::temporaries);
      grads.push_back(make("backward", *shape, dtype_, Category::temporaries));
    }
    Tensor k = by_head("key_repeated", dtype_), v = by_head("value_repeated", dtype_);
    Tensor none = rows("lse_gradient"), lse = rows("lse_natural");
    Tensor scaled = rows("lse_gradient.scaled");
    none = std::move(scaled);
    const Scores made = inner();
    Tensor softmax;
    {
      Tensor below = scores("below");
      softmax = scores("exp");
    }
    {
      Tensor bounded = scores("softmax");
      softmax = std::move(bounded);
    }
    Tensor value_gradient, key_gradient;
    {
      Tensor narrow = scores("softmax.narrow", dtype_);
      value_gradient = by_head("value_gradient", dtype_);
    }
    const Tensor of_scores = score_gradients();
    key_gradient = products(of_scores);
    (void)key_gradient;
    return grads;
  }

 private:
  Tensor make(const char* name, const Shape& shape, DType dtype, Category category) {
    return g_.make(prefix_ + name, shape, dtype, category);
  }
  Tensor unseen(const Tensor&) {
    Tensor each = scores("unseen", DType::boolean);
    return rows("unseen_rows", DType::boolean);
  }
  /// Without its own kernel (aten/src/ATen/native/SoftMax.cpp: _safe_softmax).
  Tensor safe_softmax() {
    Tensor softmax = scores("softmax"), empty_rows;
    {
      Tensor each = scores("softmax.unseen", DType::boolean);
      empty_rows = rows("softmax.unseen_rows", DType::boolean);
    }
    return scores("softmax.safe");
  }
  /// From the gradient of the softmax to that of the scores in 16 bits, whose predecessors keep their names.
  Tensor score_gradients() {
    Tensor given = by_head("gradient_fp32", DType::fp32), wide_v = by_head("value_fp32", DType::fp32);
    of_softmax_ = scores("softmax_gradient");
    given.reset();
    wide_v.reset();
    Tensor sums;
    {
      Tensor out = by_head("out_fp32", DType::fp32), again = by_head("gradient_fp32", DType::fp32);
      Tensor product = by_head("out_gradient", DType::fp32);
      out.reset();
      again.reset();
      sums = rows("sums");
    }
    Tensor below = scores("gradient.below");
    Tensor shifted = scores("gradient.shifted");
    below.reset();
    of_mod_ = scores("gradient.of_mod");
    shifted.reset();
    Tensor scaled = scores("gradient.scaled");
    Tensor narrow = scores("gradient.narrow", dtype_);
    scaled.reset();
    const Tensor mask = seen();
    return scores("gradient", dtype_);
  }
  Tensor products(const Tensor&) {
    Tensor query_gradient = by_head("query_gradient", dtype_);
    Tensor key_gradient = by_head("key_gradient", dtype_);
    Tensor summed = make("key_gradient.summed", s_.key, dtype_, Category::temporaries);
    Tensor value_summed = make("value_gradient.summed", s_.key, dtype_, Category::temporaries);
    of_softmax_.reset();
    of_mod_.reset();
    return key_gradient;
  }

  Eager& g_;
  Sizes s_;
  DType dtype_;
  std::string prefix_;
  Tensor of_softmax_, of_mod_;
};

}  // namespace

Tensor tree_mask(Eager& g, const Dim& tokens) {
  const Shape pairs{tokens, tokens};
  Tensor mask = g.make("tree_mask", pairs, DType::boolean, Category::buffers);
  {
    Tensor indexed = g.make("tree_mask.indexed", pairs, DType::boolean, Category::temporaries);
    Tensor padded = g.make("tree_mask.padded", pairs, DType::boolean, Category::temporaries);
  }
  return mask;
}

Tensor tree_attention(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask) {
  const bool recorded = g.will_record({&q, &k, &v});
  const Sizes sizes(q, k);
  const DType dtype = q.dtype;
  Saved sq, sk, sv, sm;
  if (recorded) {
    sq = g.save(q);
    sk = g.save(k);
    sv = g.save(v);
    sm = g.save(mask);
  }
  auto results = g.kept(false, [&] { return Dense(g, sizes, dtype, "attention.").forward(); });
  Tensor out = std::move(results[0]), lse = std::move(results[1]), largest = std::move(results[2]);
  if (!recorded) return out;
  Saved so = g.save(out), sl = g.save(lse), sx = g.save(largest);
  g.record(out, "FlexAttentionAutogradOpBackward", {&q, &k, &v}, [=, &g](Gradients) {
    for (const Saved* s : {&sq, &sk, &sv, &sm, &so, &sl, &sx}) (void)s->get();
    return Gradients{Dense(g, sizes, dtype, "attention_backward.").backward()};
  });
  return out;
}

}  // namespace oomplan
