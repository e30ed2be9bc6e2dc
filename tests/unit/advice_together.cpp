// Advice where no single change is enough: pairs and triples, other hardware, and what another task would need.
#include "areal_files.hpp"
#include "catalog/catalog.hpp"
#include "estimate_jobs.hpp"
#include "sampled.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

namespace {

struct Tight {
  std::string file, release, gpu;
  std::vector<std::string> overrides;
};

/// Each does not fit as it is.
std::vector<Tight> tight() {
  return {
      {"grpo_7b.yaml", "1.0.4", "A100-40GB", {"actor.mb_spec.max_tokens_per_mb=32768", "actor.gradient_checkpointing=false"}},
      {"grpo_7b.yaml", "2.0.0", "A100-40GB", {}},
      {"grpo_7b.yaml", "1.0.4", "A100-40GB", {"actor.backend=megatron:d4"}},
      {"grpo_7b.yaml", "1.0.4", "L40S-48GB", {"actor.backend=megatron:d2t2", "actor.mb_spec.max_tokens_per_mb=32768"}},
      {"ppo_critic.yaml", "1.0.4", "A100-40GB", {}},
      {"grpo_1.5b_ref.yaml", "1.0.4", "A10G-24GB", {}},
      {"grpo_7b.yaml", "1.0.4", "A10G-24GB", {}},
      {"sft.yaml", "1.0.4", "A10G-24GB", {"actor.mb_spec.max_tokens_per_mb=65536"}},
  };
}

Source source_of(const Tight& t) {
  Source s = source(t.file, t.release, t.overrides);
  s.gpu = t.gpu;
  return s;
}
Job again(Source s, const std::vector<std::string>& overrides, const std::string& gpu = {}) {
  s.overrides.insert(s.overrides.end(), overrides.begin(), overrides.end());
  if (!gpu.empty()) s.gpu = gpu;
  return read(s).job;
}
}  // namespace

TEST_CASE("advice ends with something that is enough: one change, two or three together, or other hardware") {
  bool together = false, hardware = false;
  for (const Tight& t : tight()) {
    CAPTURE(t.file);
    CAPTURE(t.gpu);
    const Source s = source_of(t);
    const Advice advice = oomplan::advise(s, Effect::numerics);
    REQUIRE_FALSE(advice.estimate.fits());
    const bool alone = std::any_of(advice.remedies.begin(), advice.remedies.end(), [](const Remedy& r) { return r.fits; });
    if (alone) {
      CHECK_FALSE(advice.together.has_value());
      CHECK_FALSE(advice.larger_gpu.has_value());
      continue;
    }
    if (advice.together) {
      together = true;
      CHECK(advice.together->changes.size() >= 2);
      CHECK(advice.together->texts.size() >= 2);
      CHECK(advice.together->texts.size() <= 3);
      const Estimate after = estimate(again(s, advice.together->patch.overrides));
      CHECK(after.fits());
      CHECK(excess_of(advice.estimate) - excess_of(after) == advice.together->gain);
      CHECK(after.fit_probability == advice.together->fit_probability);
      if (advice.larger_gpu) CHECK(advice.larger_gpu->changes.empty());
    } else {
      hardware = true;
      CHECK((advice.larger_gpu || advice.more_gpus));
    }
    if (advice.larger_gpu) CHECK(estimate(again(s, advice.larger_gpu->patch.overrides, advice.larger_gpu->gpu)).fits());
    if (advice.more_gpus) {
      const Job more = again(s, advice.more_gpus->patch.overrides);
      CHECK(estimate(more).fits());
      CHECK(more.cluster.gpus == advice.more_gpus->gpus);
    }
    CHECK((to_text(advice).find("Nor is any pair or triple") == std::string::npos) == advice.together.has_value());
  }
  CHECK(together);
  CHECK(hardware);
}

TEST_CASE("GPUs that are too small for different roles get a change each") {
  Source s = source("grpo_7b.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=65536", "sglang.mem_fraction_static=0.95"});
  s.gpu = "H100-80GB";
  const Advice advice = oomplan::advise(s);
  CHECK(advice.causes.size() >= 2);
  CHECK(std::none_of(advice.remedies.begin(), advice.remedies.end(), [](const Remedy& r) { return r.fits; }));
  REQUIRE(advice.together.has_value());
  std::string keys;
  for (const Change& change : advice.together->changes) keys += change.key + " ";
  CHECK(keys.find("sglang.mem_fraction_static") != std::string::npos);
  CHECK(keys.find("actor.") != std::string::npos);
  CHECK(estimate(again(s, advice.together->patch.overrides)).fits());
}

TEST_CASE("the kind of GPU that is named is the smallest that does, the job as it is") {
  const Tight t{"grpo_7b.yaml", "1.0.4", "A10G-24GB", {}};
  const Source s = source_of(t);
  const Advice advice = oomplan::advise(s);
  if (!advice.larger_gpu || !advice.larger_gpu->changes.empty()) return;
  const Catalog& catalog = Catalog::builtin();
  const Bytes named = catalog.gpu(advice.larger_gpu->gpu).usable;
  for (const auto& gpu : catalog.gpus()) {
    if (gpu.usable >= named || gpu.usable <= catalog.gpu("A10G-24GB").usable) continue;
    INFO(gpu.name);
    try {
      CHECK_FALSE(estimate(again(s, {}, gpu.name)).fits());
    } catch (const InputError&) {  // its kernels do not run there
    }
  }
}

