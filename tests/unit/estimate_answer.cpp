// What an estimate is made of: classes of GPUs, hosts, turns, micro-batches, the load; and that nothing changes it but the job.
#include <algorithm>
#include <set>
#include <thread>

#include "estimate/assemble.hpp"
#include "estimate_jobs.hpp"

using namespace oomplan;

namespace {

const std::string kHead = "oomplan: 1\nmodel: qwen2.5-0.5b\nprompt_tokens: 512\nresponse_tokens: 1k\n";

Assembled assembled(const Job& job) {
  TapeStore store;
  return assemble(job, Catalog::builtin(), store);
}
std::vector<std::string> ranks(const Job& job) {
  std::vector<std::string> out;
  for (const auto& g : assembled(job).estimate.gpus) out.push_back(g.ranks);
  return out;
}
std::vector<std::string> phases(const GpuAnswer& g) {
  std::vector<std::string> out;
  for (const auto& m : g.phases) out.push_back(m.phase);
  return out;
}
std::vector<std::string> turns(const Job& job, const std::vector<Step>& steps) {
  constexpr const char* kWords[] = {"load",       "start",     "wake weights", "wake cache", "generate", "sleep",
                                    "step aside", "log-probs", "train",        "send",       "receive",  "save"};
  std::vector<std::string> out;
  for (const auto& s : steps) out.push_back(job.roles[s.role].name + " " + kWords[static_cast<std::size_t>(s.kind)]);
  return out;
}

}  // namespace

TEST_CASE("every GPU with a role is in exactly one class, and classes differ") {
  for (const auto& j : all_jobs()) {
    INFO(j.name);
    const Job job = job_of(j.text);
    const Assembled a = assembled(job);
    std::set<std::int64_t> seen;
    for (std::size_t c = 0; c < a.classes.size(); ++c) {
      for (const auto gpu : a.classes[c].gpus) CHECK(seen.insert(gpu).second);
      for (std::size_t d = 0; d < c; ++d) CHECK_FALSE(a.classes[c].seats == a.classes[d].seats);
    }
    CHECK(seen.size() == static_cast<std::size_t>(job.cluster.gpus));
    CHECK(*seen.begin() == 0);
    CHECK(*seen.rbegin() == job.cluster.gpus - 1);
  }
}

TEST_CASE("equal ranks merge; the sender, and the stages of a server, differ") {
  const std::string areal = kHead +
                            "gpus: 8 x H100-80GB\nrollout: {engine: sglang 0.5.10, layout: d4, mem_fraction_static: 0.5}\nactor: "
                            "{layout: d4, tokens_per_micro_batch: 4k}\n";
  CHECK(ranks(job_of(areal)) == std::vector<std::string>{"rollout 0-3", "actor 0", "actor 1-3"});
  CHECK(ranks(job_of(areal + "ref: {beside: actor}\n")) ==
        std::vector<std::string>{"rollout 0-3", "actor 0, ref 0", "actor 1-3, ref 1-3"});
  const std::string stages =
      "oomplan: 1\ngpus: 8 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: d2t2p2, gpu_memory_utilization: "
      "0.9, max_model_len: 8k}\n";
  CHECK(ranks(job_of(stages)) == std::vector<std::string>{"server 0-1,4-5", "server 2-3,6-7"});
  CHECK(ranks(job_of("oomplan: 1\ngpus: 4 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: d2t2, "
                     "gpu_memory_utilization: 0.9, max_model_len: 8k}\n")) == std::vector<std::string>{"server 0-3"});
}

TEST_CASE("roles beside each other share GPUs along the chain, and a process where they say so") {
  const auto processes = [](const Job& job) { return assembled(job).classes.at(0).processes; };
  const std::string verl = kHead +
                           "framework: verl 0.9.0\ngpus: 2 x H100-80GB\nrollout: {engine: vllm 0.11.0, layout: d2, "
                           "gpu_memory_utilization: 0.5}\nactor: {beside: rollout, layout: d2}\n";
  CHECK(processes(job_of(verl)) == 2);
  CHECK(processes(job_of(verl + "ref: {beside: actor}\n")) == 2);  // verl: one worker process
  CHECK(processes(job_of(verl + "ref: {beside: actor, in_process: false}\n")) == 3);
  const Job chain = job_of(verl + "ref: {beside: actor, in_process: false}\n");
  CHECK(share_gpus(chain, *chain.role("ref"), *chain.role("rollout")));
  // A process of its own pays its own context.
  const Bytes together = assembled(job_of(verl + "ref: {beside: actor}\n")).folds[0].held, apart = assembled(chain).folds[0].held;
  CHECK(apart - together >= assembled(chain).runs[1].constants.context);
}

