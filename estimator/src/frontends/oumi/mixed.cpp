#include "frontends/oumi/mixed.hpp"

namespace oomplan::oumi {

Mixed mixed_precision(const Telling& t, const OumiMeaning& m) {
  constexpr std::string_view kOfTraining = "training.mixed_precision_dtype", kOfFsdp = "fsdp.mixed_precision";
  const std::string said = t.text(kOfTraining, "NONE");
  if (said != "NONE") return {said == "FP16" ? "fp16" : "bf16", kOfTraining};
  if (m.engine == "fsdp1" && t.has(kOfFsdp)) return {t.text(kOfFsdp), kOfFsdp};
  return {};
}

void put_mixed_precision(OumiSettings& s, const Mixed& mixed, const std::string& stored, const OumiMeaning& m, bool adapters) {
  const bool sharded = m.engine == "fsdp1";
  // FSDP's policy has this format throughout, and what is trained is cast to fp32 (accelerate/accelerator.py prepare_model)
  const std::string computed = sharded ? mixed.format : stored;
  if (sharded && !adapters) s.put("trainer.precision.storage", "fp32", OumiSettings::by_code("accelerate's prepare_model"));
  for (const char* knob : {"trainer.precision.compute", "trainer.precision.reduce"}) s.put(knob, computed, s.origin(mixed.key));
  s.put("trainer.precision.autocast", mixed.format, s.origin(mixed.key));
  s.put("trainer.autocast", "true", s.origin(mixed.key));
}

}  // namespace oomplan::oumi
