// Vision towers beside a language model: what they are made of, what they keep, by hand, and what is refused.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>

#include <oomplan/oomplan.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "catalog/read_config.hpp"
#include "estimate/figures.hpp"
#include "job/training_loop.hpp"
#include "job/validate_vision.hpp"
#include "layers/vision.hpp"
#include "training/plan.hpp"

namespace {

using namespace oomplan;

Role with_images(const std::string& model) {
  Role role;
  role.name = "trainer";
  role.kind = RoleKind::trainer;
  role.engine = EngineKind::single;
  role.architecture = Catalog::builtin().model(model).architecture;
  Trainer& t = role.trainer;
  t.framework = Framework::torch;
  t.kernels = Kernels::hf_sdpa;
  t.storage = t.compute = t.reduce = DType::bf16;
  t.recompute = Recompute::none;
  t.head = LossHead::hf_loss;
  t.sequences_per_micro_batch = 1;
  t.sequence_tokens = 2048;
  t.vision = {.images = 2, .height = 448, .width = 672, .train = TowerTraining::all};
  return role;
}

PassOptions pass_of(const Role& role) {
  return train_pass(role.trainer, role.engine, *role.architecture, false, role.trainer.tokens_per_micro_batch, false);
}

Lora& with_adapters(Role& role) {
  role.trainer.lora.rank = 8;
  role.trainer.vision.train = TowerTraining::none;
  return role.trainer.lora;
}

/// Bytes that an inner block of the tower's first run keeps for backward.
Bytes kept_by_a_block(const Role& role) {
  Bytes all = 0;
  for (const auto& [site, times] :
       saved_of_layer(*role.architecture, pass_of(role), static_cast<int>(role.architecture->runs.size())))
    all += site.bytes.value({}) * times;
  return all;
}

TEST_CASE("vision: the tape has the parameters of the catalog, and of the tower what is trained") {
  for (const char* model :
       {"Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct",
        "Qwen/Qwen2.5-VL-72B-Instruct", "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
        "Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.5-27B", "google/gemma-3-4b-it"}) {
    CAPTURE(model);
    Role role = with_images(model);
    std::int64_t all = 0, tower = 0, merger = 0;
    for (const Parameter& p : parameters(*role.architecture)) {
      if (p.part == ParameterPart::mtp) continue;  // transformers leaves them out
      all += p.total();
      if (p.part != ParameterPart::tower) continue;
      tower += p.total();
      const auto has = [&p](const char* word) { return p.name.find(word) != std::string::npos; };
      if (has("merger") || has("deepstack") || has("mm_")) merger += p.total();
    }
    CHECK(merger > 0);
    for (const auto& [train, expected] : {std::pair(TowerTraining::all, all),
                                          {TowerTraining::projector, all - tower + merger},
                                          {TowerTraining::none, all - tower}}) {
      role.trainer.vision.train = train;
      const auto tape = make_tape(*role.architecture, pass_of(role));
      std::int64_t held = 0, trained = 0;
      for (const TapeLeaf& leaf : tape->leaves) {
        const std::int64_t elements = leaf.elements() * tape->stations[leaf.station].count;
        held += elements;
        trained += leaf.trainable ? elements : 0;
      }
      CHECK(held == all);
      CHECK(trained == expected);
    }
  }
}

TEST_CASE("vision: towers, projectors and language models have transformers' numbers of parameters") {
  // transformers 5.23: the models built on the meta device
  struct Counted {
    const char* model;
    std::int64_t tower, projector, language;
  };
  for (const Counted& c : {Counted{"Qwen/Qwen2-VL-7B-Instruct", 631183360, 44575744, 7615616512},
                           {"Qwen/Qwen2.5-VL-7B-Instruct", 631975680, 44574464, 7615616512},
                           {"Qwen/Qwen3-VL-2B-Instruct", 306242560, 100714496, 1720574976},
                           {"Qwen/Qwen3-VL-8B-Instruct", 415891440, 160496896, 8190735360},
                           {"Qwen/Qwen3-VL-30B-A3B-Instruct", 415891440, 122739968, 30532122624},
                           {"Qwen/Qwen3.5-27B", 415891440, 44838656, 26895998464},
                           {"Qwen/Qwen3.5-35B-A3B", 415891440, 30679808, 34660610688},
                           {"google/gemma-3-4b-it", 416866032, 2950272, 3880263168},
                           {"google/gemma-3-27b-it", 416866032, 6194304, 27009346304}}) {
    CAPTURE(c.model);
    const Role role = with_images(c.model);
    const auto held = [&](auto&& belongs) {
      const auto tape = make_tape(*role.architecture, pass_of(role));
      std::int64_t all = 0;
      for (const TapeLeaf& leaf : tape->leaves)
        if (belongs(leaf.name)) all += leaf.elements() * tape->stations[leaf.station].count;
      return all;
    };
    const auto projects = [](const std::string& name) {
      return name.starts_with("visual.merger") || name.starts_with("visual.deepstack") || name.starts_with("visual.projector");
    };
    CHECK(held([&](const std::string& name) { return name.starts_with("visual.") && !projects(name); }) == c.tower);
    CHECK(held(projects) == c.projector);
    CHECK(held([](const std::string& name) { return !name.starts_with("visual."); }) == c.language);
  }
}

TEST_CASE(
    "vision: blocks of Qwen2.5-VL attend by windows but for four, those of Qwen2-VL never, and three of Qwen3-VL feed layers") {
  const auto runs = tower_runs(with_images("Qwen/Qwen2.5-VL-7B-Instruct").architecture->tower);
  REQUIRE(runs.size() == 8);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    CHECK(runs[i].windowed == (i % 2 == 0));
    CHECK(runs[i].count == (i % 2 == 0 ? 7 : 1));
  }
  const auto plain = tower_runs(with_images("Qwen/Qwen2-VL-7B-Instruct").architecture->tower);
  REQUIRE(plain.size() == 1);
  CHECK(plain[0].count == 32);
  const auto deep = tower_runs(with_images("Qwen/Qwen3-VL-8B-Instruct").architecture->tower);
  REQUIRE(deep.size() == 4);
  for (std::size_t i = 0; i < deep.size(); ++i) {
    CHECK(deep[i].feeds_layers == (i < 3));
    CHECK(deep[i].count == (i == 0 ? 9 : i < 3 ? 8 : 2));
  }
  CHECK(first_tower_run(*with_images("Qwen/Qwen3-VL-8B-Instruct").architecture) == 4);
}

