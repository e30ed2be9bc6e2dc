// AReaL's allocation strings: "sglang:d4t2+megatron:(attn:d2p2t2|ffn:d2p2e2)" and what older releases wrote.
//
// One string means different things in different releases, so every reading names a release. Five eras, whose rows are in
// grammars.cpp: realhf `sglang.d4m1p1+d2m2p2`, lite `sglang.d4p1t1+d4p1t1`, ebnf `sglang:d4+d4`, named
// `sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4`, stated: `sglang:d4+fsdp:d4`, or one string for each engine.
// Read in areal-project/AReaL: realhf/experiments/common/utils.py (0.1.1 to 0.3.0), areal/api/io_struct.py (0.3.0-lite to
// 0.3.1), areal/experimental/api/io_struct.py (0.3.1), areal/api/alloc_mode.py (from 0.3.2 on).
//
// GPUs of a part: d * t * p * c; e lies over them. A part that shares the GPUs of another adds none. Limits: 4096 characters,
// degrees and GPUs of a part up to 131072.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/units/errors.hpp>

#include "frontends/areal/releases.hpp"
#include "units/enums.hpp"

namespace oomplan::areal {

enum class Era : std::uint8_t { realhf, lite, ebnf, named, stated };
/// Who runs a part. realhf: the Megatron-like trainer of realhf; mock: its fake server; cpu: clients of an evaluation.
enum class Backend : std::uint8_t { sglang, vllm, mock, fsdp, megatron, archon, realhf, cpu };
enum class PartKind : std::uint8_t { inference, training, evaluation };
/// realhf's words in place of letters: placed by hand, by its heuristic, by its search. Such an allocation has no parts.
enum class Placing : std::uint8_t { listed, manual, heuristic, search };
/// Whose parser of a release: of its own trainers, of the realhf trainer that was shipped on until 0.5.1, of the experimental
/// engines of 0.3.1.
enum class Parser : std::uint8_t { current, legacy, experimental };

/// One part of the string.
struct Part {
  std::string name;  ///< "" where none is written; realhf: the model function of `function:letters`
  Backend backend = Backend::fsdp;
  PartKind kind = PartKind::training;
  bool backend_stated = true;         ///< false: the release chooses it (Megatron with p or e above 1, else FSDP)
  bool world_only = false;            ///< the trainer uses the number of GPUs and not the letters: FSDP up to 0.3.2
  Layout layout;                      ///< inference: data is the number of servers
  std::int64_t expert_data = 1;       ///< data degree of the experts
  std::optional<std::size_t> anchor;  ///< index of the part whose GPUs it shares; nothing: its own
  std::int64_t gpus_per_server() const { return layout.tensor * layout.pipeline; }
  bool operator==(const Part&) const = default;
};

/// What a string says in one release.
struct Allocation {
  Era era = Era::stated;
  Placing placing = Placing::listed;
  std::vector<Part> parts;  ///< in the order of the text, except that realhf and lite put inference first
  std::string ignored;      ///< what the release reads over without a word: worth a warning
  /// GPUs of all parts together; clients of an evaluation take none.
  std::int64_t gpus() const;
  bool operator==(const Allocation&) const = default;
};

/// An allocation, or what is wrong. `problem` has no place: the caller knows where the text stands. Its `why` is the reason of
/// that release, and the releases that take the text; `nearest` says the same in that release's grammar where another has it.
struct AllocationRead {
  std::optional<Allocation> allocation;
  Problem problem;
  explicit operator bool() const { return allocation.has_value(); }
};

/// The whole string, `allocation_mode`.
AllocationRead read_allocation(std::string_view text, Release, Parser = Parser::current);
/// One engine's string, `actor.backend` and the like (from 1.0.3 on): exactly one part.
AllocationRead read_engine(std::string_view text, Release);
/// read_allocation, or InputError with its problem at `place`.
Allocation allocation_of(std::string_view text, Release, const Place&, Parser = Parser::current);
/// read_engine, or InputError with its problem at `place`.
Part engine_part_of(std::string_view text, Release, const Place&);

/// Releases in a row that say the same about a string.
struct Acceptance {
  Release first, last;
  bool accepted = false;
  std::string why;      ///< of a refusal
  std::string ignored;  ///< Allocation::ignored
};
/// What each release's current parser says, oldest first, without gaps.
std::vector<Acceptance> acceptance(std::string_view text);
/// "accepted by 0.3.2 to 1.0.2; refused by 1.0.3 and later: a part without a backend". "accepted by no release: ..." with the
/// newest one's reason.
std::string acceptance_text(std::string_view text);

}  // namespace oomplan::areal

namespace oomplan {

template <>
inline constexpr std::array<std::pair<areal::Backend, std::string_view>, 8> kNames<areal::Backend>{
    {{areal::Backend::sglang, "sglang"},
     {areal::Backend::vllm, "vllm"},
     {areal::Backend::mock, "mock"},
     {areal::Backend::fsdp, "fsdp"},
     {areal::Backend::megatron, "megatron"},
     {areal::Backend::archon, "archon"},
     {areal::Backend::realhf, "realhf"},
     {areal::Backend::cpu, "cpu"}}};
template <>
inline constexpr std::array<std::pair<areal::PartKind, std::string_view>, 3> kNames<areal::PartKind>{
    {{areal::PartKind::inference, "inference"},
     {areal::PartKind::training, "training"},
     {areal::PartKind::evaluation, "evaluation"}}};
template <>
inline constexpr std::array<std::pair<areal::Placing, std::string_view>, 4> kNames<areal::Placing>{
    {{areal::Placing::listed, "listed"},
     {areal::Placing::manual, "manual"},
     {areal::Placing::heuristic, "heuristic"},
     {areal::Placing::search, "search"}}};
template <>
inline constexpr std::array<std::pair<areal::Era, std::string_view>, 5> kNames<areal::Era>{{{areal::Era::realhf, "realhf"},
                                                                                            {areal::Era::lite, "lite"},
                                                                                            {areal::Era::ebnf, "ebnf"},
                                                                                            {areal::Era::named, "named"},
                                                                                            {areal::Era::stated, "stated"}}};

}  // namespace oomplan
