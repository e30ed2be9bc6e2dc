// Patches of AReaL files: what is promised for a change is what the changed file, or the command line, says when it is read.
#include <fstream>
#include <set>
#include <sstream>

#include "estimate/explain.hpp"
#include "estimate_jobs.hpp"
#include "frontends/areal/patch.hpp"
#include "frontends/areal/relayout.hpp"
#include "job/knobs.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

std::string words(const std::vector<std::string>& all) {
  std::string out;
  for (const auto& word : all) out += (out.empty() ? "" : " ") + word;
  return out;
}

struct Case {
  std::string folder, file, release;
  std::vector<std::string> arguments = {};
  std::string name() const { return file + " " + release + " " + words(arguments); }
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(std::string(OOMPLAN_SOURCE_DIR) + "/" + path).rdbuf();
  return text.str();
}
Source source_of(const Case& c) {
  Source s;
  s.text = text_of(c.folder + c.file);
  s.name = c.file;
  s.framework_version = c.release;
  s.gpu = "H100-80GB";
  s.overrides = c.arguments;
  s.open = [folder = c.folder](const std::string& path) -> std::optional<std::string> {
    std::string text = text_of(folder + path);
    return text.empty() ? std::nullopt : std::optional(text);
  };
  REQUIRE_FALSE(s.text.empty());
  return s;
}
const std::string kPatch = "tests/data/areal/", kExamples = "examples/areal/";

/// Every era, and files whose values come from the command line, through interpolations, from a defaults list.
std::vector<Case> cases() {
  return {{kPatch, "patch_v0.5.yaml", "0.5.3"},
          {kPatch, "patch_v0.5.yaml", "0.4.1", {"allocation_mode=sglang:d4+d4", "~enable_offload", "~scheduler"}},
          {kPatch, "patch_v1.0.yaml", "1.0.4"},
          {kPatch, "patch_v1.0.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=65536", "sglang.mem_fraction_static=0.93"}},
          {kPatch, "patch_v2.0.yaml", "2.0.0"},
          {kPatch, "patch_v2.0.yaml", "2.0.0+", {"tokens=98304"}},
          {kPatch, "patch_shared.yaml", "1.0.4"},
          {kExamples, "grpo_7b.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=131072"}},
          {kExamples, "grpo_1.5b_ref.yaml", "2.0.0", {"actor.mb_spec.max_tokens_per_mb=262144"}},
          {kExamples, "ppo_allocation_mode.yaml", "0.5.3", {"actor.mb_spec.max_tokens_per_mb=131072"}},
          {kExamples, "sft.yaml", "1.0.4", {"actor.mb_spec.max_tokens_per_mb=262144"}}};
}

/// The text that a unified diff makes, by the numbers of its hunks: what `patch` does.
std::string applied(const std::string& text, const std::string& diff) {
  const auto lines = [](const std::string& all) {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find('\n', at), all.size() - 1) + 1;
      out.push_back(all.substr(at, end - at));
      at = end;
    }
    return out;
  };
  const auto before = lines(text);
  std::string out;
  std::size_t at = 0;
  for (const auto& line : lines(diff)) {
    if (line.starts_with("---") || line.starts_with("+++")) continue;
    if (line.starts_with("@@")) {
      const auto first = static_cast<std::size_t>(std::stoll(line.substr(4)));
      while (at + 1 < first) out += before.at(at++);
    } else if (line[0] == '\\') {
      out.pop_back();
    } else if (line[0] == '+') {
      out += line.substr(1);
    } else {
      CHECK(line.substr(1) == before.at(at));
      if (line[0] == ' ') out += before.at(at);
      ++at;
    }
  }
  while (at < before.size()) out += before.at(at++);
  return out;
}

Source with_arguments(Source s, const std::vector<std::string>& more) {
  s.overrides.insert(s.overrides.end(), more.begin(), more.end());
  return s;
}
Source with_diff(Source s, const std::string& diff, const std::vector<std::string>& stale) {
  s.text = applied(s.text, diff);
  for (const auto& argument : stale) std::erase(s.overrides, argument);
  return s;
}

