// Training programs: what is folded equals what is written and expanded, for every way to hold, gather, recompute and reduce.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "training_fold.hpp"

namespace {

using namespace oomplan;
using namespace oomplan::fold_cases;

TEST_CASE("training: fold equals trace for every way to recompute, to wrap, to synchronise and to reshard") {
  int programs = 0;
  for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
    for (const std::int64_t ranks : {1, 4, 6})
      for (const auto recompute : {Recompute::none, Recompute::full})
        for (const bool reentrant : {false, true})
          for (const std::int64_t micro_batches : {1, 2, 3})
            for (const bool sync : {true, false})
              for (const int wrap : {0, 1, 2, 3})
                for (const int reshard : {0, 1, 2, 3}) {
                  if (reentrant && recompute == Recompute::none) continue;
                  if (engine == EngineKind::single && (ranks > 1 || wrap > 0 || reshard > 0 || !sync)) continue;
                  if (ranks == 6 && (wrap == 1 || reshard == 1)) continue;
                  Setting s = usual();
                  s.engine = engine;
                  s.trainer.layout.data = ranks;
                  s.trainer.recompute = recompute;
                  s.trainer.reentrant = reentrant;
                  s.micro_batches = micro_batches;
                  s.trainer.gradient_sync_every_micro_batch = sync;
                  s.trainer.wrap_embedding = (wrap & 1) != 0;
                  s.trainer.wrap_head = (wrap & 2) != 0;
                  s.trainer.reshard_after_forward = (reshard & 1) != 0;
                  s.trainer.root_reshard = (reshard & 2) != 0;
                  CAPTURE(static_cast<int>(engine));
                  CAPTURE(ranks);
                  CAPTURE(text(recompute, reentrant));
                  CAPTURE(micro_batches);
                  CAPTURE(sync);
                  CAPTURE(wrap);
                  CAPTURE(reshard);
                  check(s);
                  ++programs;
                }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for every way of DDP to hold gradients") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const bool views : {false, true})
      for (const bool sync : {false, true})
        for (const std::int64_t micro_batches : {1, 2, 4})
          for (const std::int64_t rank : {0, 8})
            for (const auto recompute : {Recompute::none, Recompute::full}) {
              Setting s = usual();
              if (rank > 0 && architecture->tied) continue;
              s.architecture = architecture;
              s.engine = EngineKind::ddp;
              s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
              s.trainer.lora.rank = rank;
              s.trainer.recompute = recompute;
              s.trainer.gradient_as_bucket_view = views;
              s.trainer.gradient_sync_every_micro_batch = sync;
              s.micro_batches = micro_batches;
              CAPTURE(architecture->name);
              CAPTURE(views);
              CAPTURE(sync);
              CAPTURE(micro_batches);
              CAPTURE(rank);
              CAPTURE(text(recompute, false));
              check(s);
              ++programs;
            }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for checkpoints of every n-th layer, on the device and on the host") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp1, EngineKind::fsdp2})
      for (const std::int64_t every : {1, 2, 3, 9})
        for (const bool host : {false, true})
          for (const bool reentrant : {false, true}) {
            Setting s = usual();
            s.architecture = architecture;
            s.engine = engine;
            s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
            s.trainer.recompute = Recompute::full;
            s.trainer.recompute_every = every;
            s.trainer.offload_checkpoints = host;
            s.trainer.reentrant = reentrant;
            s.trainer.find_unused_parameters = reentrant;
            s.micro_batches = 2;
            CAPTURE(architecture->name);
            CAPTURE(static_cast<int>(engine));
            CAPTURE(every);
            CAPTURE(host);
            CAPTURE(reentrant);
            check(s);
            ++programs;
          }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for activations on the host") {
  using enum OffloadActivations;
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const auto engine : {EngineKind::single, EngineKind::ddp, EngineKind::fsdp1, EngineKind::fsdp2})
      for (const auto how : {verl, save_on_cpu, save_on_cpu_pinned, offload_wrapper, trl})
        for (const auto recompute : {Recompute::none, Recompute::full}) {
          const bool units = engine == EngineKind::fsdp1 || engine == EngineKind::fsdp2;
          if (how == verl ? !units : engine == EngineKind::fsdp2) continue;
          if (how == trl && units) continue;
          if (recompute == Recompute::full && how == offload_wrapper) continue;
          Setting s = usual();
          s.architecture = architecture;
          s.engine = engine;
          s.trainer.storage = s.trainer.compute = s.trainer.reduce = DType::bf16;
          s.trainer.kernels = Kernels::hf_flash;
          s.trainer.recompute = recompute;
          s.trainer.reentrant = how == verl;
          s.trainer.offload_activations = how;
          s.micro_batches = 2;
          CAPTURE(architecture->name);
          CAPTURE(static_cast<int>(engine));
          CAPTURE(static_cast<int>(how));
          CAPTURE(static_cast<int>(recompute));
          check(s);
          ++programs;
        }
  CHECK(programs == 3 * (2 * 2 + 3 * 5 + 2 * 2));
}