TEST_CASE("vision: images are made multiples of a merged patch, halves to the even one") {
  Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
  const auto grid = [&](std::int64_t height, std::int64_t width) {
    role.trainer.vision.height = height;
    role.trainer.vision.width = width;
    const VisionPass pass = vision_pass(role.trainer, role.engine, *role.architecture);
    return std::pair(pass.rows, pass.columns);
  };
  CHECK(grid(448, 672) == std::pair<std::int64_t, std::int64_t>(32, 48));
  CHECK(grid(41, 43) == std::pair<std::int64_t, std::int64_t>(2, 4));  // 1.46 and 1.54 of 28
  CHECK(grid(42, 70) == std::pair<std::int64_t, std::int64_t>(4, 4));  // 1.5 and 2.5
  CHECK(grid(1, 13) == std::pair<std::int64_t, std::int64_t>(2, 2));
  const Role gemma = with_images("google/gemma-3-4b-it");  // images are made as large as the table of positions
  const VisionPass fixed = vision_pass(gemma.trainer, gemma.engine, *gemma.architecture);
  CHECK(fixed.rows == 64);
  CHECK(fixed.columns == 64);
  CHECK(image_tokens(gemma.architecture->tower, fixed) == 256);
  const VisionPass pass{.images = 2, .rows = 32, .columns = 48};
  CHECK(image_tokens(role.architecture->tower, pass) == 384);
}

TEST_CASE("vision: what a block keeps, by hand") {
  Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
  const std::int64_t patches = 2 * 32 * 48, v = 1280, f = 3420, heads = 16, windows = 2 * 4 * 6;
  const std::int64_t flash = patches * (28 * v + 8 * f + 8 + 4 * heads);
  CHECK(kept_by_a_block(role) == flash + 2 * patches * v + 24 * windows);
  role.trainer.kernels = Kernels::hf_flash;
  CHECK(kept_by_a_block(role) == flash + 16);
  role.trainer.vision.train = TowerTraining::none;
  CHECK(kept_by_a_block(role) == 0);
}

TEST_CASE("vision: a frozen tower costs less, checkpoints take most of that away") {
  Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
  const auto forward = [&](TowerTraining train, Recompute recompute) {
    TrainingCase c;
    c.architecture = role.architecture;
    c.trainer = role.trainer;
    c.trainer.vision.train = train;
    c.trainer.recompute = recompute;
    c.engine = EngineKind::single;
    return training_figures(c).forward;
  };
  CHECK(forward(TowerTraining::none, Recompute::none) < forward(TowerTraining::all, Recompute::none));
  CHECK(forward(TowerTraining::none, Recompute::none) <= forward(TowerTraining::projector, Recompute::none));
  CHECK(forward(TowerTraining::none, Recompute::full) <= forward(TowerTraining::all, Recompute::full));
}

