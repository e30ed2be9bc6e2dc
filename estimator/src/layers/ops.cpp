#include "layers/ops.hpp"

namespace oomplan::ops {
namespace {

constexpr Category kTemporary = Category::temporaries;

DType higher(DType a, DType b) { return a == DType::fp32 || b == DType::fp32 ? DType::fp32 : a; }

const Shape& larger(const Tensor& a, const Tensor& b) {
  const Dim x = elements(a.shape), y = elements(b.shape);
  const auto degree = [](const Dim& d) { return d.b + d.s + d.k + d.e; };
  if (degree(x) != degree(y)) return degree(x) > degree(y) ? a.shape : b.shape;
  return x.coefficient >= y.coefficient ? a.shape : b.shape;
}

}  // namespace

Tensor gradient(Eager& g, const char* name, const Shape& shape, DType dtype) { return g.make(name, shape, dtype, kTemporary); }

Tensor to(Eager& g, Tensor x, DType dtype, const std::string& name) {
  if (x.dtype == dtype) return x;
  Tensor out = g.make(name, x.shape, dtype);
  const DType from = x.dtype;
  g.record(out, "ToCopyBackward0", {&x},
           [&g, from](Gradients in) { return Gradients{gradient(g, "to_backward", in[0].shape, from)}; });
  return out;
}

Tensor pow2(Eager& g, Tensor x) { return power(g, std::move(x), "pow"); }

Tensor scale_in_place(Eager& g, const Tensor& out, bool wide) {
  Tensor scaled = out.alias(out.shape);
  g.record(scaled, "MulBackward0", {&out}, [&g, wide](Gradients in) {
    return Gradients{gradient(g, "scale_backward", in[0].shape, wide ? DType::fp32 : in[0].dtype)};
  });
  return scaled;
}

Tensor power(Eager& g, Tensor x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    g.record(out, "PowBackward0", {&x}, [&g, saved](Gradients in) {
      const Tensor& base = saved.get();
      Tensor power = gradient(g, "pow_backward.pow", base.shape, base.dtype);      // self.pow(exponent - 1)
      Tensor scaled = gradient(g, "pow_backward.scaled", base.shape, base.dtype);  // exponent * ...
      Tensor out_gradient = gradient(g, "pow_backward", in[0].shape, base.dtype);
      return Gradients{out_gradient};
    });
  }
  return out;
}

Tensor mean_last(Eager& g, Tensor x) {
  Tensor out = g.make("mean", with_last(x.shape, 1), x.dtype);
  const Shape whole = x.shape;
  g.record(out, "MeanBackward1", {&x}, [&g, whole](Gradients in) {
    return Gradients{gradient(g, "mean_backward", whole, in[0].dtype)};  // expand is a view, the division is not
  });
  return out;
}

Tensor add_scalar(Eager& g, Tensor x, const std::string& name) {
  Tensor out = g.make(name, x.shape, x.dtype);
  g.record(out, "AddBackward0", {&x}, [](Gradients in) { return in; });
  return out;
}

Tensor rsqrt(Eager& g, Tensor x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    Saved saved = g.save(out);
    g.record(out, "RsqrtBackward0", {&x}, [&g, saved](Gradients in) {
      const Tensor& result = saved.get();
      Tensor cube = gradient(g, "rsqrt_backward.pow", result.shape, result.dtype);
      Tensor half = gradient(g, "rsqrt_backward.half", in[0].shape, in[0].dtype);
      Tensor product = gradient(g, "rsqrt_backward", result.shape, result.dtype);
      return Gradients{product};
    });
  }
  return out;
}

