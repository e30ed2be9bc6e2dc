// Limits of every dimension and count, such that no total of a job can pass 2^60.
//
// Two parts. A row bounds one number. A term bounds a product of numbers that the fold multiplies (activations, scores, logits,
// parameters, KV cache) for one role; it is computed in double and must stay below kMostOfOneTerm. At most kMostTerms terms are
// added up on a device, so every total stays below 2^60 and plain int64 arithmetic is safe behind the validation. A host adds
// four copies of the parameters of each role at most for each of its ranks (load, master copy, two moments): 2^48 * 2^8 * 8.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

struct Limit64 {
  std::int64_t least = 0, most = 0;
  constexpr bool holds(std::int64_t n) const { return n >= least && n <= most; }
};

constexpr std::int64_t pow2(int n) { return std::int64_t{1} << n; }

// Job and roles.
inline constexpr Limit64 kGpuLimit{1, pow2(17)};
inline constexpr Limit64 kGpusPerNodeLimit{1, pow2(8)};
inline constexpr Limit64 kBucketLimit{1, pow2(20)};      ///< MiB of a bucket of DDP
inline constexpr Limit64 kTokenLimit{1, pow2(24)};       ///< of a micro-batch, a sequence, a prefill chunk
inline constexpr Limit64 kZeroBucketLimit{1, pow2(40)};  ///< elements of a bucket or group of ZeRO
inline constexpr Limit64 kAdapterRankLimit{1, pow2(10)};
inline constexpr Limit64 kGroupLimit{1, pow2(20)};      ///< inputs of a GPTQ layer that share a scale
inline constexpr Limit64 kSequenceLimit{1, pow2(24)};   ///< of a step, a micro-batch
inline constexpr Limit64 kImageLimit{1, pow2(12)};      ///< of a sequence
inline constexpr Limit64 kHeldImageLimit{1, pow2(16)};  ///< of a rank's batch, and copies
inline constexpr Limit64 kPixelLimit{0, pow2(14)};      ///< of an image's side
inline constexpr Limit64 kPatchLimit{1, pow2(20)};      ///< of a micro-batch's images
inline constexpr Limit64 kMicroBatchLimit{1, pow2(20)};
inline constexpr Limit64 kRequestLimit{1, pow2(20)};  ///< in flight
inline constexpr Limit64 kMemoryLimit{0, pow2(50)};   ///< host memory, buckets, other processes
inline constexpr std::size_t kRoleLimit = 7;          ///< one of each kind

// Dimensions of a model.
inline constexpr Limit64 kHiddenLimit{1, pow2(17)};
inline constexpr Limit64 kWidthLimit{0, pow2(21)};  ///< of one feed-forward, of all heads together
inline constexpr Limit64 kVocabularyLimit{1, pow2(22)};
inline constexpr Limit64 kLayerLimit{1, pow2(12)};
inline constexpr Limit64 kHeadLimit{0, pow2(12)};
inline constexpr Limit64 kExpertLimit{0, pow2(14)};

inline constexpr int kMostOfOneTerm = 52;  ///< log2 of bytes, copies within the term included
inline constexpr int kMostTerms = 256;     ///< on one device; roles * terms, see the assertion below
inline constexpr double kCopies = 64;      ///< tensors of the same size that are alive at once within a term

/// The factors of one term for one role, each already within its own row. Unknown ones are 1.
struct Factors {  // heads: of eager attention, 0 otherwise
  double tokens = 1, sequence = 1, layers = 1, width = 1, heads = 1, vocabulary = 1, hidden = 1, requests = 1, parameters = 1;
  double adapters = 0;  ///< of LoRA: elements of all pairs in all slots, or more
};
struct Term {
  std::string_view name;
  double (*bytes)(const Factors&);  ///< without kCopies
};
inline constexpr std::array<Term, 6> kTermsOfARole{{
    {"activations", [](const Factors& f) { return 4 * f.tokens * f.layers * f.width; }},
    {"attention scores", [](const Factors& f) { return 4 * f.tokens * f.sequence * f.heads * f.layers; }},
    {"logits", [](const Factors& f) { return 4 * f.tokens * f.vocabulary; }},
    {"parameters", [](const Factors& f) { return 4 * f.parameters; }},
    {"LoRA adapters", [](const Factors& f) { return 4 * f.adapters; }},
    {"KV cache asked for", [](const Factors& f) { return f.requests * f.sequence * f.layers * f.width / 16; }},
}};

/// The most bytes of a term before its copies.
constexpr double most_of_a_term() { return static_cast<double>(pow2(kMostOfOneTerm)) / kCopies; }

/// Names of the terms that pass their limit.
inline std::array<bool, kTermsOfARole.size()> terms_too_large(const Factors& f) {
  std::array<bool, kTermsOfARole.size()> out{};
  for (std::size_t i = 0; i < kTermsOfARole.size(); ++i) out[i] = !(kTermsOfARole[i].bytes(f) <= most_of_a_term());
  return out;
}

static_assert(kMostTerms * (static_cast<double>(pow2(kMostOfOneTerm))) <= static_cast<double>(pow2(60)));
static_assert(kRoleLimit * kTermsOfARole.size() <= kMostTerms);
static_assert(most_of_a_term() * 4 * static_cast<double>(kGpusPerNodeLimit.most) * kRoleLimit <= static_cast<double>(pow2(60)));

}  // namespace oomplan
