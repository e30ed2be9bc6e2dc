#include "frontends/relax/guide.hpp"

#include "frontends/slime/guide.hpp"

namespace oomplan::relax {

std::vector<GuidePoint> guide_points(const slime::SlimeText& text, const slime::SlimeMeaning& m) {
  slime::GuideWriter out(text, m);
  out.recompute("1. recomputation");
  out.tokens("2. tokens of a GPU");
  out.tokens_of_log_probs("2. tokens of a GPU");
  out.dynamic_batches("3. dynamic batches");
  out.fixed_batches("4. fixed micro-batches");
  out.optimizer_on_host("5. optimizer on the CPU");
  out.loss("6. loss that is computed again");
  out.chunks_of_log_probs("7. log-probs in chunks");
  out.update_buffer("8. buffer of the weight update");
  out.weights_on_host("9. weights backuper");
  out.margin("10. margin of the trainer");
  out.server_fraction("11. fraction of SGLang");
  out.stages("12. layers of the stages");
  return out.take();
}

}  // namespace oomplan::relax