TEST_CASE("areal: shorter sequences are told apart from remedies, and are remedies where semantics may change") {
  const Source s = source_of({"grpo_7b.yaml", "1.0.4", "A100-40GB", {"actor.mb_spec.max_tokens_per_mb=32768"}});
  const auto changes = [](const std::vector<Remedy>& all, std::string_view key) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const Remedy& r) { return r.key == key; });
    return it == all.end() ? nullptr : &*it;
  };
  const Advice usual = oomplan::advise(s);
  CHECK(changes(usual.remedies, "gconfig.max_new_tokens") == nullptr);
  const Remedy* shorter = changes(usual.other_tasks, "gconfig.max_new_tokens");
  REQUIRE(shorter != nullptr);
  CHECK(shorter->effect == Effect::semantics);
  const Job then = again(s, shorter->patch.overrides);
  CHECK(then.response_tokens < 8192);
  CHECK(then.prompt_tokens == 1024);
  CHECK(then.role("actor")->trainer.tokens_per_micro_batch >= then.prompt_tokens + then.response_tokens);
  CHECK(excess_of(usual.estimate) - excess_of(estimate(then)) == shorter->gain);
  const Advice all = oomplan::advise(s, Effect::semantics);
  CHECK(changes(all.remedies, "gconfig.max_new_tokens") != nullptr);
  CHECK(all.other_tasks.empty());
}

TEST_CASE("areal: the reference's own micro-batches are proposed where the reference breaks") {
  Source s = source("grpo_1.5b_ref.yaml", "1.0.4", {"ref.mb_spec.max_tokens_per_mb=131072"});
  s.gpu = "A100-40GB";
  const Advice advice = oomplan::advise(s);
  REQUIRE_FALSE(advice.causes.empty());
  CHECK(advice.causes[0].phase == "ref.log_probs");
  CHECK(std::any_of(advice.remedies.begin(), advice.remedies.end(),
                    [](const Remedy& r) { return r.key == "ref.mb_spec.max_tokens_per_mb" && r.fits; }));
}

TEST_CASE("areal 2.0: parameters and states in 16 bits are proposed where numerics may change") {
  Source s = source("grpo_7b.yaml", "2.0.0", {});
  s.gpu = "A100-40GB";
  const auto offers = [&](Effect allow) {
    const Advice advice = oomplan::advise(s, allow);
    return std::any_of(advice.remedies.begin(), advice.remedies.end(),
                       [](const Remedy& r) { return r.key == "actor.optimizer_dtype" && r.to == "bfloat16"; });
  };
  CHECK(offers(Effect::numerics));
  CHECK_FALSE(offers(Effect::speed));
}

TEST_CASE("areal: what Megatron's degrees are is said of Megatron, Ulysses of FSDP") {
  const auto texts = [](const char* backend) {
    Source s =
        source("grpo_7b.yaml", "1.0.4", {fmt::format("actor.backend={}", backend), "actor.mb_spec.max_tokens_per_mb=65536"});
    s.gpu = "A100-40GB";
    std::string out;
    for (const Remedy& r : oomplan::advise(s).remedies)
      if (r.key == "actor.backend" && r.to.find("d8") == std::string::npos) out += r.text;
    return out;
  };
  CHECK(texts("megatron:d4").find("context parallelism") != std::string::npos);
  CHECK(texts("megatron:d4").find("Ulysses") == std::string::npos);
  CHECK(texts("fsdp:d4").find("Ulysses") != std::string::npos);
}

TEST_CASE("areal: a step's phases stand in the order of the release's trainer") {
  const auto order = [](const char* version) {
    const Job job = job_of(fmt::format(
        "oomplan: 1\nframework: areal {}\ngpus: 8 x H100-80GB\nmodel: qwen2.5-1.5b\nprompt_tokens: 1k\nresponse_tokens: 3k\n"
        "sequences_per_step: 256\nrollout: {{engine: sglang, layout: d4}}\nactor: {{layout: d4, tokens_per_micro_batch: 8k}}\n"
        "ref: {{beside: actor}}\ncritic: {{beside: actor}}\n",
        version));
    std::vector<std::string> out;
    for (const auto& gpu : estimate_quick(job).gpus)
      if (gpu.ranks.find("actor 0") != std::string::npos)
        for (const auto& m : gpu.phases) out.push_back(m.phase);
    return out;
  };
  // areal/trainer/rl_trainer.py 1.0.4: compute_values, ref.compute_logp, actor.compute_logp, actor.ppo_update, critic.ppo_update
  const std::vector<std::string> load{"actor.load", "ref.load", "critic.load"};
  const std::vector<std::string> train{"actor.forward",   "actor.backward",   "actor.optimizer",    "critic.forward",
                                       "critic.backward", "critic.optimizer", "actor.send_weights", "actor.save"};
  const auto whole = [&](std::vector<std::string> passes) {
    std::vector<std::string> out = load;
    out.insert(out.end(), passes.begin(), passes.end());
    out.insert(out.end(), train.begin(), train.end());
    return out;
  };
  for (const char* version : {"1.0.3", "1.0.4", "2.0.0"})
    CHECK(order(version) == whole({"critic.values", "ref.log_probs", "actor.log_probs"}));
  // examples/math/gsm8k_ppo.py 0.4.1, areal/experimental/trainer/rl.py 0.5.3, areal/trainer/rl_trainer.py 1.0.2
  for (const char* version : {"0.5.3", "1.0.0", "1.0.2"})
    CHECK(order(version) == whole({"critic.values", "actor.log_probs", "ref.log_probs"}));
}