TEST_CASE("the turns of a job") {
  using Words = std::vector<std::string>;
  const auto find = [](const char* name) {
    const auto jobs = job_matrix();
    return job_of(std::find_if(jobs.begin(), jobs.end(), [&](const NamedJob& j) { return j.name == name; })->text);
  };
  const Job apart = find("areal, ref in a process of its own");
  CHECK(turns(apart, timeline_of(apart).init) == Words{"actor load", "ref load", "rollout load", "rollout start"});
  CHECK(turns(apart, timeline_of(apart).iteration) == Words{"rollout generate", "ref log-probs", "actor log-probs", "actor train",
                                                            "actor send", "rollout receive", "actor save"});
  const Job shared = find("verl, shared, sleep 1");
  CHECK(turns(shared, timeline_of(shared).init) ==
        Words{"actor load", "ref load", "rollout load", "rollout start", "rollout sleep"});
  CHECK(turns(shared, timeline_of(shared).iteration) ==
        Words{"rollout wake weights", "rollout wake cache", "rollout generate", "rollout sleep", "actor log-probs",
              "ref log-probs", "actor train", "rollout wake weights", "actor send", "rollout receive", "actor save"});
  const Job never = find("verl, shared, never asleep");
  CHECK(turns(never, timeline_of(never).iteration) ==
        Words{"rollout generate", "actor log-probs", "actor train", "actor send", "rollout receive", "actor save"});
  const Job sft = find("sft, recompute");
  CHECK(turns(sft, timeline_of(sft).iteration) == Words{"trainer train", "trainer save"});
}

TEST_CASE("a job has the phases of its roles, in their order") {
  using Words = std::vector<std::string>;
  const auto first = [](const char* name) {
    const auto jobs = job_matrix();
    return phases(
        assembled(job_of(std::find_if(jobs.begin(), jobs.end(), [&](const NamedJob& j) { return j.name == name; })->text))
            .estimate.gpus.at(0));
  };
  CHECK(first("sft, recompute") ==
        Words{"trainer.load", "trainer.forward", "trainer.backward", "trainer.optimizer", "trainer.save"});
  CHECK(first("serving, vllm") == Words{"server.load", "server.start", "server.generate"});
  CHECK(first("areal, apart, nccl") == Words{"rollout.load", "rollout.start", "rollout.generate", "rollout.receive_weights"});
  CHECK(first("verl, critic, tensor parallel server") ==
        Words{"actor.load", "critic.load", "rollout.load", "rollout.start", "rollout.sleep", "rollout.wake", "rollout.generate",
              "actor.log_probs", "critic.values", "actor.forward", "actor.backward", "actor.optimizer", "critic.forward",
              "critic.backward", "critic.optimizer", "actor.send_weights", "actor.save"});
}

TEST_CASE("hosts: the sum over the GPUs of a node; equal nodes merge") {
  const std::string text =
      "oomplan: 1\nframework: torch\ngpus: 16 x A100-80GB\nhost_memory: 512GiB\nmodel: qwen2.5-0.5b\n"
      "trainer: {layout: d16, precision: {storage: fp32}, cpu_offload_policy: true, sequence_tokens: 2k, "
      "sequences_per_micro_batch: 1}\n";
  const Assembled a = assembled(job_of(text));
  REQUIRE(a.classes.size() == 2);  // rank 0 keeps the files' copy on its host
  REQUIRE(a.estimate.hosts.size() == 2);
  CHECK(a.estimate.hosts[0].nodes == "0");
  CHECK(a.estimate.hosts[1].nodes == "1");
  CHECK(a.estimate.hosts[0].usable == 512 * kGiB);
  for (const auto& [phase, bytes] : a.estimate.hosts[1].phases) {
    Bytes one = 0;
    for (const auto& f : a.folds[1].phases)
      if ("trainer." + std::string(phase_word(f.phase)) == phase) one = f.host;
    CHECK(bytes == 8 * one);
  }
  // The gathered copy, 2 bytes or 4 a parameter, is on one node only: rank 0's.
  const auto highest = [&](std::size_t node) { return a.estimate.hosts[node].phases[a.estimate.hosts[node].worst].second; };
  CHECK(highest(0) > highest(1));
  const Job wide = job_of(
      "oomplan: 1\ngpus: 32 x H100-80GB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: d32, gpu_memory_utilization: "
      "0.9}\n");
  REQUIRE(assembled(wide).estimate.hosts.size() == 1);
  CHECK(assembled(wide).estimate.hosts[0].nodes == "0-3");
}

