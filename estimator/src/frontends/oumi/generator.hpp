// Generation by transformers (engine NATIVE: src/oumi/inference/native_text_inference_engine.py) and evaluation by
// lm-evaluation-harness's model "hf" (src/oumi/core/evaluation/backends/lm_harness.py), as a role that generates.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/oumi/job.hpp"
#include "frontends/oumi/settings.hpp"
#include "frontends/telling.hpp"

namespace oomplan::oumi {

/// What a job's maker knows already.
struct GeneratorGiven {
  const OumiText& text;
  const Beside& beside;
  std::string at;  ///< where the model stands: inference_path()
  std::int64_t gpus = 1;
  std::string_view transformers;                          ///< release
  std::string (*format)(std::string_view);                ///< of a name of torch's; "" for others
  std::string_view (*kernels)(std::string_view written);  ///< of an attn_implementation; "" for others
};
/// Settings of the role "generator".
void put_generator(const GeneratorGiven&, const Telling&, OumiSettings&, NativeText& out, std::vector<Note>& notes);

}  // namespace oomplan::oumi
