#include "frontends/areal/remarks.hpp"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/areal/batches.hpp"
#include "frontends/areal/turns.hpp"

namespace oomplan::areal {
namespace {

/// At most 2^40 tokens, far above every limit, so that sums and products of them stay numbers.
std::int64_t whole(const Fact* fact) {
  if (fact == nullptr || !fact->value.is_integer()) return 0;
  return std::clamp<std::int64_t>(fact->value.integer(), 0, std::int64_t{1} << 40);
}

Place place_of(const Fact& fact, std::string path) {
  Place out = fact.origin.place;
  out.path = std::move(path);
  return out;
}

/// The trained role with a budget of tokens.
const BuiltRole* learner(const Meaning& m) {
  for (const auto& r : m.roles)
    if (r.name == "actor" || r.name == "trainer") return &r;
  return nullptr;
}

/// The least budget that holds a sequence is compared without the padding behind it (areal/utils/seqpack.py: ffd_allocate), which
/// a job's budget has: the rest is told where jobs are checked.
std::optional<Note> padding_alone_holds(const Meaning& m, const BuiltRole& role, std::int64_t longest) {
  const Fact* budget = m.find(fmt::format("roles.{}.micro_batch.tokens_per_micro_batch", role.name));
  const std::int64_t tokens = whole(budget);
  if (tokens <= 0 || tokens >= longest || round_up(tokens, 256) < longest) return std::nullopt;
  return Note{Note::Level::warning, place_of(*budget, role.path + ".mb_spec.max_tokens_per_mb"),
              fmt::format("found {} tokens, but the longest sequence needs at least {}", tokens, longest)};
}

/// areal/models/tree_attn/module_archon.py
std::optional<Note> note_of_trees(const BuiltRole& r, const compose::Node& root) {
  const std::string path = r.path + ".enable_tree_training";
  const auto* n = root.at(path);
  if (n == nullptr || n->kind != compose::Node::Kind::boolean || !n->boolean) return std::nullopt;
  Place place = n->origin.place;
  place.path = path;
  return Note{Note::Level::warning, place,
              "Archon calls flex_attention without torch.compile: PyTorch makes scores of all pairs of a micro-batch's tokens, "
              "for all heads. A micro-batch is taken as a full tree of one branch, whose logits cost most"};
}

}  // namespace

std::vector<Note> remarks_of(const Meaning& m, const compose::Node& root) {
  std::vector<Note> out;
  const BuiltRole* r = learner(m);
  if (r == nullptr) return out;
  if (auto note = note_of_trees(*r, root)) out.push_back(*std::move(note));
  const Fact* budget = m.find(fmt::format("roles.{}.micro_batch.tokens_per_micro_batch", r->name));
  const Fact* batch = m.find("job.train_batch_prompts");
  if (batch != nullptr && batch->origin.kind == Origin::Kind::override_ && whole(budget) > 0)
    out.push_back({Note::Level::info, place_of(*batch, "train_dataset.batch_size"),
                   fmt::format("train_dataset.batch_size does not change the peak of a step: micro-batches of "
                               "{}.mb_spec.max_tokens_per_mb = {} tokens do",
                               r->path, whole(budget))});
  const std::int64_t one = whole(m.find("job.max_prompt_length")) + whole(m.find("job.max_response_length"));
  for (const BuiltRole& role : m.roles)
    if (auto note = padding_alone_holds(m, role, one)) out.push_back(*std::move(note));
  // Both sequences of a pair are in one micro-batch (areal/utils/seqpack.py: ffd_allocate raises).
  const std::int64_t pair = one * sequences_together(m);
  if (whole(budget) >= one && whole(budget) > 0 && whole(budget) < pair)
    out.push_back({Note::Level::warning, place_of(*budget, r->path + ".mb_spec.max_tokens_per_mb"),
                   fmt::format("found {} tokens, but the longest pair needs at least {}: AReaL stops at a pair that is longer "
                               "than a micro-batch",
                               whole(budget), pair)});
  // A sequence of several turns ends at gconfig.max_tokens; AReaL stops at one that is longer than a micro-batch
  // (areal/utils/seqpack.py). The default of max_tokens says nothing about the conversations of this job.
  const Fact* longest = m.find("job.max_total_length");
  if (longest != nullptr && longest->by != ToldBy::defaults && whole(budget) >= one && whole(budget) > 0 &&
      whole(longest) > whole(budget))
    out.push_back(
        {Note::Level::warning, place_of(*budget, r->path + ".mb_spec.max_tokens_per_mb"),
         fmt::format("{} tokens hold a prompt and one answer, but a conversation of several turns may reach gconfig.max_tokens "
                     "= {}: AReaL stops at a sequence that is longer than a micro-batch",
                     whole(budget), whole(longest))});
  const auto turns = turns_of(root);
  if (turns && turns->number > 0 && (longest == nullptr || longest->by == ToldBy::defaults)) {
    Place place = turns->node->origin.place;
    place.path = turns->path;
    out.push_back(
        {Note::Level::warning, place,
         fmt::format("{} turns: how long does the longest conversation get? {}.mb_spec.max_tokens_per_mb must hold it and "
                     "gconfig.max_new_tokens; no key of the file says it{}",
                     turns->number, r->path, longest != nullptr ? ", gconfig.max_tokens=N does" : "")});
  }
  return out;
}

}  // namespace oomplan::areal