TEST_CASE("training: fold equals trace for every way of FSDP1 to gather, to keep and to reduce") {
  int programs = 0;
  for (const auto& architecture : {dense(false), dense(true), experts()})
    for (const std::int64_t ranks : {1, 4, 6})
      for (const bool reshard : {true, false})
        for (const auto backward : {BackwardPrefetch::pre, BackwardPrefetch::post, BackwardPrefetch::none})
          for (const int form : {0, 1, 2, 3, 4, 5})
            for (const bool sync : {false, true})
              for (const std::int64_t micro_batches : {1, 2, 4})
                for (const auto storage : {DType::fp32, DType::bf16}) {
                  Setting s = usual();
                  s.architecture = architecture;
                  s.engine = EngineKind::fsdp1;
                  s.trainer.loop.reshards_root = ranks == 6;
                  s.trainer.layout.data = ranks;
                  s.trainer.storage = storage;
                  s.trainer.reduce = form == 2 ? DType::bf16 : DType::fp32;
                  s.trainer.reshard_after_forward = reshard;
                  s.trainer.backward_prefetch = backward;
                  s.trainer.forward_prefetch = form == 1 || form == 5;
                  s.trainer.recompute = form == 5 ? Recompute::full : Recompute::none;
                  s.trainer.reentrant = form == 5;
                  s.trainer.use_orig_params = form == 2;
                  s.trainer.cpu_offload_policy = form == 3;
                  if (form == 4 && architecture->tied) continue;
                  s.trainer.lora.rank = form == 4 ? 8 : 0;
                  s.trainer.gradient_sync_every_micro_batch = sync;
                  s.micro_batches = micro_batches;
                  if (form == 3 && sync && micro_batches > 1) continue;  // refused
                  CAPTURE(architecture->name);
                  CAPTURE(ranks);
                  CAPTURE(reshard);
                  CAPTURE(static_cast<int>(backward));
                  CAPTURE(form);
                  CAPTURE(sync);
                  CAPTURE(micro_batches);
                  CAPTURE(static_cast<int>(storage));
                  check(s);
                  ++programs;
                }
  MESSAGE(programs << " programs");
}