Tensor mul(Eager& g, Tensor a, Tensor b, const std::string& name, Category category) {
  const bool recorded = g.will_record({&a, &b});
  const bool for_a = recorded && a.needs_grad(), for_b = recorded && b.needs_grad();
  Saved saved_b = for_a ? g.save(b) : Saved();  // in the order of derivatives.yaml's names: other, self
  Saved saved_a = for_b ? g.save(a) : Saved();
  Tensor out = g.make(name, larger(a, b), higher(a.dtype, b.dtype), category);
  if (recorded) {
    g.record(out, "MulBackward0", {&a, &b}, [&g, for_a, for_b, saved_a, saved_b](Gradients in) {
      Gradients grads(2);
      for (const Saved* s : {&saved_b, &saved_a}) (void)s->get();
      if (for_b) grads[1] = gradient(g, "mul_backward", in[0].shape, higher(in[0].dtype, saved_a.get().dtype));
      if (for_a) grads[0] = gradient(g, "mul_backward", in[0].shape, higher(in[0].dtype, saved_b.get().dtype));
      return grads;
    });
  }
  return out;
}

Tensor scale(Eager& g, Tensor x, const std::string& name, Category category) {
  Tensor out = g.make(name, x.shape, x.dtype, category);
  g.record(out, "MulBackward0", {&x},
           [&g](Gradients in) { return Gradients{gradient(g, "scale_backward", in[0].shape, in[0].dtype)}; });
  return out;
}

Tensor add(Eager& g, Tensor a, Tensor b, const std::string& name) {
  Tensor out = g.make(name, larger(a, b), higher(a.dtype, b.dtype));
  g.record(out, "AddBackward0", {&a, &b}, [](Gradients in) { return Gradients{in[0], in[0]}; });
  return out;
}

Tensor add_in_place(Eager& g, const Tensor& out, const Tensor& x) {
  Tensor sum = out.alias(out.shape);
  g.record(sum, "AddBackward0", {&out, &x}, [](Gradients in) { return Gradients{in[0], in[0]}; });
  return sum;
}

Tensor sub(Eager& g, Tensor a, Tensor b, const std::string& name) {
  Tensor out = g.make(name, larger(a, b), higher(a.dtype, b.dtype));
  g.record(out, "SubBackward0", {&a, &b},
           [&g](Gradients in) { return Gradients{in[0], gradient(g, "sub_backward", in[0].shape, in[0].dtype)}; });
  return out;
}

Tensor clamp(Eager& g, const Tensor& x, int bounds, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    g.record(out, "ClampBackward1", {&x}, [&g, saved, bounds](Gradients in) {
      (void)saved.get();
      Tensor first = gradient(g, "clamp_backward.mask", in[0].shape, DType::boolean);
      Tensor second = bounds > 1 ? gradient(g, "clamp_backward.mask", in[0].shape, DType::boolean) : Tensor();
      return Gradients{gradient(g, "clamp_backward", in[0].shape, in[0].dtype)};
    });
  }
  return out;
}

Tensor neg(Eager& g, Tensor x, const std::string& name) {
  Tensor out = g.make(name, x.shape, x.dtype);
  g.record(out, "NegBackward0", {&x},
           [&g](Gradients in) { return Gradients{gradient(g, "neg_backward", in[0].shape, in[0].dtype)}; });
  return out;
}

Tensor slice(Eager& g, const Tensor& x, Shape part) {
  Tensor out = x.alias(std::move(part));
  out.part = ++g.parts;
  const Shape whole = x.shape;
  const DType dtype = x.dtype;
  g.record(out, "SliceBackward0", {&x}, [&g, whole, dtype](Gradients) {
    return Gradients{gradient(g, "slice_backward", whole, dtype)};  // zeros, then the slice is copied in
  });
  return out;
}

