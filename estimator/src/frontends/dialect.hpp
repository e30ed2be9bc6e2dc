// The dialects in which a job can be said, a row of each. What a row names stands in the folder of its front end.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catalog/catalog.hpp"
#include "frontends/handed_on.hpp"
#include "frontends/handing.hpp"
#include "frontends/start.hpp"
#include "frontends/words.hpp"

namespace oomplan {

/// A file that starts a job which somebody describes.
struct Written {
  std::string (*text)(Start&) = nullptr;  ///< nullptr: none is written yet
  std::string_view name = "job.yaml";     ///< of the file
  bool shares = false;                    ///< servers and trainers have the same GPUs
};

struct Dialect {
  std::string_view name;   ///< Source::dialect
  bool rewords = false;    ///< remedies are told in its own words
  bool command = false;    ///< its text is a command line: there is no file to write changes into
  bool takes_gpu = false;  ///< the kind of GPU is no key of the text: it is given beside it
  bool (*recognises)(const Source&) = nullptr;
  std::unique_ptr<TextWords> (*words)(const Source&, const Catalog&) = nullptr;
  std::string (*facts)(const Source&) = nullptr;  ///< as JSON; nullptr: it has none
  /// The arguments that make one job the other; nullptr: the overrides of our own keys do.
  std::vector<std::string> (*words_of_change)(const Job& from, const Job& to) = nullptr;
  Written written = {};
  // of scripts and commands
  std::span<const launch::EntryPoint> (*entry_points)() = nullptr;  ///< programs whose words it reads
  Source (*take)(Handing&) = nullptr;                               ///< the source of such a program
  /// Of a file that carries a script, a job of a cluster's launcher: that script. Nothing for other sources.
  std::optional<Source> (*script_in)(const Source&) = nullptr;
  bool takes_gpus = false;     ///< how many GPUs there are is no key of the text
  bool takes_lengths = false;  ///< how long its samples are can be said
  bool takes_images = false;   ///< ... and how large their images
  bool takes_states = false;   ///< ... and what runs linear attention
  /// Does the file start another framework's trainer? Then `hands_on` makes that one's configuration of it.
  bool (*starts_another)(const Source&) = nullptr;
  HandedOn (*hands_on)(const Source&) = nullptr;
};

/// The script that a file carries, a job of a cluster's launcher; nothing for other sources. Throws InputError for a broken one.
std::optional<Source> script_carried_by(const Source&);
/// Of a source: the one that it names, else the first that recognises it. Throws InputError for a name that nobody has.
const Dialect& dialect_of(const Source&);
/// The dialect of that name. REQUIRES: there is one.
const Dialect& dialect_named(std::string_view name);
/// The source of a job that somebody has in mind, in the words of a framework. Throws InputError: it has no such words.
struct Started {
  Source source;
  Start start;
};
/// Is this the name of our own words?
bool is_own(std::string_view framework);
Started started_in(const std::string& framework, const StartAsked&, const Catalog&);
/// The programs that are known: of every dialect, and of frameworks that are not read yet.
std::span<const std::span<const launch::EntryPoint>> entry_points();
/// A framework that is known and not read yet, whose configuration the text is; "": none.
std::string unread_framework_of(std::string_view text);
/// The source read. Throws InputError as read() does.
std::unique_ptr<TextWords> words_of(const Source&, const Catalog&);

}  // namespace oomplan
