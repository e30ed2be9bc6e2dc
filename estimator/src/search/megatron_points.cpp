#include "search/megatron_points.hpp"

#include <algorithm>
#include <array>

#include "job/deepep.hpp"
#include "search/axes.hpp"

namespace oomplan {
namespace {

/// Powers of two up to `most`, the model's own numbers and GPUs of a node being such.
std::vector<std::int64_t> doublings(std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t n = 1; n <= most; n *= 2) out.push_back(n);
  return out;
}

struct ModelFacts {
  std::int64_t layers = 0, heads = 0, kv_heads = 0, experts = 0, narrowest = 0;
  bool dense = false;
};
ModelFacts facts_of(const Architecture& a) {
  ModelFacts f;
  f.layers = a.layers();
  for (const auto& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    const FeedForward& ff = run.layer.feed_forward;
    f.heads = m.heads;
    f.kv_heads = m.kind == MixerKind::mla ? m.heads : m.kv_heads;
    f.experts = std::max(f.experts, ff.experts);
    f.dense = f.dense || ff.experts == 0;
    for (const std::int64_t width : {ff.width, ff.shared_width})
      if (width > 0) f.narrowest = f.narrowest == 0 ? width : std::min(f.narrowest, width);
  }
  return f;
}

/// Even stages, or a first and a last one that leave the others an equal number of layers each.
void add_splits(const ModelFacts& f, std::int64_t p, std::vector<MegatronSplit>& out) {
  const auto add = [&](std::int64_t each, std::int64_t first, std::int64_t last) {
    for (std::int64_t v = 1; v <= (p > 1 ? each : 1); ++v) {
      // every stage's layers must be divisible by its chunks
      if (each % v == 0 && (first == 0 || (first % v == 0 && last % v == 0))) out.push_back({p, v, first, last});
    }
  };
  if (f.layers % p == 0) return add(f.layers / p, 0, 0);  // layers must be divisible by stages
  if (p < 3) return;
  for (std::int64_t each = f.layers / p; each <= f.layers / p + 1; ++each) {
    const std::int64_t ends = f.layers - each * (p - 2);  // stages between the stated ones are equal
    for (std::int64_t last = 1; last < ends; ++last)
      if (last <= each && ends - last <= each + 1) add(each, ends - last, last);
  }
}

std::vector<MegatronRanks> ranks_of(const ModelFacts& f, const Job& job, std::int64_t tokens) {
  std::vector<MegatronRanks> out;
  const std::int64_t gpus = job.cluster.gpus;
  // tensor ranks stay inside of a node: every layer waits for them
  for (const std::int64_t t : doublings(std::min(gpus, job.cluster.gpus_per_node))) {
    if (f.heads % t != 0) continue;                            // every rank takes the same number of heads
    if (f.kv_heads % t != 0 && t % f.kv_heads != 0) continue;  // query groups are split or repeated
    if (f.narrowest % t != 0) continue;                        // and a share of every feed-forward block
    for (const std::int64_t c : doublings(std::min<std::int64_t>(16, gpus / t))) {
      if (c > 1 && tokens % (2 * c) != 0) continue;  // each rank takes two pieces of a sequence
      for (const bool sequence : {false, true}) {
        // without tensor ranks there is nothing to split; experts train with tensor ranks only so
        if ((sequence && (t == 1 || tokens / c % t != 0)) || (!sequence && t > 1 && f.experts > 0)) continue;
        if (f.experts == 0) {
          out.push_back({t, c, 1, 1, sequence});
          continue;
        }
        for (const std::int64_t e : doublings(f.experts)) {
          if (f.experts % e != 0) continue;  // every rank takes the same number of experts
          for (const std::int64_t u : {std::int64_t{1}, t})
            if (u == 1 || t > 1) out.push_back({t, c, e, u, sequence});
        }
      }
    }
  }
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<MegatronRecompute> recompute_of(const ModelFacts& f) {
  std::vector<MegatronRecompute> out{{Recompute::none, RecomputeMethod::uniform, 1, {}}};
  if (f.dense) out.push_back({Recompute::selective, RecomputeMethod::uniform, 1, {"mlp"}});
  if (f.experts > 0) out.push_back({Recompute::selective, RecomputeMethod::uniform, 1, {"moe"}});
  if (f.dense && f.experts > 0) out.push_back({Recompute::selective, RecomputeMethod::uniform, 1, {"mlp", "moe"}});
  for (const std::int64_t n : doublings(std::min<std::int64_t>(8, f.layers)))
    out.push_back({Recompute::full, RecomputeMethod::uniform, n, {}});
  for (const std::int64_t n : doublings(std::min<std::int64_t>(32, f.layers)))
    out.push_back({Recompute::full, RecomputeMethod::block, n, {}});
  return out;
}

}  // namespace

MegatronBatch megatron_batch(const Job& job, const Role& role, const Space& space) {
  const Trainer& t = role.trainer;
  MegatronBatch out;
  out.micro_batch = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  if (t.micro_batches == 0) {
    out.sequences = std::max<std::int64_t>(1, job.sequences_per_step);
    const std::int64_t longest = job.prompt_tokens + job.response_tokens;
    if (t.sequences_per_micro_batch == 0 && t.tokens_per_micro_batch > 0 && longest > 0) {
      out.budget = std::max(t.tokens_per_micro_batch, longest);
      out.tokens = out.sequences * longest;
    }
    return out;
  }
  out.sequences = out.micro_batch * t.micro_batches * t.layout.data;
  if (space.allow < Effect::semantics)
    out.data = t.layout.data;  // the same micro-batches on another number of ranks: another batch
  return out;
}

MegatronAxes megatron_axes(const Job& job, const Role& role, const Space& space) {
  const Trainer& t = role.trainer;
  const ModelFacts f = facts_of(*role.architecture);
  const auto is_held = [&](std::string_view knob) { return space.allow < Effect::speed || held(space, &role, knob); };
  const bool layout = is_held("layout");
  MegatronAxes out;
  const Megatron& m = t.megatron;
  const MegatronSplit own{t.layout.pipeline, m.virtual_stages, m.first_stage_layers, m.last_stage_layers};
  const std::int64_t tokens = t.sequences_per_micro_batch > 0 ? t.sequence_tokens : t.tokens_per_micro_batch;
  if (layout) {
    out.splits = {own};
    out.ranks = {{t.layout.tensor, t.layout.context, t.layout.expert, t.layout.expert_tensor, m.sequence_parallel}};
  } else {
    for (std::int64_t p = 1; p <= std::min(job.cluster.gpus, f.layers); ++p)
      if (job.cluster.gpus % p == 0) add_splits(f, p, out.splits);
    if (std::find(out.splits.begin(), out.splits.end(), own) == out.splits.end()) out.splits.push_back(own);
    out.ranks = ranks_of(f, job, tokens);
  }
  const auto drop = [](auto& values, const auto& unwanted) {
    values.erase(std::remove_if(values.begin(), values.end(), unwanted), values.end());
  };
  if (is_held("virtual_stages")) drop(out.splits, [&](const MegatronSplit& s) { return s.chunks != own.chunks; });
  for (const char* const knob : {"first_stage_layers", "last_stage_layers"})
    if (is_held(knob)) drop(out.splits, [&](const MegatronSplit& s) { return s.first != own.first || s.last != own.last; });
  if (is_held("sequence_parallel"))
    drop(out.ranks, [&](const MegatronRanks& r) { return r.sequence_parallel != m.sequence_parallel && r.tensor > 1; });
  if (m.dispatcher == TokenDispatcher::flex && f.experts > 0)
    drop(out.ranks, [](const MegatronRanks& r) { return !deepep_serves(r.expert * r.expert_tensor); });
  const MegatronRecompute as_is{t.recompute, m.recompute_method, m.recompute_layers, m.recompute_modules};
  out.recompute = {as_is};
  constexpr std::array<std::string_view, 4> kOfRecompute{"recompute", "recompute_method", "recompute_layers",
                                                         "recompute_modules"};
  if (std::none_of(kOfRecompute.begin(), kOfRecompute.end(), is_held))
    for (auto& r : recompute_of(f))
      if (r != as_is) out.recompute.push_back(std::move(r));
  if (m.mtp_layers > 0 && m.mtp_runs)  // Megatron itself asks for it with multi-token prediction
    drop(out.recompute, [](const MegatronRecompute& r) {
      return r.what == Recompute::full && r.method == RecomputeMethod::uniform && r.layers != 1;
    });
  if (m.mtp_alone && m.mtp_layers > 0) drop(out.splits, [](const MegatronSplit& s) { return s.pipeline > 1; });
  return out;
}

std::int64_t megatron_data(const MegatronSplit& s, const MegatronRanks& r, std::int64_t gpus, const MegatronBatch& b) {
  const std::int64_t model = r.tensor * r.context * s.pipeline;
  if (gpus % model != 0 || gpus % (r.expert * r.expert_tensor * s.pipeline) != 0) return 0;  // ranks must fill the GPUs
  const std::int64_t data = gpus / model, step = data * b.micro_batch;
  if (b.sequences % step != 0) return 0;  // every data rank takes the same number of micro-batches
  if (b.data > 0 && data != b.data) return 0;
  // groups of p micro-batches, which those that are filled become, go through the chunks of the interleaved schedule
  if (s.chunks > 1 && b.tokens == 0 && b.sequences / step % s.pipeline != 0) return 0;
  return data;
}

std::int64_t micro_batches_of(const MegatronBatch& b, std::int64_t data) {
  return b.tokens > 0 ? ceil_div(b.tokens, data * b.budget) : b.sequences / (data * b.micro_batch);
}

void put_megatron(const MegatronSplit& s, const MegatronRanks& r, const MegatronRecompute& c, std::int64_t data,
                  const MegatronBatch& batch, Trainer& t) {
  t.layout.data = data;
  t.layout.tensor = r.tensor;
  t.layout.pipeline = s.pipeline;
  t.layout.context = r.context;
  t.layout.expert = r.expert;
  t.layout.expert_tensor = r.expert_tensor;
  t.layout.hybrid = r.expert_tensor > 1;
  if (t.micro_batches > 0) t.micro_batches = batch.sequences / (data * batch.micro_batch);
  Megatron& m = t.megatron;
  m.sequence_parallel = r.sequence_parallel;
  m.virtual_stages = s.chunks;
  m.first_stage_layers = s.first;
  m.last_stage_layers = s.last;
  t.recompute = c.what;
  m.recompute_method = c.method;
  m.recompute_layers = c.layers;
  m.recompute_modules = c.modules;
}

}  // namespace oomplan