TEST_CASE("vision: adapters reach into the tower where its modules have the targets' names") {
  Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
  Lora& lora = with_adapters(role);
  const auto in_tower = [&] {
    const auto tape = make_tape(*role.architecture, pass_of(role));
    std::int64_t pairs = 0;
    for (const TapeLeaf& leaf : tape->leaves) {
      const bool adapter = leaf.name.find(".lora_A.") != std::string::npos;
      CHECK(leaf.trainable == (leaf.name.find(".lora_") != std::string::npos));
      if (adapter && leaf.name.starts_with("visual.")) pairs += tape->stations[leaf.station].count;
    }
    return pairs;
  };
  lora.targets = {"q_proj", "k_proj", "v_proj", "o_proj"};
  CHECK(in_tower() == 0);
  lora.targets = {"q_proj", "gate_proj", "down_proj"};
  CHECK(in_tower() == 32 * 2);
  lora.targets = {};  // all-linear: five matrices a block, two of the merger
  CHECK(in_tower() == 32 * 5 + 2);
}

TEST_CASE("vision: what is not described is refused with the knob's name") {
  struct Case {
    const char* knob;
    std::function<void(Role&)> change;
  };
  const Case cases[] = {
      {"use_orig_params", [](Role& r) { r.engine = EngineKind::fsdp1; }},
      {"engine", [](Role& r) { r.engine = EngineKind::deepspeed; }},
      {"framework", [](Role& r) { r.trainer.loop = training_loop(r.trainer.framework = Framework::agilerl); }},
      {"layout", [](Role& r) { r.trainer.layout.tensor = 2; }},
      {"layout", [](Role& r) { r.trainer.layout.context = 2; }},
      {"kernels", [](Role& r) { r.trainer.kernels = Kernels::torchtitan; }},
      {"liger", [](Role& r) { r.trainer.liger.rope = true; }},
      {"transformers", [](Role& r) { r.trainer.transformers_version = "4.57.1"; }},
      {"autocast", [](Role& r) { r.trainer.autocast = true; }},
      {"vision.train", [](Role& r) { r.trainer.lora.rank = 8; }},
      {"lora.dora", [](Role& r) { with_adapters(r).dora = true; }},
      {"lora.kind", [](Role& r) { with_adapters(r).kind = AdapterKind::vera; }},
      {"lora.base", [](Role& r) { with_adapters(r).base.format = BaseFormat::nf4; }},
      {"lora.targets", [](Role& r) { with_adapters(r).targets = {"q_proj", "proj"}; }},
      {"lora.rank",
       [](Role& r) {
         with_adapters(r);
         r.architecture = Catalog::builtin().model("Qwen/Qwen3-VL-30B-A3B-Instruct").architecture;
       }},
      {"recompute_every", [](Role& r) { r.trainer.recompute_every = 2; }},
      {"offload_checkpoints", [](Role& r) { r.trainer.offload_checkpoints = true; }},
      {"reference", [](Role& r) { r.trainer.reference = ReferencePass::model; }},
      {"vision.height", [](Role& r) { r.trainer.vision.height = 0; }},
      {"vision.width", [](Role& r) { r.trainer.vision.width = 0; }},
      {"vision.images", [](Role& r) { r.trainer.vision.images = 6; }},  // 384 tokens each, of 2048
      {"vision.images", [](Role& r) { r.architecture = Catalog::builtin().model("qwen2.5-7b").architecture; }},
  };
  CHECK(vision_problems(with_images("Qwen/Qwen2.5-VL-7B-Instruct")).empty());
  for (const Case& c : cases) {
    Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
    c.change(role);
    CAPTURE(c.knob);
    const auto problems = vision_problems(role);
    REQUIRE(problems.size() == 1);
    CHECK(problems[0].knob == c.knob);
  }
  CHECK(unsupported_tower(Catalog::builtin().model("meta-llama/Llama-4-Scout-17B-16E-Instruct").architecture->tower) ==
        "training of a model with a vision tower ('llama4') is not supported yet");
}

TEST_CASE("vision: of a tower that no image comes to the tape has the parameters, frozen, and nothing else") {
  for (const char* model : {"Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Instruct",
                            "google/gemma-3-4b-it", "google/gemma-4-E4B", "google/gemma-4-26B-A4B", "google/gemma-4-12B",
                            "meta-llama/Llama-4-Scout-17B-16E-Instruct", "mistralai/Mistral-Small-3.2-24B-Instruct-2506"}) {
    CAPTURE(model);
    Role role = with_images(model);
    role.trainer.kernels = Kernels::hf_eager;
    role.trainer.vision.images = 0;
    std::int64_t all = 0, tower = 0;
    for (const Parameter& p : parameters(*role.architecture)) {
      if (p.part == ParameterPart::mtp || p.kind == ParameterKind::table || p.kind == ParameterKind::buffer) continue;
      all += p.total();
      tower += p.part == ParameterPart::tower ? p.total() : 0;
    }
    REQUIRE(tower > 0);
    const auto tape = make_tape(*role.architecture, pass_of(role));
    std::int64_t held = 0, frozen = 0;
    for (const TapeLeaf& leaf : tape->leaves) {
      const Station& at = tape->stations[leaf.station];
      held += leaf.elements() * at.count;
      frozen += at.called ? 0 : leaf.elements() * at.count;
      CHECK(leaf.trainable == at.called);
    }
    CHECK(held == all);
    CHECK(frozen == tower);
    for (const Station& at : tape->stations) {
      CAPTURE(at.run);
      if (!at.called) CHECK((at.forward[0].events.empty() && at.backward[0].events.empty()));
    }
  }
}