TEST_CASE("micro-batches by hand") {
  Job job;
  Trainer t;
  t.tokens_per_micro_batch = 16384;
  t.layout.data = 4;
  job.prompt_tokens = 1024;
  job.response_tokens = 7168;            // 8192 together
  CHECK(micro_batches_of(job, t) == 2);  // RL, unstated
  job.sequences_per_step = 256;          // 64 of a rank, 524288 tokens, 32 times 16384
  CHECK(micro_batches_of(job, t) == 32);
  job.sequences_per_step = 257;  // 65 of the fullest rank: 32.5
  CHECK(micro_batches_of(job, t) == 33);
  t.sequences_per_micro_batch = 8;  // padded: 65 / 8
  CHECK(micro_batches_of(job, t) == 9);
  t.layout.context = 4;  // Ulysses ranks share their sequences
  CHECK(micro_batches_of(job, t) == 9);
  t.micro_batches = 5;
  CHECK(micro_batches_of(job, t) == 5);
  t.micro_batches = 0;
  job.kind = JobKind::sft;
  job.sequences_per_step = 0;
  CHECK(micro_batches_of(job, t) == 1);
  job.sequences_per_step = 1;
  CHECK(micro_batches_of(job, t) == 1);
}

TEST_CASE("AReaL loads the whole model on every GPU, unless told otherwise: by hand") {
  // Qwen2.5-0.5B: 494,032,768 parameters. Stored in bf16; the largest unit is the root with the tied embedding.
  const std::string text = kHead +
                           "framework: areal 1.0.4\ngpus: 4 x H100-80GB\nrollout: {engine: sglang 0.5.10, layout: d2, "
                           "mem_fraction_static: 0.5}\nactor: {layout: d2, tokens_per_micro_batch: 4k";
  const auto load_of = [](const Assembled& a, std::size_t gpu_class) {
    for (const auto& f : a.folds[gpu_class].phases)
      if (f.phase == PhaseKind::load) return f;
    return PhaseFigure{};
  };
  const Assembled full = assembled(job_of(text + "}\n"));
  const Bytes whole = 2 * Bytes{494'032'768};
  const RoleRun& run = full.runs[1];
  CHECK(run.full_storage == whole);
  Bytes unit = run.plan.root.resident;
  for (const auto& u : run.plan.units) unit = std::max(unit, u.resident);
  const Bytes constants = run.constants.context + run.constants.nccl;
  for (const std::size_t c : {std::size_t{1}, std::size_t{2}}) {
    const auto f = load_of(full, c);
    CHECK(f.allocated == whole + unit);
    CHECK(f.needed == constants + whole + unit);
    CHECK(f.host == 0);
  }
  const Assembled lean = assembled(job_of(text + ", memory_efficient_load: true}\n"));
  for (const std::size_t c : {std::size_t{1}, std::size_t{2}}) {
    const auto f = load_of(lean, c);
    CHECK(f.allocated == run.plan.resident + run.plan.buffers);
    CHECK(f.host == (c == 1 ? whole : 0));  // rank 0 reads the model and sends it
  }
}

TEST_CASE("ZeRO 3 says which gathered experts stay from forward to backward") {
  const auto told = [](const std::string& settings) {
    const Estimate e = estimate_quick(job_of(
        "oomplan: 1\nframework: torch\nmodel: qwen3-30b-a3b\ngpus: 8 x H100-80GB\ntrainer: {engine: deepspeed, layout: d8, "
        "kernels: hf_flash, sequences_per_micro_batch: 1, sequence_tokens: 64, micro_batches: 1, precision: {storage: bf16, "
        "compute: bf16, reduce: bf16}, " +
        settings + "}\n"));
    std::string out;
    for (const Note& n : e.notes)
      if (n.text.find("trainer: ZeRO 3 keeps the gathered experts") == 0) out = n.text;
    return out;
  };
  // 48 layers of 128 experts: 3 x 768 x 2048 numbers each, 54 GiB in 16 bits
  static_assert(48LL * 128 * 3 * 768 * 2048 * 2 == 54LL << 30);
  CHECK(told("recompute: none, zero: {stage: 3}").find(", 54.00 GiB: ") != std::string::npos);
  CHECK(told("recompute: none, experts: batched_mm, zero: {stage: 3}").empty());
  CHECK(told("recompute: full, zero: {stage: 3}").empty());
  CHECK(told("recompute: none, zero: {stage: 2}").empty());
}

