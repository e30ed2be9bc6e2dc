// --use-megatron-fsdp and its flags read as a job, and what Megatron itself refuses beside them.
#include <doctest/doctest.h>

#include <string>

#include <oomplan/oomplan.hpp>

#include "job/knobs.hpp"

namespace oomplan {
namespace {

const std::string kFsdpModel =
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--ffn-hidden-size 14336 --swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 "
    "--global-batch-size 64 --attention-dropout 0 --hidden-dropout 0 --bf16 --use-distributed-optimizer "
    "--tokenizer-type NullTokenizer --vocab-size 128255 --no-gradient-accumulation-fusion --use-megatron-fsdp "
    "--ckpt-format fsdp_dtensor ";

Source under_fsdp(const std::string& more) {
  Source s;
  s.text = "torchrun --nproc-per-node 8 pretrain_gpt.py " + kFsdpModel + more;
  s.name = "command line";
  s.dialect = "megatron";
  return s;
}
std::string problems_of(const Source& s) {
  try {
    (void)read(s);
  } catch (const InputError& e) {
    std::string out;
    for (const auto& p : e.problems) out += to_text(p) + "\n";
    return out;
  }
  return "";
}

TEST_CASE("megatron-fsdp flags: a command becomes a job") {
  const auto said = [](const std::string& more, const std::string& knob) {
    return get(read(under_fsdp(more)).job, "trainer." + knob);
  };
  const std::string all = "--data-parallel-sharding-strategy optim_grads_params ";
  CHECK(said(all, "megatron_fsdp") == "optim_grads_params");
  CHECK(said(all, "communication_unit_size") == "auto");
  CHECK(said(all + "--suggested-communication-unit-size 400000000", "communication_unit_size") == "390625k");
  CHECK(said(all, "fsdp_double_buffer") == "false");
  CHECK(said(all + "--fsdp-double-buffer", "fsdp_double_buffer") == "true");
  CHECK(said(all, "memory_efficient_load") == "false");
  CHECK(said(all + "--init-model-with-meta-device", "memory_efficient_load") == "true");
  CHECK(said(all, "overlap_grad_reduce") == "false");
  CHECK(said("--overlap-grad-reduce --overlap-param-gather", "megatron_fsdp") == "no_shard");
  CHECK(said("--overlap-grad-reduce --overlap-param-gather", "overlap_grad_reduce") == "true");
}

TEST_CASE("megatron-fsdp flags: what does not run is refused") {
  const auto refused = [](const std::string& more, const char* part) {
    const std::string told = problems_of(under_fsdp(more));
    CHECK_MESSAGE(told.find(part) != std::string::npos, told);
  };
  refused("", "--overlap-param-gather and --overlap-grad-reduce beside it");
  refused("--ckpt-format torch_dist", "--ckpt-format fsdp_dtensor");
  refused("--fsdp-manual-registration", "--use-megatron-fsdp and --use-nccl-ub beside it");
  const std::string all = "--data-parallel-sharding-strategy optim_grads_params ";
  refused(all + "--check-weight-hash-across-dp-replicas-interval 10", "no replicas to compare");
  refused(all + "--use-nccl-ub", "not supported yet: NCCL's user buffers");
  refused(all + "--pipeline-model-parallel-size 2", "not supported yet: a pipeline under Megatron-FSDP");
  refused(all + "--use-precision-aware-optimizer", "not supported yet: the precision-aware optimizer under Megatron-FSDP");
}

}  // namespace
}  // namespace oomplan
