// What differs among the frameworks that share slime's command line: one line for three parsers, a trainer of Megatron, servers
// of SGLang. slime's row stands in framework.cpp; a framework that was made of slime has its own row in its own folder.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/guide.hpp>
#include <oomplan/job.hpp>

namespace oomplan::slime {

class FlagTable;
struct Release;
struct SlimeText;
struct SlimeMeaning;

/// A flag or word of the framework that is not described, with the value that is.
struct NotYet {
  const char* name;
  const char* what;
  const char* only = "";  ///< the words that are described; "": none, the flag must be off; "*", of a later flag: all
  bool (*described)(const SlimeText&) = nullptr;  ///< nullptr, or whether it is all the same
};

/// A word that branches have and no state has, whose run memory does not tell from that of a word of the states.
struct Branch {
  const char* name;    ///< the argument: "advantage_estimator"
  const char* word;    ///< "gdpo"
  const char* flags;   ///< how its own flags begin; "": it has none
  const char* source;  ///< where it was read
  const char* what;    ///< what it does, and what it is counted as
};

/// A setting of the weight update, and the flag that says so.
struct UpdateSetting {
  const char* knob;
  const char* value;
  const char* flag;
};

/// A setting of the trainer's, and the flag that says so.
struct OwnSetting {
  std::string knob, value;
  const char* flag;
};

struct Family {
  Framework framework;
  std::string_view word;                        ///< of the dialect and of the version: "slime"
  std::string_view name;                        ///< as it is told
  std::string_view code;                        ///< the folder of its Python: "slime"
  std::string_view trainer, server, placement;  ///< its files about them, for facts
  std::string_view program;                     ///< what a command starts: "train.py or train_async.py"
  const FlagTable& (*flags)();
  std::span<const NotYet> not_yet;
  std::span<const NotYet> later = {};        ///< flags of states behind the table that change what is trained
  std::span<const Branch> branches = {};     ///< words of branches that are read
  std::span<const std::string_view> beside;  ///< beginnings of flags for processes without a share in GPUs, or refused elsewhere
  std::string_view second_servers = {};      ///< how flags of its second servers begin, whose names are SGLang's behind it
  std::string_view (*loss)(Release) = nullptr;  ///< cross_entropy of a release; nullptr: slime's
  std::string_view timers = {};                 ///< what its guide calls the phases, to be told; "": nothing
  bool critics = false;                         ///< described: processes of their own on the actor's GPUs
  bool own_layers = false;                      ///< those of slime's specifications
  bool bridge_makes = false;                    ///< --megatron-to-hf-mode bridge: Megatron-Bridge makes the model, too
  const char* image_size = nullptr;             ///< images are described; what makes them as large as they are
  bool reuses_log_probs = true;                 ///< the loss takes those of the training pass where it can
  bool log_prob_budget = false;                 ///< log-probs of weights that are swapped in have a budget of their own
  /// Settings that the framework itself derives from its flags before all else; nullptr: none.
  void (*prepare)(SlimeText&) = nullptr;
  /// Which roles there are, and with how many GPUs, where it is not as in slime; nullptr: as in slime.
  void (*share)(SlimeText&, SlimeMeaning&) = nullptr;
  /// Facts of its own, behind those of the family; nullptr: none.
  void (*tell)(SlimeText&, SlimeMeaning&) = nullptr;
  /// Free bytes of a GPU below which it empties the allocator's cache before every collective; 0: it never does.
  Bytes (*emptied_below)(const SlimeText&) = nullptr;
  /// Settings of the weight update of its own, a knob and what is said of it each; nullptr: none.
  std::vector<UpdateSetting> (*update)(const SlimeText&) = nullptr;
  /// Settings of the role that learns of its own; nullptr: none.
  std::vector<OwnSetting> (*learner)(const SlimeText&, const SlimeMeaning&) = nullptr;
  /// Its guide for users who run out of memory, not judged yet, and where that stands.
  std::vector<GuidePoint> (*guide)(const SlimeText&, const SlimeMeaning&) = nullptr;
  std::string_view guide_source = {};
  /// What it refuses beside the family's checks, and instead of slime's own; nullptr: slime's.
  void (*check)(SlimeText&, const SlimeMeaning&) = nullptr;
};
/// slime's own.
const Family& family();

}  // namespace oomplan::slime
