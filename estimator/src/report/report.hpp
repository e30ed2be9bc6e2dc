// What reports share: which GPUs are the worst, how a verdict reads, and the reports that only the program and the bindings use.
//
// The reports of an Estimate and of a search are declared in oomplan.hpp. JSON is one object that ends in a line break, indented
// by two; keys stand in fixed order, every size is an integer number of bytes and says so in its key.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// The class of GPUs that lacks most, or that has least to spare; null when there is none.
const GpuAnswer* tightest(const Estimate&);
/// One line without a line break: "does not fit: actor 0-3 (H100-80GB) needs 91.41 GiB of ...".
std::string verdict(const Estimate&);

/// Arguments as a shell takes them, quoted where they need it; lines of `width` break between arguments, and every line after the
/// first starts with `indent` spaces.
std::string shell_lines(const std::vector<std::string>& arguments, std::size_t width, std::size_t indent);
/// What to append to a command line, and what to take out of it ("~--flag"): a line each, indented so.
std::string change_lines(const std::vector<std::string>& overrides, std::size_t width, std::size_t indent);

/// What the job leaves open and an engine's default answers: the key, the value as a job file would have it, and where it is
/// from.
struct Assumed {
  std::string key, value;
  const Origin* origin = nullptr;
};
std::vector<Assumed> assumed(const Job&);

/// What to_json(estimate, job) prints, as an object that more can be put into.
nlohmann::ordered_json estimate_object(const Estimate&, const Job&);
/// A self-contained fragment with inline styles, for notebooks.
std::string to_html(const Found&, const Job&);

/// {"schema": "oomplan.error/1", "problems": [...]}.
std::string to_json(const std::vector<Problem>&);
/// The GPU table: schema "oomplan.gpus/1".
std::string gpus_to_text(const Catalog&, const TextStyle&);
std::string gpus_to_json(const Catalog&);
/// Engine facts, of one engine and version when these are not "": schema "oomplan.facts/1". Throws InputError on a name or a
/// version that the catalog does not know.
std::string facts_to_text(const Catalog&, std::string_view engine, std::string_view version, const TextStyle&);
std::string facts_to_json(const Catalog&, std::string_view engine, std::string_view version);
/// Which release answers for a version that has not been read; "" for one that was.
std::string facts_remark(const Catalog&, std::string_view engine, std::string_view version);

}  // namespace oomplan