TEST_CASE("vision: adapters that reach into a tower that no image comes to are there, and never trained") {
  Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
  role.trainer.vision.images = 0;
  with_adapters(role).targets = {"up_proj"};
  const auto tape = make_tape(*role.architecture, pass_of(role));
  const Tower& tower = role.architecture->tower;
  std::int64_t unreached = 0;
  for (const TapeLeaf& leaf : tape->leaves) {
    if (!leaf.unreached) continue;
    CHECK_FALSE(leaf.trainable);
    unreached += leaf.elements() * tape->stations[leaf.station].count;
  }
  CHECK(unreached == tower.layers * 8 * (tower.hidden + tower.width));
}

TEST_CASE("vision: a pass that cannot be run throws, whoever asks for it") {
  const auto refused = [](const std::function<void(PassOptions&)>& change) {
    const Role role = with_images("Qwen/Qwen2.5-VL-7B-Instruct");
    PassOptions pass = pass_of(role);
    change(pass);
    try {
      (void)make_tape(*role.architecture, pass);
    } catch (const InputError& e) {
      return e.problems.at(0).why.find("not supported yet") != std::string::npos;
    }
    return false;
  };
  CHECK(refused([](PassOptions& o) { o.kernels.autocast = true; }));
  CHECK(refused([](PassOptions& o) { o.kernels.ulysses = 2; }));
  CHECK(refused([](PassOptions& o) {
    o.recompute = Recompute::full;
    o.recompute_every = 2;
  }));
  CHECK_FALSE(refused([](PassOptions&) {}));
}

}  // namespace

TEST_CASE("a model with a tower and no images: its parameters stay, a note says so, and a refusal says what to write") {
  const auto job = [](const std::string& model, const std::string& engine = "single", const std::string& optimizer = "sgd") {
    return read({.text = "oomplan: 1\nframework: torch\ngpus: 1 x H100-80GB\nmodel: " + model + "\ntrainer: {engine: " + engine +
                         ", kernels: hf_eager, optimizer: " + optimizer +
                         ", precision: {storage: bf16}, sequences_per_micro_batch: 1, "
                         "sequence_tokens: 1k, micro_batches: 1}\n",
                 .name = "job.yaml"});
  };
  for (const char* model :
       {"google/gemma-3-4b-it", "Qwen/Qwen2.5-VL-7B-Instruct", "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        "Qwen/Qwen3-VL-4B-Instruct", "google/gemma-4-E4B", "meta-llama/Llama-4-Scout-17B-16E-Instruct"}) {
    CAPTURE(model);
    const Reading whole = job(model);
    CHECK_NOTHROW(estimate_quick(whole.job));
    REQUIRE(whole.notes.size() == 1);
    CHECK(whole.notes[0].text.find("no vision.images: text alone is trained") != std::string::npos);
    std::string told;
    try {
      estimate_quick(job(model, "deepspeed", "adamw, zero: {stage: 2}").job);
    } catch (const InputError& e) {
      for (const Problem& one : e.problems) told += to_text(one);
    }
    CHECK(told.find("its language model by itself is model: " + std::string(model) + ":text") != std::string::npos);
    const Reading text = job(std::string(model) + ":text");
    CHECK_NOTHROW(estimate_quick(text.job));
    REQUIRE(text.notes.size() == 1);
    CHECK(text.notes[0].text.find("is the language model by itself") != std::string::npos);
  }
  CHECK_THROWS_AS(job("qwen3-8b:text"), InputError);
}

TEST_CASE("the language model of a catalog entry is what its text_config reads as") {
  const auto text_of = [](const std::string& row) {
    return read_config(R"({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
                           "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
                           "sliding_window": 1024, "sliding_window_pattern": 6, "hidden_activation": "gelu", "max_position_embeddings": 131072})",
                       row);
  };
  Architecture alone = *Catalog::builtin().model("google/gemma-3-4b-it:text").architecture;
  Architecture own = text_of("x");
  CHECK(alone.family == own.family);
  CHECK(alone.runs == own.runs);
  CHECK(alone.tied == own.tied);
  CHECK(alone.vocab == own.vocab);
}
