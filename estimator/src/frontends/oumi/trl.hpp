// Trainers of TRL other than SFTTrainer: which head, reference, teacher and server Oumi's settings mean.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/settings.hpp"
#include "frontends/trainers/trl.hpp"

namespace oomplan::oumi {

class TrlJob {
 public:
  /// REQUIRES: `m`, `told` and `settings` outlive this.
  TrlJob(const OumiText& text, const OumiMeaning& m, const Telling& told, OumiSettings& settings);

  /// TRL_DPO, TRL_KTO, TRL_GRPO, TRL_GKD, TRL_GOLD.
  bool is_one() const { return !trl_.name.empty(); }
  /// What of it is not described is refused by name. False: there is no answer.
  bool accept();
  std::string head() const { return std::string(trainers::head_of(trl_).head); }
  /// Generates by a vLLM that lives in the trainer's processes, so that there are roles actor and rollout.
  bool has_server() const;
  /// Sequences of a forward pass: a pair is two.
  std::int64_t sequences(std::int64_t of_device) const { return is_one() ? trl_.sequences() * of_device : of_device; }
  /// What caps a sequence; 0: nothing.
  std::int64_t longest() const;
  /// Its adapters of a packed base are made bf16.
  bool casts_adapters() const { return trl_.casts_adapters(); }
  /// The reference model, or the teacher.
  void second_model();
  /// GRPO: a sequence is a prompt and a completion. `tokens`: of both.
  void completions(std::int64_t tokens);
  /// REQUIRES: has_server().
  void server(std::int64_t gpus, std::string_view vllm);

 private:
  std::string group() const;
  std::int64_t completion() const;
  bool uses_vllm() const;
  std::string mode_key() const;
  bool refuse_arguments();
  bool refuse_images();
  bool accept_generation();
  bool accept_teacher();
  void reference();
  void teacher();

  const OumiMeaning& m_;
  const Telling& t_;
  OumiSettings& s_;
  trainers::TrlTrainer trl_;
};

}  // namespace oomplan::oumi