std::vector<Tensor> split(Eager& g, const Tensor& x, const std::vector<Shape>& parts) {
  std::vector<Tensor> out;
  for (const Shape& part : parts) {
    out.push_back(x.alias(part));
    out.back().part = ++g.parts;
  }
  const Shape whole = x.shape;
  Tensor all = x.alias(whole);
  const auto backward = [&g, whole, parts](Gradients in) {
    DType dtype = DType::bf16;
    for (const Tensor& part : in)
      if (part) dtype = part.dtype;
    for (std::size_t i = 0; i < in.size(); ++i)
      if (!in[i]) in[i] = gradient(g, "split_backward.zeros", parts[i], dtype);
    return Gradients{gradient(g, "split_backward", whole, dtype)};
  };
  if (!g.record(all, "SplitBackward0", {&x}, backward, parts.size())) return out;
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].grad_fn = all.grad_fn;
    out[i].output = i;
  }
  return out;
}

Tensor cat(Eager& g, std::vector<Tensor> parts, Shape whole, const std::string& name) {
  DType dtype = parts[0].dtype;  // promoted: under autocast a rotated part is wider than one that was not
  for (const auto& p : parts) dtype = higher(dtype, p.dtype);
  Tensor out = g.make(name, std::move(whole), dtype);
  std::vector<const Tensor*> inputs;
  std::vector<Shape> shapes;
  for (const auto& p : parts) {
    inputs.push_back(&p);
    shapes.push_back(p.shape);
  }
  g.record(out, "CatBackward0", inputs, [shapes](Gradients in) {
    Gradients grads;
    for (const auto& part : shapes) grads.push_back(in[0].alias(part));  // narrow: views of the gradient
    return grads;
  });
  return out;
}

namespace {

Tensor saves_input(Eager& g, Tensor x, const char* node, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    g.record(out, node, {&x}, [&g, saved](Gradients in) {
      (void)saved.get();
      return Gradients{gradient(g, "activation_backward", in[0].shape, in[0].dtype)};
    });
  }
  return out;
}

Tensor saves_result(Eager& g, Tensor x, const char* node, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, x.dtype);
  if (recorded) {
    Saved saved = g.save(out);
    g.record(out, node, {&x}, [&g, saved](Gradients in) {
      (void)saved.get();
      return Gradients{gradient(g, "backward", in[0].shape, in[0].dtype)};
    });
  }
  return out;
}

}  // namespace

Tensor activation(Eager& g, Tensor x, const std::string& name) { return saves_input(g, std::move(x), "SiluBackward0", name); }
Tensor relu(Eager& g, Tensor x, const std::string& name) { return saves_result(g, std::move(x), "ReluBackward0", name); }
Tensor sigmoid(Eager& g, Tensor x, const std::string& name) { return saves_result(g, std::move(x), "SigmoidBackward0", name); }
Tensor tanh(Eager& g, Tensor x, const std::string& name) { return saves_result(g, std::move(x), "TanhBackward0", name); }
Tensor exp(Eager& g, Tensor x, const std::string& name) { return saves_result(g, std::move(x), "ExpBackward0", name); }

Tensor dropout(Eager& g, Tensor x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, x.dtype);
  Tensor mask = g.make(name + ".mask", x.shape, DType::boolean);
  if (recorded) {
    Saved saved = g.save(mask);
    g.record(out, "NativeDropoutBackward0", {&x}, [&g, saved](Gradients in) {
      (void)saved.get();
      return Gradients{gradient(g, "dropout_backward", in[0].shape, in[0].dtype)};
    });
  }
  return out;
}

Tensor softmax(Eager& g, Tensor x, DType dtype, const std::string& name, Category category) {
  if (g.casts_softmax && x.dtype == DType::bf16 && dtype == DType::fp32) {
    Tensor wide = to(g, std::move(x), DType::fp32, name + ".input_fp32");
    x = std::move(wide);
  }
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, dtype, category);
  if (recorded) {
    const DType from = x.dtype;
    Saved saved = g.save(out);
    g.record(out, "SoftmaxBackward0", {&x}, [&g, saved, from](Gradients in) {
      (void)saved.get();
      return Gradients{gradient(g, "softmax_backward", in[0].shape, from)};
    });
  }
  return out;
}

