// Words of our own job file, and of what is changed by appending its keys.
#pragma once
#include <functional>

#include "catalog/catalog.hpp"
#include "frontends/words.hpp"

namespace oomplan {

class NativeWords : public TextWords {
 public:
  using Read = std::function<Reading(const Source&)>;
  /// `read`: what the dialect makes of a source. Throws what it throws.
  NativeWords(const Source& source, Read read) : TextWords(source), read_(std::move(read)) { reading_ = read_(source_); }

  bool native() const override { return true; }
  Rewrite rewrite(const Settings& asked) const override;
  std::string key_of(std::string_view knob) const override { return std::string(knob); }
  std::string log_of(std::string_view) const override { return {}; }
  std::string_view guide_text(std::string_view, bool) const override { return {}; }
  Job job_with(const Rewrite& rewrite) const override { return read_(with(rewrite)).job; }

 private:
  FactValue value_of(const Rewrite& rewrite, std::size_t number) const override;
  bool means_the_same(const Source& changed, const Rewrite& rewrite) const override;
  Read read_;
};

}  // namespace oomplan