/// Lines that are left over of a file once a diff took its own: comments and order are among them.
std::size_t lines_taken(const std::string& diff) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = diff.find("\n-", at)) != std::string::npos; ++at) ++n;
  return n;
}

}  // namespace

TEST_CASE("areal: every remedy keeps its promise to the byte, as arguments and as a diff") {
  std::size_t remedies = 0, diffs = 0;
  Sample files(5);
  for (const auto& c : cases()) {
    if (!files.takes()) continue;
    INFO(c.name());
    const Source source = source_of(c);
    const Estimate before = estimate(read(source).job);
    CHECK_FALSE(before.fits());
    for (const Effect allow : {Effect::speed, Effect::semantics}) {
      if (allow == Effect::semantics && c.folder == kExamples) continue;
      const Advice advice = advise(source, allow);
      if (allow >= Effect::speed) CHECK(advice.remedies.size() >= 3);
      for (const auto& r : advice.remedies) {
        INFO(words(r.patch.overrides));
        ++remedies;
        CHECK(r.effect <= allow);
        CHECK_FALSE(r.text.empty());
        CHECK_FALSE(r.patch.overrides.empty());
        const Job changed = read(with_arguments(source, r.patch.overrides)).job;
        const Estimate after = estimate(changed);
        CHECK(excess_of(before) - excess_of(after) == r.gain);
        CHECK(after.fits() == r.fits);
        if (r.patch.diff.empty()) continue;
        ++diffs;
        const Source patched = with_diff(source, r.patch.diff, r.patch.stale);
        CHECK(patched.text == r.patch.file);
        CHECK(lines_taken(r.patch.diff) <= r.patch.overrides.size());
        check_same(estimate_quick(read(patched).job), estimate_quick(changed));
      }
    }
  }
  CHECK(remedies > (files.has_all() ? 100 : 0));
  CHECK(diffs == remedies);
}

TEST_CASE("areal: every candidate of a search keeps its promise to the byte, as arguments and as a diff") {
  Sample files(5);
  for (const auto& c : cases()) {
    if (!files.takes()) continue;
    INFO(c.name());
    const Source source = source_of(c);
    const bool two_nodes = c.file != "sft.yaml" && c.file != "patch_shared.yaml";
    for (const Effect allow : {Effect::speed, Effect::numerics}) {
      if (allow == Effect::numerics && c.folder == kExamples) continue;
      Space space;
      space.allow = allow;
      if (two_nodes) space.gpus = 32;
      const Found found = search(source, space, 2);
      CHECK_FALSE(found.best.empty());
      TapeStore store;
      for (const auto& candidate : found.best) {
        INFO(words(candidate.overrides));
        CHECK(candidate.estimate.fits());
        for (const auto& change : candidate.changes)
          if (!change.key.starts_with("cluster.")) CHECK(change.effect <= allow);
        const Job by_arguments = read(with_arguments(source, candidate.overrides)).job;
        CHECK(same_settings(by_arguments, candidate.job));
        check_same(explain_worst(by_arguments, Catalog::builtin(), store), candidate.estimate);
        REQUIRE_FALSE(candidate.diff.empty());
        std::vector<std::string> stale;
        for (const auto& argument : source.overrides)
          for (const auto& change : candidate.changes)
            if (argument.starts_with(change.key + "=")) stale.push_back(argument);
        const Source patched = with_diff(source, candidate.diff, stale);
        CHECK(patched.text == candidate.job_file);
        check_same(explain_worst(read(patched).job, Catalog::builtin(), store), candidate.estimate);
      }
    }
  }
}