TEST_CASE("training: fold equals trace for precisions, Ulysses, replicas, offload, padding and short runs of layers") {
  std::vector<std::pair<std::string, Setting>> settings;
  const auto add = [&](const std::string& name, auto&& change) {
    for (const std::int64_t micro_batches : {1, 2}) {
      Setting s = usual();
      s.micro_batches = micro_batches;
      change(s);
      settings.emplace_back(name + " x" + std::to_string(micro_batches), std::move(s));
    }
  };
  for (const auto storage : {DType::fp32, DType::bf16})
    for (const auto compute : {DType::fp32, DType::bf16})
      for (const auto reduce : {DType::fp32, DType::bf16})
        add("precision", [&](Setting& s) {
          s.trainer.storage = storage;
          s.trainer.compute = compute;
          s.trainer.reduce = reduce;
          s.trainer.kernels = compute == DType::fp32 ? Kernels::hf_eager : Kernels::hf_flash;
        });
  add("autocast", [](Setting& s) { s.trainer.autocast = true; });
  add("autocast of fp32 parameters", [](Setting& s) {
    s.engine = EngineKind::single;
    s.trainer.layout.data = 1;
    s.trainer.autocast = true;
    s.trainer.compute = DType::fp32;
  });
  for (const auto framework : {Framework::verl, Framework::areal})
    for (const std::int64_t context : {2, 4})
      add("ulysses", [&](Setting& s) {
        s.trainer.framework = framework;
        s.trainer.layout.context = context;
        s.trainer.sequences_per_micro_batch = 0;
        s.trainer.tokens_per_micro_batch = 5000;
        s.trainer.head = framework == Framework::verl ? LossHead::verl_flash_ce : LossHead::areal_compiled;
      });
  for (const auto format : {AdapterFormat::fp32, AdapterFormat::storage})
    for (const auto engine : {EngineKind::single, EngineKind::fsdp2})
      for (const auto recompute : {Recompute::none, Recompute::full})
        for (const bool wrap : {false, true})
          add("adapters", [&](Setting& s) {
            s.engine = engine;
            if (engine == EngineKind::single) s.trainer.layout.data = 1;
            s.trainer.storage = DType::bf16;
            s.trainer.recompute = recompute;
            s.trainer.wrap_embedding = s.trainer.wrap_head = wrap;
            s.trainer.lora.rank = 8;
            s.trainer.lora.dropout = wrap ? 0.1 : 0;
            s.trainer.lora.format = format;
            s.trainer.gradient_sync_every_micro_batch = wrap;
          });
  for (const std::int64_t over : {0, 2})
    for (const bool prefetch : {false, true})
      for (const bool wrap : {false, true})
        for (const bool root : {false, true})
          for (const int layers : {1, 2, 5})
            add("resharded over fewer ranks, prefetched", [&](Setting& s) {
              s.trainer.reshard_ranks = over;
              s.trainer.forward_prefetch = prefetch;
              s.trainer.wrap_embedding = s.trainer.wrap_head = wrap;
              s.trainer.root_reshard = root;
              s.micro_batches = 2;
              Architecture a = layers == 1 ? *experts() : *s.architecture;
              if (layers > 1) a.runs[0].count = layers;
              s.architecture = std::make_shared<const Architecture>(a);
            });
  add("replicas", [](Setting& s) { s.trainer.replicas = 2; });
  add("parameters on the host", [](Setting& s) { s.trainer.cpu_offload_policy = true; });
  add("padding", [](Setting& s) {
    s.trainer.padding_mask = true;
    s.trainer.kernels = Kernels::hf_sdpa;
    s.trainer.sequences_per_micro_batch = 2;
  });
  add("math kernel", [](Setting& s) {
    s.trainer.sdpa_math = true;
    s.trainer.kernels = Kernels::hf_sdpa;
  });
  add("outputs kept", [](Setting& s) { s.trainer.keep_outputs = true; });
  add("logits of the last tokens", [](Setting& s) { s.trainer.logits_to_keep = 100; });
  add("value head", [](Setting& s) { s.critic = true; });
  for (const auto form : {OptimizerForm::foreach, OptimizerForm::fused, OptimizerForm::loop})
    add("optimizer", [&](Setting& s) { s.trainer.optimizer_form = form; });
  for (const std::int64_t tokens : {512, 1024, 1025, 3000})
    add("chunks", [&](Setting& s) {
      s.trainer.head = LossHead::areal_compiled;
      s.trainer.sequence_tokens = tokens;
    });
  for (const auto head : {LossHead::verl_entropy_chunked, LossHead::verl_entropy_chunked_checkpoint})
    for (const std::int64_t tokens : {1000, 4096, 6144, 8192, 12288})
      add("chunks of verl's entropy", [&](Setting& s) {
        s.trainer.head = head;
        s.trainer.sequence_tokens = tokens;
        s.trainer.autocast = true;
      });
  for (const auto head : {LossHead::verl_fused, LossHead::verl_fused_log_softmax_entropy, LossHead::verl_fused_entropy,
                          LossHead::verl_fused_triton})
    for (const std::int64_t tokens : {300, 512, 700, 1024, 2048, 2700})
      for (const std::int64_t rank : {0, 8})
        add("chunks of verl's fused head", [&](Setting& s) {
          s.trainer.head = head;
          s.trainer.sequence_tokens = tokens;
          s.trainer.autocast = true;
          s.trainer.lora.rank = rank;
        });
  for (const std::int64_t tokens : {1, 2, 3, 4, 100})
    add("rows", [&](Setting& s) {
      s.trainer.head = LossHead::verl_rows;
      s.trainer.sequence_tokens = tokens;
      s.trainer.autocast = true;
    });
  for (const int layers : {1, 2, 3, 4})
    add("layers", [&](Setting& s) {
      Architecture a = *s.architecture;
      a.runs[0].count = layers;
      s.architecture = std::make_shared<const Architecture>(a);
    });
  for (const bool last : {false, true})
    add("matrices gathered in 8 bits", [&](Setting& s) {
      s.trainer.float8_all_gather = true;
      s.trainer.storage = s.trainer.reduce = DType::fp32;
      s.trainer.reshard_last = last;
    });
  for (const auto& [name, setting] : settings) {
    CAPTURE(name);
    check(setting);
  }
  MESSAGE(settings.size() << " programs");
}

}  // namespace