Tensor log_softmax(Eager& g, Tensor x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, x.dtype, Category::logits);
  if (recorded) {
    Saved saved = g.save(out);
    g.record(out, "LogSoftmaxBackward0", {&x}, [&g, saved](const Gradients&) {
      const Tensor& result = saved.get();
      return Gradients{g.make("log_softmax_backward", result.shape, result.dtype, Category::logits)};
    });
  }
  return out;
}

namespace {

// SoftMax.cpp log_softmax, 2.13: fp16 with a result in fp32 is one kernel, and so is its backward pass
Tensor half_log_softmax(Eager& g, const Tensor& x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, DType::fp32, Category::logits);
  if (recorded) {
    const DType from = x.dtype;
    Saved saved = g.save(out);
    g.record(out, "LogSoftmaxBackward0", {&x}, [&g, saved, from](const Gradients&) {
      return Gradients{g.make("log_softmax_backward", saved.get().shape, from, Category::logits)};
    });
  }
  return out;
}

}  // namespace

Tensor widened_log_softmax(Eager& g, const Tensor& x, const std::string& name) {
  if (!g.autocast || x.dtype == DType::fp32) return log_softmax(g, x, name);
  if (g.autocasts_to_half) return half_log_softmax(g, x, name);
  Tensor wide = to(g, x, DType::fp32, "logits_widened");
  return log_softmax(g, std::move(wide), name);
}

Tensor copy(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape from = x.shape;
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "CloneBackward0", {&x}, [from](Gradients in) { return Gradients{in[0].alias(from)}; });
  return out;
}

Tensor sum(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape from = x.shape;
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "SumBackward1", {&x}, [from](Gradients in) { return Gradients{in[0].alias(from)}; });  // expand: a view
  return out;
}

Tensor div(Eager& g, Tensor a, Tensor b, const std::string& name) {
  const bool recorded = g.will_record({&a, &b});
  const bool for_a = recorded && a.needs_grad(), for_b = recorded && b.needs_grad();
  Saved saved_a = for_b ? g.save(a) : Saved();
  Saved saved_b = recorded ? g.save(b) : Saved();
  Tensor out = g.make(name, larger(a, b), higher(a.dtype, b.dtype));
  if (recorded) {
    g.record(out, "DivBackward0", {&a, &b}, [=, &g](Gradients in) {
      Gradients grads(2);
      (void)saved_b.get();
      if (for_b) {
        (void)saved_a.get();  // -grad * ((self / other) / other)
        Tensor first = gradient(g, "div_backward.quotient", in[0].shape, in[0].dtype);
        Tensor second = gradient(g, "div_backward.quotient", in[0].shape, in[0].dtype);
        Tensor negative = gradient(g, "div_backward.negative", in[0].shape, in[0].dtype);
        grads[1] = gradient(g, "div_backward", in[0].shape, in[0].dtype);
      }
      if (for_a) grads[0] = gradient(g, "div_backward", in[0].shape, in[0].dtype);
      return grads;
    });
  }
  return out;
}

Tensor logsumexp(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved_x = recorded ? g.save(x) : Saved();
  {
    Tensor hidden = g.make(name + ".exp", x.shape, x.dtype, Category::logits);
  }  // (x - max).exp() inside the kernel
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (recorded) {
    Saved saved_out = g.save(out);
    g.record(out, "LogsumexpBackward0", {&x}, [&g, saved_x, saved_out](Gradients) {
      const Tensor& self = saved_x.get();  // grad * (self - result).exp()
      (void)saved_out.get();
      Tensor difference = g.make("logsumexp_backward.difference", self.shape, self.dtype, Category::logits);
      Tensor power = g.make("logsumexp_backward.exp", self.shape, self.dtype, Category::logits);
      return Gradients{g.make("logsumexp_backward", self.shape, self.dtype, Category::logits)};
    });
  }
  return out;
}

}  // namespace oomplan::ops
