// What differs among the frameworks that share slime's command line: one line for three parsers, a trainer of Megatron, servers
// of SGLang. slime's row stands in framework.cpp; a framework that was made of slime has its own row in its own folder.
#pragma once
#include <span>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan::slime {

class FlagTable;
struct SlimeText;
struct SlimeMeaning;

/// A flag or word of the framework that is not described, with the value that is.
struct NotYet {
  const char* name;
  const char* what;
  const char* only = "";  ///< the words that are described; "": none, the flag must be off
};

struct Family {
  Framework framework;
  std::string_view word;     ///< of the dialect and of the version: "slime"
  std::string_view name;     ///< as it is told
  std::string_view code;     ///< the folder of its Python: "slime"
  std::string_view program;  ///< what a command starts: "train.py or train_async.py"
  const FlagTable& (*flags)();
  std::span<const NotYet> not_yet;
  /// Settings that the framework itself derives from its flags before all else; nullptr: none.
  void (*prepare)(SlimeText&) = nullptr;
  /// Facts and roles of its own, behind those of the family; nullptr: none.
  void (*tell)(SlimeText&, SlimeMeaning&) = nullptr;
  /// What it refuses beside the family's checks, and instead of slime's own; nullptr: slime's.
  void (*check)(SlimeText&, const SlimeMeaning&) = nullptr;
};
/// slime's own.
const Family& family();

}  // namespace oomplan::slime
