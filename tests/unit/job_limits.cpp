#include <doctest/doctest.h>

#include "job/limits.hpp"

using namespace oomplan;

TEST_CASE("no total can pass 2^60: the product of all limits") {
  // One term with all its copies is at most 2^52; so many terms as roles have together stay below 2^60.
  const double device = most_of_a_term() * kCopies * static_cast<double>(kRoleLimit * kTermsOfARole.size());
  CHECK(device <= static_cast<double>(pow2(60)));
  const double host = most_of_a_term() * 4 * static_cast<double>(kGpusPerNodeLimit.most) * static_cast<double>(kRoleLimit);
  CHECK(host <= static_cast<double>(pow2(60)));
  // What a user may add to that on top.
  CHECK(device + 3 * static_cast<double>(kMemoryLimit.most) < 9.2e18);
}

TEST_CASE("a term at the limits of its own numbers is caught, although their product passes 2^63") {
  Factors all;
  all.tokens = all.sequence = static_cast<double>(kTokenLimit.most);
  all.layers = static_cast<double>(kLayerLimit.most);
  all.width = static_cast<double>(kWidthLimit.most);
  all.heads = static_cast<double>(kHeadLimit.most);
  all.vocabulary = static_cast<double>(kVocabularyLimit.most);
  all.hidden = static_cast<double>(kHiddenLimit.most);
  all.requests = static_cast<double>(kRequestLimit.most);
  all.parameters = 1e18;
  all.adapters = static_cast<double>(pow2(20)) * all.layers * all.width;
  const auto large = terms_too_large(all);
  for (std::size_t i = 0; i < large.size(); ++i) {
    CAPTURE(kTermsOfARole[i].name);
    CHECK(large[i]);
    CHECK(kTermsOfARole[i].bytes(all) < 1e38);  // and the check itself is far from overflow
  }
}

TEST_CASE("the largest models of today are far inside") {
  Factors deepseek;  // 671B, 128k tokens in one micro-batch
  deepseek.tokens = deepseek.sequence = 131072;
  deepseek.layers = 61;
  deepseek.width = 24576;
  deepseek.heads = 0;
  deepseek.vocabulary = 129280;
  deepseek.hidden = 7168;
  deepseek.requests = 1024;
  deepseek.parameters = 671e9;
  deepseek.adapters = 64.0 * 61 * 256 * 4 * (2 * 2048 + 7168);  // rank 64 beside every expert
  for (const bool too_large : terms_too_large(deepseek)) CHECK_FALSE(too_large);
  Factors eager;  // 32k tokens of a 7B model with eager attention: absurd, but a machine could be asked
  eager.tokens = eager.sequence = 32768;
  eager.layers = 28;
  eager.width = 18944;
  eager.heads = 28;
  for (const bool too_large : terms_too_large(eager)) CHECK_FALSE(too_large);
}
