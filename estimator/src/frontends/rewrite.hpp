// A job's file and the arguments behind it, and what they would be with some settings changed, in the file's own words.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/areal/fact_value.hpp"

namespace oomplan {

namespace areal {
struct ArealText;
class ReadingStore;
}  // namespace areal

/// What read() gives, and of a framework's file what it was understood as.
struct FileReading {
  Reading reading;
  std::unique_ptr<areal::ArealText> text;  ///< empty: a job file of ours
};
/// As read().
FileReading read_file_words(const Source&, const Catalog&, areal::ReadingStore&);
/// The last step of it. Throws InputError with every problem of the text, of its roles and of the job.
Reading reading_of(const areal::ArealText&, const std::string& file, const Catalog&);

/// Settings that were changed, as the file's author would have changed them.
struct Rewrite {
  std::vector<Change> changes;           ///< in the words of the file; the effect is that of our knob
  std::vector<areal::FactValue> values;  ///< what every change writes, typed; of a framework's file
  std::vector<std::string> overrides;    ///< to append to the command line
  std::string why;                       ///< "": done; otherwise why the file cannot say it
  /// What the file so changed is understood as, kept from rewriting it. May be dropped: then it is read again.
  std::shared_ptr<const areal::ArealText> text = {};
};

class FileWords {
 public:
  /// Throws InputError as read() does.
  explicit FileWords(const Source&, const Catalog&);
  ~FileWords();
  FileWords(FileWords&&) noexcept;

  const Reading& reading() const { return reading_; }
  bool native() const { return areal_ == nullptr; }
  /// Knobs and their texts, as in a job file.
  Rewrite rewrite(const std::vector<std::pair<std::string, std::string>>& wanted) const;
  /// The file's own key for one of ours; ours where it has none.
  std::string key_of(std::string_view knob) const;
  /// The file in which the framework logs what a role says; "" when nobody knows.
  std::string log_of(std::string_view role) const;
  /// What read() makes of it. Throws InputError.
  Job job_with(const Rewrite&) const;
  /// With the text of the file changed. `diff` stays empty when the text cannot be changed so that it means the same.
  Patch patch(const Rewrite&) const;

 private:
  bool means_the_same(const Source&, const Rewrite&) const;
  Source with(const Rewrite&) const;
  std::shared_ptr<const areal::ArealText> text_of(const Rewrite&) const;
  struct Kept;
  Source source_;
  const Catalog& catalog_;
  std::unique_ptr<Kept> kept_;  ///< never empty; an object of its own, as it may change under const
  Reading reading_;
  std::unique_ptr<areal::ArealText> areal_;
};

/// Is the file AReaL's? By its dialect, else by its keys.
bool is_areal(const Source&);

}  // namespace oomplan
