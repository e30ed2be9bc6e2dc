// What becomes of a job that nobody wrote to the end: values that follow, each with its reason, and what is missing.
//
// frontends/assemble makes a Job of what was written; a framework's folder says through this what the framework does with it.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include <oomplan/oomplan.hpp>

#include "catalog/facts.hpp"
#include "job/knob_problem.hpp"
#include "job/knobs.hpp"

namespace oomplan {

/// Origin::Rule::whole_pages and longest_of_model, for people.
inline constexpr std::string_view kWholePages = "padded to whole pages of hidden states";
inline constexpr std::string_view kLongestOfModel = "sequences as long as the model's positions";

struct AssembledJob {
  Job job;
  std::vector<Problem> problems;
  std::vector<Note> notes;
};

/// "actor.layout".
std::string key_of(const Role&, std::string_view knob);

class Derivation {
 public:
  /// `file` is where things are missing from.
  Derivation(const Facts& facts, const std::string& file) : facts_(facts), file_(file) {}

  Job& job() { return out_.job; }
  const Job& job() const { return out_.job; }
  const Facts& facts() const { return facts_; }
  /// The whole number that models/engines has of the trainer's framework and release. Throws InputError when it has none.
  std::int64_t fact(const Trainer&, std::string_view name) const;

  bool written(const std::string& key) const { return written_.contains(key); }
  void is_written(const std::string& key) { written_.insert(key); }
  /// What the job says of the actor and not of this role, which is like it.
  bool taken_over(const std::string& key) const { return taken_over_.contains(key); }

  /// Sets a value that nobody wrote. Nothing happens to a key that was written, that the role has not or that refuses the text.
  void derive(const std::string& key, const std::string& text, std::string because, std::string source = {},
              Origin::Rule rule = Origin::Rule::none);
  /// The value is the actor's.
  void derive_like_the_actor(const std::string& key, const std::string& text);
  void record(const std::string& key, Origin::Kind, std::string because, std::string source = {});

  void note(Note n) { out_.notes.push_back(std::move(n)); }
  void problem(Problem p) { out_.problems.push_back(std::move(p)); }
  void problem(Place, std::string found, Refusal);
  void missing(const std::string& key, std::string expected, std::string why = {});
  std::size_t problems() const { return out_.problems.size(); }
  Place place_of_job() const { return {file_, 0, 0, {}}; }

  AssembledJob take() { return std::move(out_); }

 private:
  const Facts& facts_;
  const std::string& file_;
  std::set<std::string> written_, taken_over_;
  AssembledJob out_;
};

/// Size of the buckets in which weights reach the servers, by the fact of this name, in MiB.
void derive_bucket(Derivation&, const Trainer&, std::string_view fact_name);

}  // namespace oomplan
