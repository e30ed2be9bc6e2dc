// Megatron's command line read as a job, and what Megatron refuses. tests/data/megatron_refused.jsonl holds the words of every
// broken command and where Megatron 0.16.1 itself raises when it is given them (benchmarks/oracle/megatron_flags.py runs it).
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <oomplan/oomplan.hpp>

#include "catalog/architecture.hpp"
#include "frontends/megatron/command.hpp"
#include "frontends/megatron/flag_table.hpp"
#include "frontends/megatron/run.hpp"
#include "frontends/megatron/words.hpp"
#include "frontends/shell_words.hpp"
#include "job/knobs.hpp"

namespace oomplan {
namespace {

std::vector<nlohmann::json> refused_commands() {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/megatron_refused.jsonl");
  std::vector<nlohmann::json> out;
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

Source launch(const std::string& flags, const std::string& front = "torchrun --nproc-per-node 8 pretrain_gpt.py ") {
  Source s;
  s.text = front + flags;
  s.name = "command line";
  s.dialect = "megatron";
  return s;
}

const std::string kDense =
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --attention-dropout 0 --hidden-dropout 0 --bf16 --use-distributed-optimizer "
    "--tokenizer-type NullTokenizer --vocab-size 128255 ";

std::string all_problems(const Source& s) {
  try {
    (void)read(s);
  } catch (const InputError& e) {
    std::string out;
    for (const auto& p : e.problems) out += to_text(p) + "\n";
    return out;
  }
  return "";
}
std::string all_notes(const Source& s) {
  std::string out;
  for (const auto& n : read(s).notes) out += n.place.path + ": " + n.text + "\n";
  return out;
}

}  // namespace

TEST_CASE("megatron flags: what Megatron refuses is refused at the same flag with its reason") {
  const auto cases = refused_commands();
  REQUIRE(cases.size() >= 40);
  std::set<std::string> names;
  for (const auto& c : cases) {
    CAPTURE(c.at("name").get<std::string>());
    CHECK(names.insert(c.at("name").get<std::string>()).second);
    Source s = launch("");
    s.text = "WORLD_SIZE=" + c.at("world").dump() + " python pretrain_gpt.py " +
             shell_text(c.at("words").get<std::vector<std::string>>());
    bool found = false;
    const auto told = c.at("told").get<std::string>(), why = c.at("why").get<std::string>();
    try {
      (void)read(s);
    } catch (const InputError& e) {
      for (const auto& p : e.problems) found = found || (p.place.path == told && to_text(p).find(why) != std::string::npos);
    }
    INFO(all_problems(s));
    CHECK(found);
  }
}

TEST_CASE("megatron flags: a command becomes a job") {
  const Job job = read(launch(kDense + "--tensor-model-parallel-size 4 --pipeline-model-parallel-size=2 --sequence-parallel "
                                       "--num-virtual-stages-per-pipeline-rank 4 --recompute-granularity full "
                                       "--recompute-method uniform --recompute-num-layers 2 --cross-entropy-loss-fusion "
                                       "--cross-entropy-fusion-impl te --attention-backend flash --grad-reduce-in-bf16"))
                      .job;
  const auto said = [&](const char* knob) { return get(job, std::string("trainer.") + knob); };
  CHECK(get(job, "gpus") == "8 x H100-80GB");
  CHECK(said("layout") == "p2t4");  // d1: 8 GPUs / (4 x 2)
  CHECK(said("sequence_parallel") == "true");
  CHECK(said("virtual_stages") == "4");
  CHECK(said("recompute") == "full");
  CHECK(said("recompute_layers") == "2");
  CHECK(said("cross_entropy") == "te");
  CHECK(said("attention") == "flash");
  CHECK(said("precision.reduce") == "bf16");
  CHECK(said("precision.storage") == "bf16");
  CHECK(said("sequence_tokens") == "4k");
  CHECK(get(job, "sequences_per_step") == "64");
  CHECK(said("micro_batches") == "auto");  // as the layout has it
  const Architecture& a = *job.roles[0].architecture;
  CHECK(a.layers() == 32);
  CHECK(a.vocab == 128256);  // NullTokenizer adds its end of document
  CHECK(a.runs[0].layer.mixer.kv_heads == 8);
  CHECK(a.runs[0].layer.feed_forward.kind == FeedForwardKind::gated);
}

TEST_CASE("megatron flags: Megatron-core's own modules and deferred gradients") {
  const Job job =
      read(launch("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
                  "--micro-batch-size 4 --bf16 --transformer-impl local --attention-backend flash "
                  "--no-masked-softmax-fusion --apply-query-key-layer-scaling"))
          .job;
  const auto said = [&](const char* knob) { return get(job, std::string("trainer.") + knob); };
  CHECK(said("transformer_impl") == "local");
  CHECK(said("masked_softmax_fusion") == "false");
  CHECK(said("attention_softmax_in_fp32") == "false");
  CHECK(said("query_key_layer_scaling") == "true");
  CHECK(said("attention") == "fused");  // it has none of these kernels
  CHECK(!estimate_quick(job).gpus.empty());
  const std::string problems = all_problems(launch(kDense + "--transformer-impl inference_optimized"));
  CHECK(problems.find("not supported yet: layers that are made for inference") != std::string::npos);
  std::string squared = kDense;
  squared.replace(squared.find("--swiglu"), 8, "--squared-relu");
  CHECK(read(launch(squared)).job.roles[0].architecture->runs[0].layer.feed_forward.activation == Activation::relu_squared);
  CHECK(all_problems(launch(squared + "--disable-jit-fuser")).empty());
  CHECK_THROWS_AS(estimate_quick(read(launch(squared + "--disable-jit-fuser")).job), InputError);
  const std::string waits = "--pipeline-model-parallel-size 2 --defer-embedding-wgrad-compute ";
  const Job limited = read(launch(kDense + waits + "--wgrad-deferral-limit 3")).job;
  CHECK(get(limited, "trainer.defer_embedding_wgrad_compute") == "true");
  CHECK(get(limited, "trainer.wgrad_deferral_limit") == "3");
  CHECK(get(read(launch(kDense + waits)).job, "trainer.wgrad_deferral_limit") == "auto");
}

TEST_CASE("megatron flags: the same model by flags and by name needs the same") {
  const std::string flags = kDense + "--vocab-size 128255 --tensor-model-parallel-size 2 --sequence-parallel";
  const Estimate by_flags = estimate_quick(read(launch(flags)).job);
  Source named = launch(flags);
  named.overrides = {"model=meta-llama/Llama-3.1-8B"};
  const Estimate by_name = estimate_quick(read(named).job);
  REQUIRE(!by_flags.gpus.empty());
  CHECK(by_flags.gpus[0].phases[by_flags.gpus[0].worst].usage.capacity_needed ==
        by_name.gpus[0].phases[by_name.gpus[0].worst].usage.capacity_needed);
  named.text += " --num-attention-heads 64 --kv-channels 64";
  CHECK(all_problems(named).find("found 64, expected 32, as meta-llama/Llama-3.1-8B has it") != std::string::npos);
}

TEST_CASE("megatron flags: what Megatron derives") {
  // a gated block is two thirds of 4 h, down to a multiple of 64: 4 x 4096 x 2 / 3 = 10922.67, 170.67 x 64
  std::string flags = kDense;
  flags.replace(flags.find("--ffn-hidden-size 14336 "), 24, "");
  CHECK(read(launch(flags)).job.roles[0].architecture->runs[0].layer.feed_forward.width == 10880);
  // without --global-batch-size one micro-batch of each data-parallel rank
  flags = kDense;
  flags.replace(flags.find("--global-batch-size 64 "), 23, "");
  CHECK(get(read(launch(flags)).job, "sequences_per_step") == "8");
  // sequence parallelism without tensor parallelism is turned off
  CHECK(get(read(launch(kDense + "--sequence-parallel")).job, "trainer.sequence_parallel") == "false");
  CHECK(all_notes(launch(kDense + "--sequence-parallel")).find("--sequence-parallel: Megatron turns it off") !=
        std::string::npos);
  // layers of a chunk: 32 layers on 4 stages, 2 layers each
  CHECK(get(read(launch(kDense + "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2")).job,
            "trainer.virtual_stages") == "4");
}

TEST_CASE("megatron flags: experts, and the layers that have them") {
  const std::string experts =
      kDense +
      "--num-experts 16 --moe-ffn-hidden-size 1024 --moe-router-topk 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
      "--moe-permute-fusion --moe-aux-loss-coeff 1e-2 --moe-layer-freq '([0]*3+[1]*29)' --expert-model-parallel-size 4 "
      "--moe-shared-expert-intermediate-size 2048 --moe-router-dtype fp32 ";
  Source s = launch(experts);
  const Job job = read(s).job;
  const Architecture& a = *job.roles[0].architecture;
  REQUIRE(a.runs.size() == 2);
  CHECK(a.runs[0].count == 3);
  CHECK(a.runs[1].count == 29);
  CHECK(a.runs[1].layer.feed_forward.shared_width == 2048);
  CHECK(get(job, "trainer.layout") == "d8e4");
  CHECK(get(job, "trainer.router_dtype") == "fp32");
  CHECK(get(job, "trainer.dispatcher") == "alltoall");
  CHECK(get(job, "trainer.grouped_experts") == "true");
  // Megatron's defaults: all tokens are gathered, experts run one after another; without a gate they have no kernel of their own
  const Job plain =
      read(launch("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --max-position-embeddings 1024 --seq-length 1024 "
                  "--micro-batch-size 1 --global-batch-size 8 --bf16 --disable-bias-linear --no-bias-gelu-fusion "
                  "--vocab-size 50257 --num-experts 8 --moe-router-topk 1 --moe-router-load-balancing-type sinkhorn "))
          .job;
  CHECK(get(plain, "trainer.dispatcher") == "allgather");
  CHECK(get(plain, "trainer.grouped_experts") == "false");
  CHECK(get(plain, "trainer.sinkhorn") == "true");
  CHECK_FALSE(plain.roles[0].architecture->runs[0].layer.feed_forward.experts_gated);
  // expert tensor parallelism follows tensor parallelism unless it is said
  s.text += " --tensor-model-parallel-size 2 --sequence-parallel";
  CHECK(get(read(s).job, "trainer.layout") == "attn:d4t2|ffn:t2e4");
}

TEST_CASE("megatron flags: tokens that DeepEP exchanges") {
  const std::string experts =
      kDense +
      "--num-experts 16 --moe-ffn-hidden-size 1024 --moe-router-topk 4 --moe-grouped-gemm --moe-aux-loss-coeff 1e-2 "
      "--moe-token-dispatcher-type flex --expert-model-parallel-size 4 --moe-permute-fusion --moe-router-dtype fp32 ";
  CHECK(get(read(launch(experts)).job, "trainer.dispatcher") == "flex");  // DeepEP is the default back end
  CHECK(get(read(launch(experts)).job, "trainer.deepep_num_sms") == "20");
  const Job job = read(launch(experts + "--moe-enable-deepep --moe-deepep-num-sms 24")).job;
  CHECK(get(job, "trainer.deepep_num_sms") == "24");
  const auto refused = [&](const std::string& more, const char* message) {
    const std::string told = all_problems(launch(experts + more));
    CAPTURE(told);
    CHECK(told.find(message) != std::string::npos);
  };
  refused("--moe-flex-dispatcher-backend hybridep", "not supported yet: HybridEP");
  refused("--moe-flex-dispatcher-backend hybridep --moe-enable-deepep", "the dispatcher has one back end");
  refused("--enable-experimental", "not supported yet: experimental kernels of the flex dispatcher");
}

TEST_CASE("megatron flags: how many tokens reach their experts") {
  const std::string experts =
      kDense +
      "--num-experts 16 --moe-ffn-hidden-size 1024 --moe-router-topk 4 --moe-grouped-gemm --moe-aux-loss-coeff 1e-2 "
      "--moe-token-dispatcher-type alltoall ";
  const auto said = [&](const std::string& more, const char* knob) {
    return get(read(launch(experts + more)).job, std::string("trainer.") + knob);
  };
  CHECK(said("--moe-expert-capacity-factor 1.5", "expert_capacity") == "1.5");
  CHECK(said("--moe-expert-capacity-factor 1.5", "pad_expert_input") == "false");
  CHECK(said("--moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity", "pad_expert_input") == "true");
  // nothing to overlap without shared experts
  CHECK(said("--moe-shared-expert-overlap", "shared_expert_overlap") == "false");
  CHECK(said("--moe-shared-expert-overlap --moe-shared-expert-intermediate-size 1024", "shared_expert_overlap") == "true");
}

TEST_CASE("megatron flags: an optimizer on the host") {
  const auto job = [](const std::string& more) {
    return read(launch(kDense + "--optimizer-cpu-offload --use-precision-aware-optimizer " + more)).job;
  };
  CHECK(get(job(""), "trainer.optimizer_cpu_offload") == "true");
  CHECK(get(job(""), "trainer.optimizer_offload_fraction") == "1");
  CHECK(get(job("--optimizer-offload-fraction 0.25"), "trainer.optimizer_offload_fraction") == "0.25");
  CHECK(get(job(""), "trainer.overlap_grad_reduce") == "false");
  CHECK(get(job("--overlap-grad-reduce --overlap-cpu-optimizer-d2h-h2d --no-pin-cpu-grads"), "trainer.overlap_grad_reduce") ==
        "true");
  CHECK(all_problems(launch(kDense + "--optimizer-cpu-offload")).find("--use-precision-aware-optimizer beside it") !=
        std::string::npos);
  CHECK(all_problems(launch(kDense + "--optimizer-cpu-offload --use-precision-aware-optimizer --optimizer-offload-fraction 2"))
            .find("optimizer-offload-fraction: found '2'") != std::string::npos);
}

TEST_CASE("megatron flags: spellings") {
  CHECK(all_notes(launch(kDense + "--tensor_model_parallel_size 2")).find("read as --tensor-model-parallel-size") !=
        std::string::npos);
  CHECK(all_notes(launch(kDense + "--tensor-model-par 2")).find("read as --tensor-model-parallel-size") != std::string::npos);
  CHECK(get(read(launch(kDense + "--tensor_model_parallel_size=2")).job, "trainer.layout") == "d4t2");
  CHECK(all_problems(launch(kDense + "--num-l 4")).find("an abbreviation of several flags") != std::string::npos);
  CHECK(all_problems(launch(kDense + "--recompute-granularty full")).find("did you mean '--recompute-granularity'") !=
        std::string::npos);
  CHECK(all_notes(launch(kDense + "--my-own-switch")).find("--my-own-switch: not a flag of Megatron") != std::string::npos);
  CHECK(get(read(launch(kDense + "--no-gradient-accumulation-fusion")).job, "trainer.gradient_accumulation_fusion") == "false");
  CHECK(get(read(launch(kDense + "--micro-batch-size 2 --micro-batch-size 4")).job, "trainer.sequences_per_micro_batch") == "4");
}

TEST_CASE("megatron flags: what is not described is refused by name, together with what is wrong") {
  const std::string told = all_problems(launch(kDense + "--fp8-format hybrid --fp8-recipe custom --optimizer sgd "
                                                        "--num-layers 30 --pipeline-model-parallel-size 4"));
  for (const char* const part : {"--fp8-recipe: found 'custom', expected delayed, tensorwise, blockwise or mxfp8: not supported "
                                 "yet: quantizers of one's own",
                                 "--optimizer: found 'sgd', expected adam: not supported yet: other optimizers",
                                 "--num-layers: found 30, expected a multiple of 4"}) {
    CAPTURE(part);
    CHECK_MESSAGE(told.find(part) != std::string::npos, told);
  }
}

TEST_CASE("megatron flags: products in 8 bits") {
  const std::string flags = kDense + "--fp8-format hybrid --fp8-recipe tensorwise ";
  const Job job = read(launch(flags + "--fp8-param-gather")).job;
  CHECK(get(job, "trainer.fp8_recipe") == "tensorwise");
  CHECK(get(job, "trainer.fp8_param_gather") == "true");
  CHECK(get(read(launch(flags)).job, "trainer.fp8_param_gather") == "false");
  // without --fp8-format a recipe is none
  CHECK(get(read(launch(kDense + "--fp8-recipe tensorwise")).job, "trainer.fp8_recipe") == "none");
  CHECK(get(read(launch(kDense + "--fp8-format e4m3")).job, "trainer.fp8_recipe") == "delayed");
  CHECK(all_problems(launch(flags + "--no-fp8-wgrad")).find("not supported yet") != std::string::npos);
  const Job ends = read(launch(flags + "--first-last-layers-bf16 --num-layers-at-end-in-bf16 3")).job;
  CHECK(get(ends, "trainer.bf16_layers_at_start") == "1");
  CHECK(get(ends, "trainer.bf16_layers_at_end") == "3");
  CHECK(get(read(launch(flags + "--num-layers-at-end-in-bf16 3")).job, "trainer.bf16_layers_at_end") == "0");
  const std::string told =
      all_problems(launch(kDense + "--fp8-format e4m3 --first-last-layers-bf16 --num-layers-at-start-in-bf16 400"));
  CHECK(told.find("--first-last-layers-bf16: found delayed scaling") != std::string::npos);
  CHECK(told.find("--num-layers-at-start-in-bf16: found 400") != std::string::npos);
  CHECK(all_problems(launch(kDense + "--moe-router-padding-for-fp8")).find("--fp8-format beside it") != std::string::npos);
}

TEST_CASE("megatron flags: launchers and GPUs") {
  const auto gpus = [](const std::string& front, std::vector<std::string> overrides = {}) {
    Source s = launch(kDense + "--global-batch-size 512", front);
    s.overrides = std::move(overrides);
    return get(read(s).job, "gpus");
  };
  CHECK(gpus("torchrun --nproc_per_node=4 --nnodes 2 --rdzv-backend c10d /opt/megatron/pretrain_gpt.py ") == "8 x H100-80GB");
  CHECK(gpus("CUDA_DEVICE_MAX_CONNECTIONS=1 WORLD_SIZE=16 python -u pretrain_gpt.py ") == "16 x H100-80GB");
  CHECK(gpus("python pretrain_gpt.py ", {"gpus=32 x H200-141GB"}) == "32 x H200-141GB");
  CHECK(all_problems(launch(kDense, "python pretrain_gpt.py ")).find("no number of GPUs") != std::string::npos);
  CHECK(all_problems(launch(kDense, "torchrun --nproc-per-node 8 pretrain_bert.py ")).find("other scripts") != std::string::npos);
  CHECK(all_problems(launch(kDense, "nothing ")).find("the script's name") != std::string::npos);
}

TEST_CASE("megatron flags: a dict of arguments is the same job as the flags") {
  Source s = launch("");
  s.text = R"({"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "group_query_attention": true,
    "num_query_groups": 8, "ffn_hidden_size": 14336, "swiglu": true, "add_bias_linear": false, "normalization": "RMSNorm",
    "position_embedding_type": "rope", "untie_embeddings_and_output_weights": true, "seq_length": 4096,
    "max-position-embeddings": 4096, "micro_batch_size": 1, "global_batch_size": 64, "attention_dropout": 0.0,
    "hidden_dropout": 0.0, "bf16": true, "use_distributed_optimizer": true, "tokenizer_type": "NullTokenizer",
    "vocab_size": 128255, "recompute_granularity": null, "nothing_of_megatrons": 1})";
  s.overrides = {"gpus=8"};
  const Reading dict = read(s);
  CHECK(to_yaml(dict.job) == to_yaml(read(launch(kDense)).job));
  CHECK(dict.notes[0].text.find("not an argument of Megatron") != std::string::npos);
  s.text = R"({"bf16": 1, "seq_length": "4k"})";
  const std::string told = all_problems(s);
  CHECK(told.find("bf16: found 1") != std::string::npos);
  CHECK(told.find("seq_length: found \"4k\"") != std::string::npos);
}

