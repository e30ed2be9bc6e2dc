// A text that says a job, read in its dialect: what it was understood as, and how a change of the job is spelt in its words.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/guide.hpp>
#include <oomplan/oomplan.hpp>

#include "frontends/fact_value.hpp"

namespace oomplan {

/// Settings that were changed, as the file's author would have changed them.
struct Rewrite {
  std::vector<Change> changes;         ///< in the words of the file; the effect is that of our knob
  std::vector<FactValue> values;       ///< what every change writes, typed; empty: what `changes` say
  std::vector<std::string> overrides;  ///< to append to the command line
  std::string why;                     ///< "": done; otherwise why the file cannot say it
  /// What the words that made it understood the file so changed as. May be dropped: then it is read again.
  std::shared_ptr<const void> text = {};
};
using Settings = std::vector<std::pair<std::string, std::string>>;  ///< knobs and their texts, as in a job file

class TextWords {
 public:
  virtual ~TextWords() = default;
  const Reading& reading() const { return reading_; }
  Reading take_reading() && { return std::move(reading_); }
  /// What was found on the way to the text stands first.
  void add_notes(const std::vector<Note>& notes) { reading_.notes.insert(reading_.notes.begin(), notes.begin(), notes.end()); }
  void reword_notes(const std::function<std::string(const std::string&)>& said) {
    for (Note& note : reading_.notes) note.text = said(note.text);
  }
  /// Does it speak as our own job file does?
  virtual bool native() const = 0;
  virtual Rewrite rewrite(const Settings& asked) const = 0;
  /// The file's own key for one of ours; ours where it has none.
  virtual std::string key_of(std::string_view knob) const = 0;
  /// The file in which the framework logs what a role says; "" when nobody knows.
  virtual std::string log_of(std::string_view role) const = 0;
  /// What the framework's guide says of a change of the knob; "" where our own text says all. `megatron`: of a role on it.
  virtual std::string_view guide_text(std::string_view knob, bool megatron) const = 0;
  /// The framework's guide for its users, in its order, not judged yet, and where it stands; empty: none is known.
  virtual std::vector<GuidePoint> guide() const { return {}; }
  virtual std::string_view guide_source() const { return {}; }
  /// Of a command of flags: the flag beside which a script's author would write a new one; "": nobody knows.
  virtual std::string_view neighbour_of(std::string_view /*flag*/) const { return {}; }
  /// What read() makes of it. Throws InputError.
  virtual Job job_with(const Rewrite&) const = 0;
  /// With the text of the file changed. `diff` stays empty when the text cannot be changed so that it means the same.
  virtual Patch patch(const Rewrite&) const;

 protected:
  explicit TextWords(const Source& source) : source_(source) {}
  /// The source with the rewrite's overrides behind it.
  Source with(const Rewrite&) const;
  /// What the change of that number writes.
  virtual FactValue value_of(const Rewrite&, std::size_t number) const = 0;
  virtual bool means_the_same(const Source& changed, const Rewrite&) const = 0;
  /// Is the text a YAML file whose values can be changed in place? A command line is not.
  virtual bool has_file() const { return true; }

  Source source_;
  Reading reading_;
};

}  // namespace oomplan
