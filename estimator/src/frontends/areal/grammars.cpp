#include "frontends/areal/grammars.hpp"

#include <algorithm>

namespace oomplan::areal {
namespace {

/// areal-project/AReaL realhf/experiments/common/utils.py, class AllocationMode.
std::vector<Grammar> realhf_rows() {
  Grammar row{.era = Era::realhf,
              .parser = Parser::current,
              .first = "0.1.1",
              .last = "0.1.1",
              .example = "sglang.d4m1p1+d2m2p1, with each of d, m and p",
              .inference = {"vllm", "sglang"},
              .letters = "dmp"};
  std::vector<Grammar> out{row};
  row.first = row.last = "0.1.2";
  row.placings = {"manual", "search"};
  out.push_back(row);
  row.first = row.last = "0.2.0";
  row.inference = {"vllm", "sglang", "mock"};
  row.placings = {"manual", "heuristic", "search"};
  out.push_back(row);
  row.first = row.last = "0.3.0";
  row.placings = {"manual", "heuristic"};
  out.push_back(row);
  row.first = "0.3.0-lite", row.last = "0.5.1";
  row.parser = Parser::legacy;
  out.push_back(row);
  return out;
}

/// areal-project/AReaL areal/api/io_struct.py; the last row areal/experimental/api/io_struct.py. The FSDP engine of these
/// releases takes no degrees (areal/engine/fsdp_engine.py): it shards over all GPUs of the part.
std::vector<Grammar> lite_rows() {
  Grammar row{.era = Era::lite,
              .parser = Parser::current,
              .first = "0.3.0-lite",
              .last = "0.3.0-lite.post2",
              .example = "sglang.d4p1t1+d4p1t1, with each of d, p and t",
              .inference = {"vllm", "sglang"},
              .world_only = true};
  std::vector<Grammar> out{row};
  row.first = row.last = "0.3.1";
  row.server_only = row.layout_first = row.evaluation = true;
  out.push_back(row);
  row.parser = Parser::experimental;
  row.example = "sglang.d4p1t1+d4p2t2c2/d2p2t2e4, with each of d, p and t";
  row.layout_first = row.world_only = false;
  row.whole_text = row.expert_tensor_is_tensor = true;
  out.push_back(row);
  return out;
}

/// areal-project/AReaL areal/api/alloc_mode.py: one inference part, one of training.
std::vector<Grammar> ebnf_rows() {
  Grammar row{.era = Era::ebnf,
              .parser = Parser::current,
              .first = "0.3.2",
              .last = "0.3.2",
              .example = "sglang:d4t2+fsdp:d8, or d8 alone",
              .inference = {"sglang", "vllm"},
              .trainers = {"fsdp", "megatron"},
              .dot = true,
              .evaluation = true,
              .infers = true,
              .fsdp_checked = false,
              .world_only = true,
              .expert_tensor_is_tensor = true,
              .experts = ExpertDefault::attention_tensor};
  std::vector<Grammar> out{row};
  row.first = row.last = "0.3.3";
  row.world_only = false;  // #297
  out.push_back(row);
  row.first = "0.3.4", row.last = "0.4.0";
  row.expert_tensor_is_tensor = false;  // #378
  row.experts = ExpertDefault::attention_data;
  out.push_back(row);
  return out;
}

/// The same file from #565 on: names, chains, shared GPUs.
std::vector<Grammar> named_rows() {
  Grammar row{.era = Era::named,
              .parser = Parser::current,
              .first = "0.4.1",
              .last = "0.5.1",
              .example = "sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4, or sglang:d4+d4",
              .inference = {"sglang", "vllm"},
              .trainers = {"fsdp", "megatron"},
              .names = true,
              .evaluation = true,
              .infers = true,
              .experts = ExpertDefault::attention_data};
  std::vector<Grammar> out{row};
  row.first = "0.5.2", row.last = "0.5.3";
  row.trainers = {"fsdp", "megatron", "archon"};  // #799
  row.archon_pipeline = false;
  row.experts = ExpertDefault::derived;  // #839
  out.push_back(row);
  row.first = "1.0.0.rc1", row.last = "1.0.2";
  row.archon_pipeline = true;
  row.evaluation = false;
  out.push_back(row);
  row.era = Era::stated;
  row.first = "1.0.3", row.last = "2.0.0";
  row.example = "sglang:d4+fsdp:d4";
  row.infers = false;  // #1044
  out.push_back(row);
  row.first = row.last = "2.0.0+";
  row.named_hybrid = true;  // #1500
  out.push_back(row);
  return out;
}

}  // namespace

const std::vector<Grammar>& grammars() {
  static const std::vector<Grammar> rows = [] {
    std::vector<Grammar> out = realhf_rows();
    for (auto* more : {&lite_rows, &ebnf_rows, &named_rows})
      for (Grammar& row : (*more)()) out.push_back(std::move(row));
    return out;
  }();
  return rows;
}

const Grammar* grammar_of(Release release, Parser parser) {
  if (parser == Parser::legacy && release <= release_named("0.3.0")) parser = Parser::current;
  const auto& rows = grammars();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Grammar& row) {
    return row.parser == parser && release_named(row.first) <= release && release <= release_named(row.last);
  });
  return found == rows.end() ? nullptr : &*found;
}

Parsed parse(std::string_view text, const Grammar& grammar) {
  constexpr std::size_t kMostCharacters = 4096;
  if (text.size() > kMostCharacters) return {std::nullopt, "it is longer than 4096 characters"};
  return grammar.era <= Era::lite ? parse_pattern(text, grammar) : parse_chain(text, grammar);
}

}  // namespace oomplan::areal