TEST_CASE("FSDP2 with more ranks than experts says what room its gathered buffers have") {
  const auto told = [](int gpus, const std::string& model = "mixtral-8x7b") {
    const Estimate e = estimate_quick(job_of("oomplan: 1\nframework: torch\nmodel: " + model + "\ngpus: " + std::to_string(gpus) +
                                             " x H100-80GB\ntrainer: {engine: fsdp2, layout: d" + std::to_string(gpus) +
                                             ", sequences_per_micro_batch: 1, sequence_tokens: 64, micro_batches: 1, "
                                             "precision: {storage: fp32, compute: bf16, reduce: fp32}}\n"));
    for (const Note& n : e.notes)
      if (n.text.find("by expert") != std::string::npos) return n.text;
    return std::string();
  };
  CHECK(told(8).empty());
  // 8 experts more, each of three matrices of 4096 x 14336 in 16 bits
  static_assert(8LL * 3 * 4096 * 14336 * 2 == 2818572288);
  CHECK(
      told(16) ==
      "trainer: FSDP2 splits a layer's 8 experts over 16 ranks by expert, so that its gathered buffer has room for 16: 2.62 GiB "
      "more than the layer's parameters");
  CHECK(told(24, "tiiuae/falcon-mamba-7b").empty());  // 8192 channels of a convolution are no experts
}

TEST_CASE("a server that starts beside trainers sees what they hold") {
  const std::string text = kHead +
                           "framework: areal 1.0.4\ngpus: 1 x H100-80GB\nrollout: {engine: sglang 0.5.10, layout: d1, "
                           "mem_fraction_static: 0.4, concurrency: 16}\n"
                           "actor: {beside: rollout, layout: d1, tokens_per_micro_batch: 4k, offload: ";
  const auto pool = [&](const char* offload) { return estimate_quick(job_of(text + offload + "}\n")).servers.at(0).kv_pool; };
  // SGLang takes its share of what is free: parameters that stay on the GPU make its pool smaller.
  CHECK(pool("[]") < pool("[parameters]"));
}

TEST_CASE("two estimates of a job are equal, whatever was estimated before and on how many threads") {
  const auto jobs = all_jobs();
  std::vector<Job> read;
  std::vector<Estimate> alone;
  for (const auto& j : jobs) {
    read.push_back(job_of(j.text));
    TapeStore store;
    alone.push_back(assemble(read.back(), Catalog::builtin(), store).estimate);
    worst_first(alone.back(), read.back());
  }
  for (const std::size_t threads : {std::size_t{1}, std::size_t{2}, std::size_t{7}}) {
    std::vector<std::vector<Estimate>> out(threads);
    {
      std::vector<std::jthread> workers;
      for (std::size_t t = 0; t < threads; ++t)
        workers.emplace_back([&, t] {
          for (std::size_t i = 0; i < read.size(); ++i) out[t].push_back(estimate_quick(read[(i + t) % read.size()]));
        });
    }
    for (std::size_t t = 0; t < threads; ++t)
      for (std::size_t i = 0; i < read.size(); ++i) check_same(out[t][i], alone[(i + t) % read.size()]);
  }
}

TEST_CASE("a store of tapes answers equal questions with one tape, also from many threads at once") {
  TapeStore store;
  const auto architecture = Catalog::builtin().model("qwen2.5-0.5b").architecture;
  std::vector<std::shared_ptr<const Tape>> got(8);
  {
    std::vector<std::jthread> workers;
    for (std::size_t t = 0; t < got.size(); ++t)
      workers.emplace_back([&, t] {
        Trainer trainer;
        for (const auto recompute : {Recompute::none, Recompute::full}) {
          trainer.recompute = recompute;
          got[t] = store.get(architecture, train_pass(trainer, EngineKind::fsdp2, *architecture, false, 4096));
        }
      });
  }
  Trainer trainer;
  trainer.recompute = Recompute::full;
  const PassOptions options = train_pass(trainer, EngineKind::fsdp2, *architecture, false, 4096);
  CHECK(store.get(architecture, options) == store.get(architecture, options));
  const auto copy = std::make_shared<const Architecture>(*architecture);
  CHECK(store.get(copy, options) == store.get(architecture, options));
  for (const auto& tape : got) {
    REQUIRE(tape != nullptr);
    CHECK(tape->stations.size() == got[0]->stations.size());
    CHECK(tape->sites.size() == got[0]->sites.size());
  }
}

TEST_CASE("a job whose framework was changed without its loop is refused, and set() changes both") {
  Job job = job_of(
      "oomplan: 1\nframework: torch\ngpus: 1 x H100-80GB\nmodel: Qwen/Qwen3-0.6B\ntrainer: {engine: single, "
      "precision: {storage: bf16}, sequences_per_micro_batch: 2, sequence_tokens: 1k}\n");
  CHECK_NOTHROW(estimate(job));
  job.roles[0].trainer.framework = Framework::verl;
  try {
    estimate(job);
    FAIL_CHECK("not refused");
  } catch (const InputError& e) {
    REQUIRE(e.problems.size() == 1);
    CHECK(to_text(e.problems[0]) ==
          "job trainer.loop: found what PyTorch does, expected what verl does: set(job, \"framework\", ...) sets both: the job's "
          "framework and its loop are of two");
  }
}