TEST_CASE("areal: a search raises one value in the file's own key") {
  const Source source = source_of({kExamples, "grpo_7b.yaml", "1.0.4"});
  const auto first = [&](const char* aim) {
    Space space;
    space.maximise = aim;
    const Found found = search(source, space, 1);
    REQUIRE(found.best.size() == 1);
    check_same(explain(read(with_arguments(source, found.best[0].overrides)).job), explain(found.best[0].job));
    return found.best[0].changes.at(0).key;
  };
  CHECK(first("tokens") == "actor.mb_spec.max_tokens_per_mb");
  CHECK(first("fraction") == "sglang.mem_fraction_static");
  CHECK(first("concurrency") == "rollout.max_concurrent_rollouts");
}

TEST_CASE("areal: --fix takes the keys of the file") {
  const Source source = source_of({kExamples, "grpo_7b.yaml", "1.0.4"});
  Space space;
  space.fixed = {"actor.backend", "sglang.mem_fraction_static", "actor.gradient_checkpointing"};
  for (const auto& candidate : search(source, space, 5).best)
    for (const auto& change : candidate.changes)
      CHECK(std::find(space.fixed.begin(), space.fixed.end(), change.key) == space.fixed.end());
  space = {};
  space.gpus = 12;
  CHECK_THROWS_WITH_AS(search(source, space, 1), doctest::Contains("does not divide 12"), InputError);
}

