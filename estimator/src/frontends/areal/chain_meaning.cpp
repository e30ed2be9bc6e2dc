// From what is written to parts on GPUs, with the checks of areal/api/alloc_mode.py in its order: part by part, then each
// group that shares GPUs, then the whole.
#include <set>

#include <fmt/format.h>

#include "frontends/areal/chain.hpp"

namespace oomplan::areal {
namespace {

class ChainMeaning {
 public:
  explicit ChainMeaning(const Grammar& grammar) : grammar_(grammar) { out_.era = grammar.era; }

  Parsed of(const Chain& chain) {
    for (const auto& group : chain.groups) {
      const std::size_t anchor = out_.parts.size();
      for (const Link& link : group) add(link);
      share(anchor);
    }
    if (chain.groups.size() > 1 && grammar_.names) check_names();
    if (chain.evaluation) add_evaluation();
    if (!why_.empty()) return {std::nullopt, std::move(why_)};
    return {std::move(out_), {}};
  }

 private:
  void fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
  }

  Folded folded(const Link& link) const {
    return link.experts ? fold(link.dims, *link.experts, grammar_.experts) : fold(link.dims, grammar_.expert_tensor_is_tensor);
  }

  Backend backend_of(const Link& link, const Layout& layout) const {
    if (!link.backend.empty()) return *oomplan::parse<Backend>(link.backend);
    return link.experts || layout.pipeline > 1 || layout.expert > 1 ? Backend::megatron : Backend::fsdp;
  }

  void add(const Link& link) {
    const bool missing = link.backend.empty() && !grammar_.infers;
    if (missing && !link.experts) return fail("a part without a backend: from 1.0.3 on each part names it, as in fsdp:d4");
    const Folded folds = folded(link);
    if (!folds.why.empty()) return fail(folds.why);
    if (missing) return fail("a part without a backend: from 1.0.3 on each part names it, as in megatron:(attn:d4|ffn:e4)");
    if (!link.name.empty() && !names_.insert(link.name).second) return fail(fmt::format("two parts are named '{}'", link.name));
    Part part;
    part.name = link.name;
    part.kind = link.inference ? PartKind::inference : PartKind::training;
    part.layout = folds.layout;
    part.expert_data = folds.expert_data;
    part.backend = backend_of(link, part.layout);
    part.backend_stated = !link.backend.empty();
    part.world_only = grammar_.world_only && part.backend == Backend::fsdp;
    check_backend(part);
    out_.parts.push_back(std::move(part));
  }

  void check_backend(const Part& part) {
    const Layout& l = part.layout;
    if (grammar_.fsdp_checked && part.backend == Backend::fsdp && (l.pipeline > 1 || l.expert > 1))
      fail(fmt::format("FSDP takes d, t and c, not p or e: here p is {} and e is {}", l.pipeline, l.expert));
    if (!grammar_.archon_pipeline && part.backend == Backend::archon && l.pipeline > 1)
      fail(fmt::format("Archon takes no p before 1.0.0: here p is {}", l.pipeline));
  }

  /// Everything behind the first part of a group lies on that part's GPUs.
  void share(std::size_t anchor) {
    if (!why_.empty()) return;
    for (std::size_t i = anchor + 1; i < out_.parts.size(); ++i) {
      Part& part = out_.parts[i];
      if (part.name.empty() && grammar_.names) return fail("every part behind '|' must be named");
      const std::int64_t have = out_.parts[anchor].layout.world(), want = part.layout.world();
      if (have != want)
        return fail(fmt::format("parts that share GPUs must take equally many: {} and {} are joined by '|'", have, want));
      part.anchor = anchor;
    }
  }

  void check_names() {
    if (!why_.empty()) return;
    std::size_t unnamed = 0, unstated = 0, unstated_unnamed = 0;
    for (const Part& part : out_.parts) {
      unnamed += part.name.empty();
      unstated += !part.backend_stated;
      unstated_unnamed += !part.backend_stated && part.name.empty();
    }
    if (out_.parts.size() >= 3 && unnamed > 0)
      return fail(fmt::format("three parts or more must all be named: {} are not", unnamed));
    if (unstated > 1 && unstated_unnamed > 0) fail("several parts of training without a backend must all be named");
  }

  void add_evaluation() {
    if (!out_.parts.empty()) out_.parts[0].name.clear();  // the release drops it
    Part part;
    part.backend = Backend::cpu;
    part.kind = PartKind::evaluation;
    out_.parts.push_back(part);
  }

  const Grammar& grammar_;
  Allocation out_;
  std::set<std::string> names_;
  std::string why_;
};

}  // namespace

Parsed parse_chain(std::string_view text, const Grammar& grammar) {
  Chain chain = read_chain(text, grammar);
  if (!chain.why.empty()) return {std::nullopt, std::move(chain.why), std::move(chain.nearest)};
  return ChainMeaning(grammar).of(chain);
}

}  // namespace oomplan::areal
