// TRL's trainers other than SFTTrainer, as their own scripts start them: head, reference, lengths and vLLM.
#pragma once
#include <cstdint>
#include <string>

#include "frontends/trainers/settings.hpp"
#include "frontends/trainers/trl.hpp"
#include "frontends/transformers/meaning.hpp"

namespace oomplan::transformers {

class TrlJob {
 public:
  /// REQUIRES: all of them outlive this.
  TrlJob(const HfText& text, const HfMeaning& m, const Telling& told, trainers::TreeSettings& settings);

  /// DPO, KTO, GRPO, and reward models.
  bool is_one() const { return !trl_.name.empty(); }
  /// What of it is not described is refused by name. False: there is no answer.
  bool accept();
  std::string head() const { return std::string(trainers::head_of(trl_).head); }
  /// vLLM lives in the trainer's processes, so that there are roles actor and rollout.
  bool has_server() const;
  /// Sequences of a forward pass: a pair is two.
  std::int64_t sequences(std::int64_t of_device) const { return is_one() ? trl_.sequences() * of_device : of_device; }
  bool casts_adapters() const { return trl_.casts_adapters(); }
  /// `policy`: the format in which the policy is stored.
  void reference(const std::string& policy);
  /// GRPO: a sequence is a prompt and a completion. `tokens`: of both.
  void completions(std::int64_t tokens);
  /// REQUIRES: has_server().
  void server(std::int64_t gpus);

 private:
  bool accept_generation();

  const HfMeaning& m_;
  const Telling& t_;
  trainers::TreeSettings& s_;
  trainers::TrlTrainer trl_;
};

}  // namespace oomplan::transformers
