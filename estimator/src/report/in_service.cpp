#include "report/in_service.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/format.hpp"

namespace oomplan {
namespace {

std::string why_waiting(const InService& s) {
  if (s.cause == "max_running_requests") return "max_running_requests allows no more";
  if (s.cause == "state_slots") return "there are no more slots for recurrent states";
  if (s.cause == "reserve") return "SGLang keeps room for what the running ones may still write";
  return "the KV pool has no room for their prompts";
}

}  // namespace

std::string in_service_lines(const InService& s, std::size_t indent, std::size_t width) {
  const std::string pad(indent, ' ');
  std::string first =
      fmt::format("in service: {} of {} + {} tokens at once", s.at_once == 1 ? "1 request" : grouped(s.at_once) + " requests",
                  grouped(s.prompt), grouped(s.response));
  if (s.shared_tokens > 0)
    first += fmt::format(", {} of a prompt's tokens held once for its {} responses", grouped(s.shared_tokens), s.samples);
  if (s.full_at > 0) first += fmt::format("; {} could end together", grouped(s.to_the_end));
  std::string out = pad + wrapped(first, width, indent + 2) + "\n";
  std::string then;
  if (s.waiting > 0) then = fmt::format("{} wait: {}", grouped(s.waiting), why_waiting(s));
  if (s.given_up > 0)
    then += fmt::format(
        "{}the pool is full at token {} of the responses: {} are preempted or retracted, some {} tokens are "
        "computed again",
        then.empty() ? "" : "; ", grouped(s.full_at), grouped(s.given_up), grouped(s.recomputed_tokens));
  if (!then.empty()) out += pad + "  " + wrapped(then, width, indent + 2) + "\n";
  return out;
}

nlohmann::ordered_json in_service_json(const InService& s) {
  return {{"prompt_tokens", s.prompt},
          {"response_tokens", s.response},
          {"samples_per_prompt", s.samples},
          {"shared_tokens", s.shared_tokens},
          {"at_once", s.at_once},
          {"to_the_end", s.to_the_end},
          {"given_up", s.given_up},
          {"waiting", s.waiting},
          {"full_at_token", s.full_at},
          {"recomputed_tokens", s.recomputed_tokens},
          {"tokens_wanted", s.tokens_wanted},
          {"cause", s.cause}};
}

}  // namespace oomplan
