// A job's file and the arguments behind it, and what they would be with some settings changed, in the file's own words.
#pragma once
#include <memory>

#include "frontends/words.hpp"

namespace oomplan {

class FileWords {
 public:
  /// Throws InputError as read() does.
  explicit FileWords(const Source&, const Catalog&);

  const Reading& reading() const { return words_->reading(); }
  bool native() const { return words_->native(); }
  Rewrite rewrite(const Settings& wanted) const { return words_->rewrite(wanted); }
  std::string key_of(std::string_view knob) const { return words_->key_of(knob); }
  std::string log_of(std::string_view role) const { return words_->log_of(role); }
  std::string_view guide_text(std::string_view knob, bool megatron) const { return words_->guide_text(knob, megatron); }
  Job job_with(const Rewrite& rewrite) const { return words_->job_with(rewrite); }
  Patch patch(const Rewrite& rewrite) const { return words_->patch(rewrite); }

 private:
  std::unique_ptr<TextWords> words_;
};

}  // namespace oomplan
