// The doors through which text of users comes in, each as one function of a text: whatever the text is, the answer is an answer
// or an InputError that can be shown to anybody. The fuzzer puts texts of its own to them, ordinary tests the texts that once
// broke something (tests/fuzz/found).
//
// A door of several texts (a job file and its overrides) takes them in one, separated by lines of "%%".
#pragma once
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace oomplan::fuzz {

/// A promise that was not kept.
class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Door {
  std::string_view name;
  /// Throws Broken, or lets out what should never get out.
  void (*put)(std::string_view text);
  /// Changes a text so that much of it stays valid; nullptr: bytes are changed.
  std::string (*change)(std::string_view text, unsigned seed) = nullptr;
  double seconds = 1;  ///< of CPU time that a text may take
};

std::span<const Door> doors();
/// Throws std::out_of_range.
const Door& door(std::string_view name);

void put_job(std::string_view);        ///< a job file; overrides
void put_framework(std::string_view);  ///< a framework's file; overrides; a file beside it
void put_compose(std::string_view);    ///< a configuration of Hydra's; arguments; a file that it names
void put_config(std::string_view);     ///< a model's config.json
void put_serve(std::string_view);      ///< a server's command line
void put_megatron(std::string_view);   ///< a command line of pretrain_gpt.py; overrides
void put_script(std::string_view);     ///< a bash script; its arguments; a file that it names
void put_snapshot(std::string_view);   ///< a memory snapshot: a pickle, or JSON
void put_c(std::string_view);          ///< the C library: a request; overrides; a job
void put_answers(std::string_view);    ///< the name of an example and overrides: figures keep their promises
std::string change_answers(std::string_view text, unsigned seed);

}  // namespace oomplan::fuzz
