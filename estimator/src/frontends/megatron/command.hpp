// A command line of Megatron's pretrain_gpt.py as a job of one role, "trainer":
// `torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py --tensor-model-parallel-size 4 ...`.
//
// Nothing is started. Source::text is the command as a shell would be given it (quotes, backslashes, several lines). Overrides
// are those of a job file: what no flag says, such as gpus="32 x H200-141GB" or model=meta-llama/Llama-3.1-70B.
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"

namespace oomplan::megatron {

/// Throws InputError with all that is wrong or not supported yet, in the words of the command line.
Reading read_command(const Source&, const Catalog&);

}  // namespace oomplan::megatron
