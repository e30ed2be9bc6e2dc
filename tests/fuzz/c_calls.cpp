// The door of the C library. Its calls take texts that end in a 0, so a text ends at its first.
#include <oomplan/oomplan.h>
#include <nlohmann/json.hpp>

#include "checks.hpp"

namespace oomplan::fuzz {
namespace {

constexpr std::string_view kSmall =
    "oomplan: 1\nframework: torch\nmodel: qwen2.5-0.5b\ngpus: 1 x H100-80GB\nsequences_per_step: 8\n"
    "trainer: {engine: single, layout: d1, tokens_per_micro_batch: 2k, sequence_tokens: 1k}\n";

/// The text of a call, checked and freed.
nlohmann::json taken(oomplan_text* text) {
  require(text != nullptr, "no text");
  std::size_t size = 0;
  const char* data = oomplan_text_data(text, &size);
  const std::string out(data, size);
  oomplan_text_free(text);
  return check_json(out);
}

void check_status(int status, const nlohmann::json& answer) {
  require(status == 0 || status == 1 || status == 2, "status " + std::to_string(status) + ": " + answer.dump());
  require((status == 2) == (answer.at("schema") == "oomplan.error/1"), "an answer of another kind than its status says");
}

}  // namespace

void put_c(std::string_view text) {
  static const oomplan_catalog* const catalog = oomplan_open(nullptr, nullptr);
  const auto parts = parts_of(text, 3);
  oomplan_text* out = nullptr;
  int status = oomplan_estimate_quick(catalog, parts[2].data(), parts[2].size(), parts[1].c_str(), &out);
  check_status(status, taken(out));
  // the request by itself: the job is small, and is looked at behind it
  status = oomplan_search(catalog, kSmall.data(), kSmall.size(), nullptr, parts[0].c_str(), &out);
  check_status(status, taken(out));
}

}  // namespace oomplan::fuzz
