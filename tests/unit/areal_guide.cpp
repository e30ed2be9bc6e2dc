// The knobs of AReaL's guide on running out of memory (docs/en/best_practices/handling_oom.md, 1.0.4), one test each: what
// turning one does to the answer, and what somebody is told who expects something else.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "layout/rules.hpp"
#include "units/sizes.hpp"

using namespace oomplan;
using namespace oomplan::areal_files;

namespace {

Estimate judged(std::vector<std::string> overrides, const std::string& release = "1.0.4",
                const std::string& name = "grpo_7b.yaml") {
  return estimate_quick(read(source(name, release, std::move(overrides))).job);
}
std::vector<std::string> shared_gpus(std::vector<std::string> more = {}) {
  std::vector<std::string> out{"+enable_offload=true",
                               "+rollout.scheduling_strategy.type=colocation",
                               "+rollout.scheduling_strategy.target=actor",
                               "+actor.weight_update_mode=disk",
                               "+actor.offload=true",
                               "+sglang.enable_memory_saver=true"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}
const ServerAnswer& server(const Estimate& e) { return e.servers.at(0); }

}  // namespace

TEST_CASE("areal guide: max_tokens_per_mb, not below the longest sequence") {
  // train_dataset.max_length 1024 and gconfig.max_new_tokens 8192
  const auto says = [](int budget) {
    return read(source("grpo_7b.yaml", "1.0.4", {fmt::format("actor.mb_spec.max_tokens_per_mb={}", budget)})).notes;
  };
  CHECK(notes_say(says(9215), "at least 9216"));
  CHECK_FALSE(notes_say(says(9216), "at least"));
  CHECK(notes_say(says(8192), "at least 9216"));
  // it is the strongest knob of training: twice the tokens, twice the logits (2 bytes a token and entry of the vocabulary)
  const Bytes small = need(judged({}), "actor.backward");
  const Bytes large = need(judged({"actor.mb_spec.max_tokens_per_mb=32768"}), "actor.backward");
  CHECK(large - small > Bytes{2} * 16384 * 152064);
}

TEST_CASE("areal guide: a conversation of several turns is longer than a prompt and one answer") {
  const auto says = [](std::vector<std::string> overrides) {
    return read(source("grpo_7b.yaml", "1.0.4", std::move(overrides))).notes;
  };
  const std::vector<std::string> turns{"+max_turns=4"};
  // the file says gconfig.max_tokens: 9216, which a micro-batch of 16,384 holds
  CHECK_FALSE(notes_say(says(turns), "how long"));
  CHECK(notes_say(says({"gconfig.max_tokens=20000"}), "a conversation of several turns may reach gconfig.max_tokens = 20000"));
  CHECK_FALSE(notes_say(says({"gconfig.max_tokens=16384"}), "a conversation"));
  // not said: asked for
  const auto asked = says({"+max_turns=4", "~gconfig.max_tokens"});
  CHECK(notes_say(asked, "4 turns: how long does the longest conversation get?"));
  CHECK(notes_say(asked, "gconfig.max_tokens=N"));
  CHECK(notes_say(says({"+agent_run_args.max_turns=2", "~gconfig.max_tokens"}), "2 turns: how long"));
  CHECK_FALSE(notes_say(says({"+max_turns=1", "~gconfig.max_tokens"}), "how long"));
}

TEST_CASE("areal guide: batch_size does not change the peak, and who changes it is told") {
  const auto peak = [](int batch) {
    const Estimate e = judged({fmt::format("train_dataset.batch_size={}", batch)});
    return std::vector{need(e, "actor.log_probs"), need(e, "actor.forward"), need(e, "actor.backward"),
                       need(e, "actor.optimizer")};
  };
  CHECK(peak(64) == peak(128));
  CHECK(peak(1024) == peak(128));
  const Reading r = read(source("grpo_7b.yaml", "1.0.4", {"train_dataset.batch_size=64"}));
  CHECK(notes_say(r.notes, "train_dataset.batch_size does not change the peak of a step"));
  CHECK(notes_say(r.notes, "actor.mb_spec.max_tokens_per_mb = 16384 tokens do"));
  CHECK_FALSE(notes_say(read(source("grpo_7b.yaml", "1.0.4")).notes, "batch_size"));
  // without a budget the batch is the micro-batch, and nothing of the kind is said
  const std::vector<std::string> unlimited{"actor.mb_spec.max_tokens_per_mb=null", "train_dataset.batch_size=64"};
  CHECK_FALSE(notes_say(read(source("grpo_7b.yaml", "1.0.4", unlimited)).notes, "batch_size"));
  CHECK(need(judged(unlimited), "actor.backward") > need(judged({}), "actor.backward"));
}

TEST_CASE("areal guide: max_concurrent_rollouts asks for cache, it takes none") {
  const Estimate few = judged({"rollout.max_concurrent_rollouts=8"}), many = judged({"rollout.max_concurrent_rollouts=256"});
  CHECK(server(few).kv_pool == server(many).kv_pool);
  CHECK(need(few, "rollout.generate") == need(many, "rollout.generate"));
  // an episode is n_samples = 8 generations, spread over 4 servers
  CHECK(server(few).requests_asked == 8 * 8 / 4);
  CHECK(server(many).requests_asked == 256 * 8 / 4);
  CHECK(server(few).shortage.empty());
  CHECK(server(many).shortage.find("queue or are retracted") != std::string::npos);
  CHECK(many.fits());
}

TEST_CASE("areal guide: tensor parallelism of servers shares weights and cache, replicas do not") {
  const Estimate d4 = judged({}), d2t2 = judged({"rollout.backend=sglang:d2t2"}), t4 = judged({"rollout.backend=sglang:d1t4"});
  // everything but the norms is divided
  CHECK(server(d2t2).weights < server(d4).weights * 51 / 100);
  // a quarter, and what the allocator's segments leave over in each of the 28 layers: of 20 MiB for q, k, v (9 heads of 128 by
  // 3584, 7.875 MiB) and o (7 heads, 6.125 MiB) 6 MiB, in which the next layer's do not fit; of 66 MiB for gate and up
  // (2 x 4736 x 3584) 1.25 MiB; of 34 MiB for down (4736 x 3584) 1.625 MiB
  const Bytes left = 28 * (6 * kMiB + kMiB * 5 / 4 + kMiB * 13 / 8);
  CHECK(server(t4).weights - server(d4).weights / 4 < left);
  CHECK(server(t4).weights - server(d4).weights / 4 > left * 9 / 10);
  // 4 KV heads of 128, keys and values, 28 layers, 2 bytes; t4 leaves one head on each GPU
  CHECK(server(d4).kv_bytes_per_token == 28 * 2 * 4 * 128 * 2);
  CHECK(server(d2t2).kv_bytes_per_token == server(d4).kv_bytes_per_token / 2);
  CHECK(server(t4).kv_bytes_per_token == server(d4).kv_bytes_per_token / 4);
  CHECK(server(d2t2).kv_tokens > 2 * server(d4).kv_tokens);
  CHECK(server(d2t2).requests_asked == 2 * server(d4).requests_asked);
}

TEST_CASE("areal guide: mem_fraction_static moves memory between the cache and everything else") {
  const Estimate low = judged({"sglang.mem_fraction_static=0.7"}), high = judged({"sglang.mem_fraction_static=0.8"});
  // a share of what is free before the weights are loaded (SGLang 0.5.10): the KV cache gets the whole difference
  const Bytes more = server(high).kv_pool - server(low).kv_pool;
  CHECK(more > 7 * kGiB);
  CHECK(more < 8 * kGiB);
  CHECK(std::abs(need(high, "rollout.generate") - need(low, "rollout.generate") - more) < 64 * kMiB);
  const Estimate edge = judged({"sglang.mem_fraction_static=0.97"});
  CHECK_FALSE(edge.fits());
  CHECK(worst_phase(edge) == "rollout.generate");
}

TEST_CASE("areal guide: Ulysses divides the ranks and the heads") {
  // 40 heads, 8 of keys and values, on d32
  CHECK(ulysses_degrees(32, {40, 8, 0, 48}) == std::vector<std::int64_t>{1, 2, 4, 8});
  // through the file: Qwen2.5-14B has 40 heads; 16 and 32 are refused with the degrees that do
  const auto with = [](int c) {
    return source(
        "grpo_7b.yaml", "1.0.4",
        {"actor.path=Qwen/Qwen2.5-14B-Instruct", "cluster.n_nodes=5", fmt::format("actor.backend=fsdp:d{}c{}", 32 / c, c)});
  };
  for (const int c : {1, 2, 4, 8}) CHECK(refusal(with(c)).empty());
  for (const int c : {16, 32}) CHECK(refusal(with(c)).find("heads") != std::string::npos);
  // each GPU computes on its part of the tokens: at the loss three tensors of 8192 x 152,064 less; the group of two H100 that
  // exchange has 342 MiB of a communicator, and 32 channels of 12 MiB
  const Estimate whole = judged({}), halves = judged({"actor.backend=fsdp:d2c2"});
  CHECK(need(whole, "actor.backward") - need(halves, "actor.backward") > Bytes{3} * 2 * 8192 * 152'064 - (342 + 32 * 12) * kMiB);
}

TEST_CASE("areal guide: updates over NCCL cost two buckets, over the disk a tensor") {
  const Estimate nccl = judged({}), disk = judged({"+actor.weight_update_mode=disk"});
  // rank 0: a bucket on its way and one being filled, up to 1 GiB or the largest tensor (152,064 x 3584) each
  const Bytes tensor = Bytes{2} * 152'064 * 3584;
  CHECK(need(nccl, "actor.send_weights") - need(disk, "actor.send_weights") >= tensor);
  CHECK(need(nccl, "rollout.receive_weights") > need(disk, "rollout.receive_weights"));
}

TEST_CASE("areal guide: weight_chunked_mem_mb is an argument of code, 1024 MiB since there are buckets") {
  for (const char* release : {"1.0.4", "2.0.0"}) CHECK(read(source("grpo_7b.yaml", release)).job.sync.bucket == kGiB);
  for (const char* release : {"0.4.1", "0.5.3", "1.0.2"})
    CHECK(read(source("ppo_allocation_mode.yaml", release)).job.sync.bucket == kGiB);
  const std::string why = refusal(source("grpo_7b.yaml", "1.0.4", {"+actor.weight_chunked_mem_mb=512"}));
  CHECK(why.find("an argument of WeightUpdateMeta.from_fsdp_xccl in AReaL's code (1024 MiB)") != std::string::npos);
  // up to 1.0.2 a bucket is sent before the next one is filled
  const std::vector<std::string> strings{"~allocation_mode",
                                         "+actor.backend=fsdp:d4",
                                         "+rollout.backend=sglang:d4",
                                         "+critic.backend=fsdp:d4",
                                         "+ref.backend=fsdp:d4",
                                         "+critic.scheduling_strategy.type=colocation",
                                         "+critic.scheduling_strategy.target=actor",
                                         "+ref.scheduling_strategy.type=colocation",
                                         "+ref.scheduling_strategy.target=actor"};
  const auto extra = [&](const std::string& release, std::vector<std::string> overrides) {
    const Estimate over_nccl = judged(overrides, release, "ppo_allocation_mode.yaml");
    overrides.push_back("+actor.weight_update_mode=disk");
    return need(over_nccl, "actor.send_weights") -
           need(judged(overrides, release, "ppo_allocation_mode.yaml"), "actor.send_weights");
  };
  CHECK(extra("1.0.4", strings) > extra("1.0.2", {}) + kGiB / 2);
}

TEST_CASE("areal guide: gradient checkpointing keeps the layers' inputs, and is off unless it is written") {
  const Estimate on = judged({}), off = judged({"actor.gradient_checkpointing=false"});
  // 28 layers of 16,384 tokens keep an input of 3584 in place of everything: of the MLP alone 4 tensors of 18,944
  CHECK(need(off, "actor.backward") - need(on, "actor.backward") > Bytes{28} * 4 * 2 * 16384 * 18944 / 2);
  CHECK(need(off, "actor.log_probs") == need(on, "actor.log_probs"));
  CHECK(read(source("grpo_7b.yaml", "1.0.4", {"~actor.gradient_checkpointing"})).job.role("actor")->trainer.recompute ==
        Recompute::none);
}

TEST_CASE("areal guide: offload empties the GPU between phases, where roles share it") {
  const Estimate held = judged(shared_gpus({"actor.offload=false"})), away = judged(shared_gpus());
  CHECK(need(away, "rollout.generate") < need(held, "rollout.generate"));
  // AReaL starts such a job only with enable_offload
  const std::string why = refusal(source("grpo_7b.yaml", "1.0.4",
                                         {"+rollout.scheduling_strategy.type=colocation",
                                          "+rollout.scheduling_strategy.target=actor", "+actor.weight_update_mode=disk"}));
  CHECK(why.find("enable_offload") != std::string::npos);
}

TEST_CASE("areal guide: bytes of a parameter by release: dtype alone, then optimizer_dtype beside it") {
  const Job old = read(source("grpo_7b.yaml", "1.0.4")).job, now = read(source("grpo_7b.yaml", "2.0.0")).job;
  CHECK(old.role("actor")->trainer.storage == DType::bf16);
  CHECK(now.role("actor")->trainer.storage == DType::fp32);
  CHECK(now.role("actor")->trainer.compute == DType::bf16);
  // weights, gradients and two states of 7.6e9 parameters on 4 GPUs: 2 + 2 + 4 bytes, 4 + 4 + 8 bytes
  const Bytes parameters = 7'615'616'512;  // of Qwen2.5-7B
  const Bytes was = need(estimate_quick(old), "actor.optimizer"), is = need(estimate_quick(now), "actor.optimizer");
  CHECK(is - was >= parameters * 8 / 4);
  CHECK(is - was < parameters * 8 / 4 + parameters);
}

TEST_CASE("areal guide: a colocated server with mem_fraction_static 0.95 breaks in its first prefill") {
  const auto file = source("grpo_7b.yaml", "1.0.4", shared_gpus({"sglang.mem_fraction_static=0.95"}));
  const Advice advice = advise(file);
  CHECK_FALSE(advice.estimate.fits());
  REQUIRE(advice.causes.size() == 1);
  const Cause& first = advice.causes[0];
  CHECK(first.phase == "rollout.generate");
  CHECK(first.log == "rollout.log");
  CHECK(first.text.find("generation") == 0);
  // By hand: 79.19 GiB usable, 1.24 GiB are the sleeping trainer's context, libraries and communicator of four, and 0.5 GiB the
  // server's own. Of the 77.45 GiB that are free 95 % are weights (7,615,616,512 less nothing, 2 bytes) and cache, 3.9 GiB are
  // left for everything else.
  REQUIRE(first.tensors.size() == 5);
  const Bytes by_hand = static_cast<Bytes>(0.95 * 77.45 * static_cast<double>(kGiB)) - Bytes{2} * 7'615'616'512;
  CHECK(first.tensors[0].name == "server.KV cache");
  CHECK(std::abs(first.tensors[0].bytes - by_hand) < kGiB / 4);
  // Chunked prefill is off: 32,768 tokens of max_prefill_tokens go through the MLP at once, gate and up beside their product
  const auto holds = [&](std::string_view name, Bytes bytes) {
    return std::any_of(first.tensors.begin(), first.tensors.end(),
                       [&](const LiveTensor& t) { return t.name == name && t.bytes == bytes; });
  };
  CHECK(holds("server.gate and up", Bytes{2} * 32768 * 2 * 18944));
  CHECK(holds("server.activation", Bytes{2} * 32768 * 18944));
  CHECK(first.needed - first.usable > kGiB);
  CHECK(first.needed - first.usable < 2 * kGiB);
  // the least that the guide would do is enough
  const auto less = std::find_if(advice.remedies.begin(), advice.remedies.end(),
                                 [](const Remedy& r) { return r.key == "sglang.mem_fraction_static"; });
  REQUIRE(less != advice.remedies.end());
  CHECK(less->to == "0.9");
  CHECK(less->fits);
}

TEST_CASE("areal: without its memory saver a colocated server gives nothing back") {
  auto overrides = shared_gpus({"sglang.mem_fraction_static=0.8"});
  std::erase(overrides, "+sglang.enable_memory_saver=true");
  const auto file = source("grpo_7b.yaml", "1.0.4", overrides);
  CHECK(notes_say(read(file).notes, "the server keeps weights and KV cache"));
  const Advice advice = advise(file);
  CHECK_FALSE(advice.estimate.fits());
  REQUIRE_FALSE(advice.causes.empty());
  CHECK(advice.causes[0].phase == "actor.forward");
  CHECK(advice.causes[0].others > 60 * kGiB);
  const auto saver = std::find_if(advice.remedies.begin(), advice.remedies.end(),
                                  [](const Remedy& r) { return r.key == "sglang.enable_memory_saver"; });
  REQUIRE(saver != advice.remedies.end());
  CHECK(saver->fits);
  CHECK(saver->patch.overrides == std::vector<std::string>{"+sglang.enable_memory_saver=true"});
}

TEST_CASE("areal: what breaks is told in the order of the run, with the log that says so") {
  const auto first_of = [](std::vector<std::string> overrides, const std::string& release = "1.0.4",
                           const std::string& name = "grpo_7b.yaml") {
    const Advice advice = advise(source(name, release, std::move(overrides)));
    REQUIRE_FALSE(advice.causes.empty());
    return advice.causes[0];
  };
  // the loss: the gradient of the logits beside them
  const Cause loss = first_of({"actor.mb_spec.max_tokens_per_mb=65536"});
  CHECK(loss.phase == "actor.backward");
  CHECK(loss.text.find("training: backward pass, at the loss") == 0);
  CHECK(loss.tensors[0].shape == std::vector<std::int64_t>{65536, 152064});
  CHECK(loss.log == "actor.log");
  // without checkpointing every layer keeps its tensors: already the forward pass is too much
  const Cause layers = first_of({"actor.gradient_checkpointing=false", "actor.mb_spec.max_tokens_per_mb=32768"});
  CHECK(layers.phase == "actor.forward");
  CHECK(layers.text == "training: forward pass");
  CHECK(layers.tensors[0].count >= 27);
  // loading: every rank holds the whole model in storage before it is sharded
  const Cause load = first_of({"actor.path=Qwen/Qwen2.5-72B-Instruct", "sglang.model_path=Qwen/Qwen2.5-7B-Instruct"});
  CHECK(load.phase == "actor.load");
  CHECK(load.text.find("start-up") == 0);
  // a server whose weights alone are too large would not start
  const Cause start = first_of({"sglang.model_path=Qwen/Qwen2.5-72B-Instruct"});
  CHECK(start.phase.substr(0, 8) == "rollout.");
  CHECK(start.log == "rollout.log");
  // launchers of older releases have two logs
  const std::vector<std::string> wide{"actor.mb_spec.max_tokens_per_mb=1000000"};
  CHECK(first_of(wide, "0.5.3", "ppo_allocation_mode.yaml").log == "trainer.log");
  CHECK(first_of({"sglang.mem_fraction_static=0.98"}, "0.5.3", "ppo_allocation_mode.yaml").log == "llm_server.log");
}

TEST_CASE("what breaks is told of a host, too") {
  Source s;
  s.name = "job.yaml";
  s.text =
      "oomplan: 1\ngpus: 8 x H100-80GB\nhost_memory: 8GiB\nmodel: qwen2.5-7b\nprompt_tokens: 1k\nresponse_tokens: 8k\n"
      "rollout: {engine: sglang 0.5.10, layout: d4, mem_fraction_static: 0.8}\nactor: {layout: d4, "
      "tokens_per_micro_batch: 16k, recompute: full}\n";
  const Advice advice = advise(s);
  CHECK_FALSE(advice.estimate.fits());
  REQUIRE(advice.causes.size() == 1);
  CHECK(advice.causes[0].text == "memory of the host");
  CHECK(advice.causes[0].needed == advice.estimate.hosts.at(0).phases.at(advice.estimate.hosts.at(0).worst).second);
  CHECK(advice.causes[0].usable == 8 * kGiB);
}