TEST_CASE("megatron flags: a change in the words of the command line starts the changed job") {
  const Job from = read(launch(kDense)).job;
  const auto words = [&](const Job& a, const Job& b) {
    std::string out;
    for (const auto& w : megatron::words_of_change(a, b)) out += w + " ";
    return out;
  };
  const std::string more =
      "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel "
      "--num-virtual-stages-per-pipeline-rank 2 "
      "--recompute-granularity full --recompute-method block --recompute-num-layers 3 ";
  const Job to = read(launch(kDense + more)).job;
  CHECK(words(from, to) == more);
  CHECK(to_yaml(read(launch(kDense + words(from, to))).job) == to_yaml(to));
  CHECK(words(from, from).empty());
  CHECK(words(to, from) ==
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 (without --sequence-parallel) "
        "--num-virtual-stages-per-pipeline-rank 1 (without --recompute-granularity) ");
  const Job part = read(launch(kDense + "--recompute-granularity selective --recompute-modules mlp")).job;
  CHECK(words(from, part) == "--recompute-granularity selective --recompute-modules mlp ");
}

TEST_CASE("megatron flags: words of a shell") {
  const auto words = [](const std::string& text) { return shell_words(text, "f"); };
  CHECK(words("a  'b c' \"d\\\"e\" f\\ g \\\n h # i\n j") == std::vector<std::string>{"a", "b c", "d\"e", "f g", "h", "j"});
  CHECK(words("--x='' --y=([0]*3+[1])") == std::vector<std::string>{"--x=", "--y=([0]*3+[1])"});
  const std::vector<std::string> odd{"it's", "", "a b", "$x", "plain-1.0"};
  CHECK(words(shell_text(odd)) == odd);
  for (const char* const bad : {"a 'b", "a | b", "a; b", "a $B", "a && b", "a > b"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(words(bad), InputError);
  }
}

TEST_CASE("megatron flags: lists of layers") {
  using megatron::pattern_of;
  CHECK(*pattern_of("4") == 4);
  CHECK(pattern_of("([1]*3+[0])*2")->dump() == "[1,1,1,0,1,1,1,0]");
  CHECK(pattern_of("[1,0,1]")->dump() == "[1,0,1]");
  for (const char* const bad : {"", "[1", "[1]*", "[1]*99999999", "x", "[1]]", "1[", "-1"}) {
    CAPTURE(bad);
    CHECK(!pattern_of(bad));
  }
}

TEST_CASE("megatron flags: the table") {
  CHECK(megatron::flags().size() == 651);
  for (const auto& f : megatron::flags())
    for (const auto& s : f.spellings) CHECK(s.starts_with("--"));
  CHECK(megatron::find_flag("--bf16")->memory == "read");
  CHECK(megatron::find_flag("--no-gradient-accumulation-fusion")->value == megatron::FlagValue::off);
  CHECK(megatron::find_flag("--bf-16") == nullptr);
  CHECK(megatron::spelling_of("num_layers") == "--num-layers");
}

}  // namespace oomplan