TEST_CASE("areal: a change is written as each release has it") {
  const auto said = [](const Case& c, const std::string& knob, const std::string& value) {
    try {
      return words(patch(source_of(c), {{knob, value}}).overrides);
    } catch (const InputError& e) {
      return e.problems.at(0).why;
    }
  };
  const Case old{kPatch, "patch_v0.5.yaml", "0.5.3"}, now{kPatch, "patch_v1.0.yaml", "1.0.4"},
      next{kPatch, "patch_v2.0.yaml", "2.0.0"};
  const Case older{kPatch, "patch_v0.5.yaml", "0.4.1", {"allocation_mode=sglang:d4+d4", "~enable_offload", "~scheduler"}};
  CHECK(said(old, "actor.recompute", "full") == "actor.gradient_checkpointing=true");
  CHECK(said(old, "actor.layout", "d2c2") == "allocation_mode=sglang:d2p1t2 + fsdp:d2c2");
  CHECK(said(old, "rollout.layout", "t4") == "allocation_mode=sglang:t4 + fsdp:d4p1t1");
  CHECK(said(now, "actor.layout", "d2c2") == "actor.backend=fsdp:d2c2");
  CHECK(said(next, "actor.layout", "d4c2") == "actor.backend=fsdp:d4c2");
  CHECK(said(now, "actor.kernels", "hf_sdpa") == "+actor.attn_impl=sdpa");
  CHECK(said(next, "actor.kernels", "hf_eager") == "actor.attn_impl=eager");
  CHECK(said(next, "actor.precision.storage", "bf16") == "+actor.optimizer_dtype=bfloat16");
  // its servers take over the trainer's format, unless they have their own
  CHECK(said(old, "actor.precision.storage", "fp32").find("TensorRT-LLM's attend in 16 bits") != std::string::npos);
  const Case apart{kPatch, "patch_v0.5.yaml", "0.5.3", {"sglang.dtype=bfloat16"}};
  CHECK(said(apart, "actor.precision.storage", "fp32").find("flash-attention itself refuses it") == 0);
  CHECK(said(apart, "actor.precision.storage", "fp16") == "actor.dtype=float16");
  CHECK(said(old, "actor.precision.compute", "fp16") ==
        "actor.precision.compute: in AReaL 0.5.3 dtype is the format of storage, too");
  CHECK(said(now, "actor.offload", "[parameters, optimizer]") == "+actor.offload=true +enable_offload=true");
  CHECK(said(now, "actor.offload", "[optimizer]") ==
        "actor.offload: actor.offload moves parameters and optimizer states together");
  CHECK(said(old, "actor.offload", "[parameters, optimizer]") == "actor.offload: AReaL 0.5.3 has no actor.offload");
  CHECK(said(now, "actor.cpu_offload_policy", "true") == "+actor.fsdp.offload_params=true");
  CHECK(said(old, "actor.memory_efficient_load", "true") == "+actor.fsdp.memory_efficient_load=true");
  CHECK(said(older, "actor.memory_efficient_load", "true") ==
        "actor.memory_efficient_load: AReaL 0.4.1 has no actor.fsdp.memory_efficient_load");
  CHECK(said(now, "rollout.mem_fraction_static", "0.65") == "sglang.mem_fraction_static=0.65");
  CHECK(said(next, "rollout.gpu_memory_utilization", "0.7") == "vllm.gpu_memory_utilization=0.7");
  CHECK(said(now, "rollout.max_running_requests", "64") == "+sglang.max_running_requests=64");
  CHECK(said(now, "rollout.kv", "fp8") == "+sglang.kv_cache_dtype=fp8_e5m2");
  CHECK(said(next, "rollout.kv", "fp8") == "rollout.kv: no key of AReaL 2.0.0 sets it");
  CHECK(said(now, "rollout.concurrency", "128") == "rollout.max_concurrent_rollouts=32");
  CHECK(said(now, "rollout.concurrency", "130") ==
        "rollout.concurrency: a rollout is 4 generations (gconfig.n_samples), which does not divide 130");
  CHECK(said(now, "sync.by", "disk") == "+actor.weight_update_mode=disk");
  CHECK(said(older, "sync.by", "disk") == "sync.by: up to 0.4.1 the entry script chooses how weights are sent");
  CHECK(said(now, "sync.bucket", "512MiB") == "sync.bucket: weight_chunked_mem_mb is an argument of WeightUpdateMeta, in code");
  CHECK(said(now, "expandable_segments", "true") ==
        "+actor.scheduling_spec.0.env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
  CHECK(said(older, "expandable_segments", "true") ==
        "expandable_segments: AReaL 0.4.1 sets no environment for its workers: export PYTORCH_CUDA_ALLOC_CONF before the launch");
  CHECK(said(now, "gpus", "16 x H100-80GB") == "cluster.n_nodes=2");
  CHECK(said(now, "gpus", "12 x H100-80GB") == "gpus: a node has 8 GPUs (cluster.n_gpus_per_node), which does not divide 12");
  CHECK(said(now, "actor.head", "areal_eager") == "actor.head: no key of AReaL 1.0.4 sets it");
}

TEST_CASE("areal: expandable segments reach the job from wherever the file lists its workers") {
  for (const auto& c : cases()) {
    if (c.release == "0.4.1") continue;
    INFO(c.name());
    const Source source = source_of(c);
    const Patch p = patch(source, {{"expandable_segments", "true"}});
    CHECK(read(with_arguments(source, p.overrides)).job.expandable_segments);
    REQUIRE_FALSE(p.diff.empty());
    CHECK(read(with_diff(source, p.diff, p.stale)).job.expandable_segments);
  }
}

TEST_CASE("areal: a literal is changed where it stands only if nothing else hangs on it") {
  const Source source = source_of({kPatch, "patch_v2.0.yaml", "2.0.0"});
  const auto overrides = [&](const std::vector<std::pair<std::string, std::string>>& changes) {
    return words(patch(source, changes).overrides);
  };
  const std::string actor = "actor.tokens_per_micro_batch", critic = "critic.tokens_per_micro_batch";
  CHECK(overrides({{actor, "32768"}, {critic, "32768"}}) == "tokens=32768");
  CHECK(overrides({{actor, "32768"}}) == "actor.mb_spec.max_tokens_per_mb=32768");
  CHECK(overrides({{critic, "32768"}}) == "critic.mb_spec.max_tokens_per_mb=32768");
  // a map that is an interpolation is written out at the place of use, with what the file says in it
  const Source v1 = source_of({kPatch, "patch_v1.0.yaml", "1.0.4"});
  const Patch p = patch(v1, {{"ref.tokens_per_micro_batch", "8192"}});
  CHECK(p.overrides == std::vector<std::string>{"ref.mb_spec={n_mbs:1,max_tokens_per_mb:8192,granularity:1}"});
  CHECK(p.diff.find("\n-  mb_spec: ${actor.mb_spec}\n+  mb_spec: {n_mbs: 1, max_tokens_per_mb: 8192, granularity: 1}\n") !=
        std::string::npos);
  // and the actor's own moves the reference with it
  CHECK(patch(v1, {{"actor.tokens_per_micro_batch", "8192"}})
            .diff.find("\n-  mb_spec: {n_mbs: 1, max_tokens_per_mb: 131072, granularity: 1}  # one line\n"
                       "+  mb_spec: {n_mbs: 1, max_tokens_per_mb: 8192, granularity: 1}  # one line\n") != std::string::npos);
}

TEST_CASE("areal: quotes, comments and the other parts of a layout stay") {
  const Patch p = patch(source_of({kPatch, "patch_v1.0.yaml", "1.0.4"}), {{"rollout.layout", "d2t2"}, {"actor.layout", "d2c2"}});
  CHECK(p.diff.find("\n-  backend: \"sglang:d4t1\"   # four servers\n+  backend: \"sglang:d2t2\"   # four servers\n") !=
        std::string::npos);
  CHECK(p.diff.find("\n-  backend: 'fsdp:d4p1t1'\n+  backend: 'fsdp:d2c2'\n") != std::string::npos);
  using areal::release_named;
  const auto relayout = [](const std::string& text, const std::string& release, std::size_t part, const Layout& layout) {
    const auto read = areal::read_allocation(text, release_named(release));
    REQUIRE(read);
    const auto out = areal::with_layout(text, release_named(release), read.allocation->parts.at(part), layout, false);
    return out ? out.text : "no: " + out.why;
  };
  const Layout d2c2{.data = 2, .context = 2}, d1t4{.data = 1, .tensor = 4};
  CHECK(relayout("sglang[rollout]:d4+fsdp[actor]:d4|fsdp[critic]:d4", "1.0.2", 1, d2c2) ==
        "sglang[rollout]:d4+fsdp[actor]:d2c2|fsdp[critic]:d4");
  CHECK(relayout("sglang[rollout]:d4+fsdp[actor]:d4|fsdp[critic]:d4", "1.0.2", 2, d2c2) ==
        "sglang[rollout]:d4+fsdp[actor]:d4|fsdp[critic]:d2c2");
  CHECK(relayout("sglang.d4p1t1+d4p1t1", "0.3.0-lite", 0, d1t4) == "sglang.d1p1t4+d4p1t1");
  CHECK(relayout("sglang.d4p1t1+d4p1t1", "0.3.0-lite", 1, d2c2) == "no: AReaL 0.3.0-lite cannot write the layout d2c2");
  CHECK(relayout("sglang:d4+d4", "0.3.4", 1, d2c2) == "sglang:d4+d2c2");
}

TEST_CASE("areal: what would help and cannot be said is told with its reason") {
  const Advice advice = advise(source_of({kPatch, "patch_v0.5.yaml", "0.5.3"}));
  REQUIRE_FALSE(advice.left_out.empty());
  std::set<std::string> keys;
  for (const auto& note : advice.left_out) keys.insert(note.place.path);
  CHECK(keys.contains("ref.offload"));
  for (const auto& r : advice.remedies) CHECK(r.key.find("offload_between") == std::string::npos);
}

TEST_CASE("a job file of ours is patched, too") {
  Sample files(5);
  for (const auto& e : example_jobs()) {
    if (!files.takes()) continue;
    INFO(e.name);
    Source source;
    source.text = e.text;
    source.name = "job.yaml";
    const Estimate before = estimate(read(source).job);
    for (const auto& r : advise(source).remedies) {
      INFO(words(r.patch.overrides));
      const Estimate after = estimate(read(with_arguments(source, r.patch.overrides)).job);
      CHECK(excess_of(before) - excess_of(after) == r.gain);
      REQUIRE_FALSE(r.patch.diff.empty());
      check_same(estimate(read(with_diff(source, r.patch.diff, r.patch.stale)).job), after);
    }
  }
}
