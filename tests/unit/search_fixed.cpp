// Keys that a search holds: those of the job, in our words and in the file's.
#include "estimate_jobs.hpp"

#include <oomplan/units/errors.hpp>

using namespace oomplan;

namespace {

const std::string kJob =
    "oomplan: 1\nframework: verl 0.9.0\ngpus: 4 x A100-80GB\nmodel: qwen2.5-0.5b\nprompt_tokens: 512\nresponse_tokens: 1k\n"
    "rollout: {engine: vllm 0.11.0, layout: t2, gpu_memory_utilization: 0.5}\nactor: {layout: d2, tokens_per_micro_batch: 4k}\n";

std::string error_of(const std::string& text, const std::vector<std::string>& fixed) {
  Space space;
  space.fixed = fixed;
  try {
    search(job_of(text), space, 1);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a key that a search should hold and no role has is refused with the nearest") {
  CHECK(error_of(kJob, {"layout", "actor.recompute", "gpu_memory_utilization", "rollout.max_model_len"}).empty());
  const std::string two = error_of(kJob, {"layuot", "actor.layout", "critic.layout"});
  CHECK(two.find("'layuot', expected a key of the job to hold, such as layout (did you mean 'layout'?)") != std::string::npos);
  CHECK(two.find("'critic.layout'") != std::string::npos);
  CHECK(two.find("'actor.layout'") == std::string::npos);
  const std::string server = "oomplan: 1\ngpus: 1 x H100-80GB\nmodel: qwen3-8b\nserver: {engine: vllm 0.19.1}\n";
  CHECK(error_of(server, {"max_running_request"}).find("did you mean 'max_running_requests'?") != std::string::npos);
}
