// Vision-language training under AReaL: images of its own readers of data sets, what a micro-batch and the device hold of them.
#include <doctest/doctest.h>

#include "areal_files.hpp"
#include "catalog/architecture.hpp"
#include "frontends/areal/data_sets.hpp"
#include "job/vision_pass.hpp"

namespace {

using namespace oomplan;
using namespace oomplan::areal_files;

const std::string kData = "train_dataset: {path: hiyouga/geometry3k, type: rl, batch_size: 32}\n";

Source grpo(std::vector<std::string> overrides = {}, const std::string& more = {}) {
  Source s = source("grpo_7b.yaml", "1.0.4");
  s.name = "job.yaml";
  s.overrides = std::move(overrides);
  s.text = R"(
experiment_name: e
trial_name: t
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout: {backend: "vllm:d4", experiment_name: e, trial_name: t}
gconfig: {n_samples: 4, max_new_tokens: 512}
actor:
  path: Qwen/Qwen2.5-VL-3B-Instruct
  backend: "fsdp:d4"
  experiment_name: e
  trial_name: t
  gradient_checkpointing: true
  ppo_n_minibatches: 1
  kl_ctl: 0.0
  mb_spec: {max_tokens_per_mb: 4096}
  optimizer: {type: adam}
vllm: {model: '${actor.path}', gpu_memory_utilization: 0.9}
)" + kData +
           more;
  return s;
}

TEST_CASE("areal: a micro-batch has as many images as its tokens hold, at most those of the rank") {
  const Job job = read(grpo()).job;
  const Role& actor = *job.role("actor");
  const Vision& v = actor.trainer.vision;
  CHECK(v.images == 32);  // 32 prompts * 4 answers on 4 ranks
  CHECK(v.held == 64);    // and again in the micro-batches that are made of them
  CHECK(v.height == 448);
  const VisionPass pass = vision_pass(actor.trainer, actor.engine, *actor.architecture);
  CHECK(pass.patches() == 16 * 32 * 32);  // 448 / 28 squared = 256 tokens an image, 16 images in 4,096 tokens
  // 48 images besides: 1024 patches each, 3 * 2 * 14 * 14 numbers of 4 bytes a patch
  CHECK(held_pixels(actor.trainer, actor.engine, *actor.architecture) == Bytes{48} * 1024 * 1176 * 4);
  const Job few = read(grpo({"train_dataset.batch_size=8"})).job;
  CHECK(vision_pass(few.role("actor")->trainer, actor.engine, *actor.architecture).images == 8);
}

TEST_CASE("areal: the readers' sizes, and tokens of an image by family") {
  const auto tokens = [](const std::string& model, const std::string& path, const std::string& type) {
    const areal::SampleImages image = areal::images_of_sample(path, type);
    Job job = read(grpo({"actor.path=" + model})).job;
    Trainer t = job.role("actor")->trainer;
    t.vision = {.images = image.images, .height = image.height, .width = image.width};
    const Architecture& a = *job.role("actor")->architecture;
    return image_tokens(a.tower, vision_pass(t, EngineKind::fsdp2, a));
  };
  CHECK(tokens("Qwen/Qwen2-VL-7B", "BUAADreamer/clevr_count_70k", "sft") == 150);    // 420 x 280: 15 x 10
  CHECK(tokens("Qwen/Qwen2.5-VL-3B-Instruct", "hiyouga/geometry3k", "sft") == 324);  // 504 x 504
  CHECK(tokens("Qwen/Qwen3-VL-2B-Instruct", "hiyouga/geometry3k", "rl") == 196);     // 14 x 14 of 32 pixels
  CHECK(areal::images_of_sample("/data/ViRL39K/train.parquet", "rl").images == 1);
  CHECK(areal::images_of_sample("openai/gsm8k", "rl").images == 0);
}

TEST_CASE("areal: Qwen2-VL's base is as large as the instructed model, as published") {
  CHECK(read(grpo({"actor.path=Qwen/Qwen2-VL-7B"})).job.role("actor")->architecture->tower.kind == "qwen2_vl");
}

TEST_CASE("areal: the tower is trained and sent, and pixels of the whole batch lie beside every phase") {
  const Estimate e = estimate_quick(read(grpo()).job);
  const Estimate less = estimate_quick(read(grpo({"train_dataset.batch_size=16"})).job);
  // 32 images in place of 64 are held besides the 16 of the micro-batch: none of the step's tensors changes
  const Bytes image = Bytes{1024} * 1176 * 4;
  CHECK(need(e, "actor.backward") - need(less, "actor.backward") >= 32 * image - 64 * kMiB);
  CHECK(need(e, "actor.backward") - need(less, "actor.backward") <= 32 * image + 64 * kMiB);
  CHECK(need(e, "actor.log_probs") > need(less, "actor.log_probs"));
}

TEST_CASE("areal: what it does not train with images is refused by name") {
  const std::string split = refusal(grpo({"actor.backend=fsdp:d2c2"}));
  CHECK_MESSAGE(split.find("a vision tower whose language model is split") != std::string::npos, split);
  const std::string megatron = refusal(grpo({"actor.backend=megatron:d4"}));
  CHECK_MESSAGE(megatron.find("not supported yet") != std::string::npos, megatron);
  const std::string critic =
      refusal(grpo({"+critic.path=Qwen/Qwen2.5-VL-3B-Instruct", "+critic.backend=fsdp:d4", "+critic.experiment_name=e",
                    "+critic.trial_name=t", "+critic.is_critic=true", "+critic.mb_spec.max_tokens_per_mb=4096",
                    "+critic.scheduling_strategy.type=colocation", "+critic.scheduling_strategy.target=actor"}));
  CHECK_MESSAGE(critic.find("its loss stops at values that are none") != std::string::npos, critic);
}

}  // namespace
