// What a server's plan means, in words and in the figures that engines log.
#include <algorithm>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "inference/cache_format.hpp"
#include "inference/server.hpp"

namespace oomplan {
namespace {

double gib(Bytes b) { return static_cast<double>(b) / static_cast<double>(kGiB); }

/// SGLang lets requests wait or takes one back; vLLM preempts and recomputes.
std::string shortage_of(const ServerPlan& p, std::int64_t holds, std::int64_t asked) {
  const std::int64_t left = asked - holds;
  if (holds == 0)
    return fmt::format(
        "one request of this length needs more tokens than the KV pool of {} holds: the engine refuses it or cuts it short",
        p.kv_tokens);
  if (p.engine == EngineKind::vllm)
    return fmt::format(
        "{} of {} requests wait or are preempted and recomputed: the KV pool holds {}; this costs time, not memory", left, asked,
        holds);
  return fmt::format("{} of {} requests queue or are retracted: the KV pool holds {}; this costs time, not memory", left, asked,
                     holds);
}

std::int64_t requests_held(const ServerPlan& p, std::int64_t tokens) {
  if (tokens <= 0 || tokens == p.max_model_len) return p.full_requests;
  std::int64_t out =
      p.token_bytes > 0 ? p.kv_tokens / std::max<std::int64_t>(1, round_up(tokens, p.page_tokens)) : p.full_requests;
  if (p.state_slots > 0) out = std::min(out, p.state_slots);
  return out;
}

}  // namespace

std::string to_text(const ServerPlan& p) {
  switch (p.refusal) {
    case ServerRefusal::none:
      return "";
    case ServerRefusal::cannot_split:
      return "the engine refuses this layout: heads or layers do not divide";
    case ServerRefusal::not_enough_free:
      return fmt::format(
          "the engine refuses to start: {:.2f} GiB of free memory are missing to gpu_memory_utilization={:.2f} ({:.2f} GiB)",
          gib(p.missing), p.fraction, gib(p.budget));
    case ServerRefusal::no_cache:
      return fmt::format(
          "the engine refuses to start: nothing is left for the KV pool ({:.2f} GiB missing at a memory fraction of {:.3f})",
          gib(p.missing), p.fraction);
    case ServerRefusal::request_too_long:
      return fmt::format(
          "the engine refuses to start: one request of {} tokens needs {:.2f} GiB of cache, the pool has {:.2f} GiB{}",
          p.max_model_len, gib(p.request_bytes), gib(p.kv_pool),
          p.longest > 0 ? fmt::format("; the longest that fits has {} tokens", p.longest) : "");
  }
  return "";
}

ServerAnswer describe(const ServerPlan& p, std::string_view role, std::int64_t asked, std::int64_t tokens_per_request) {
  ServerAnswer out;
  out.role = role;
  out.weights = p.weights;
  out.kv_pool = p.kv_pool;
  out.non_kv = std::max<Bytes>(0, p.non_kv - p.weights);  // the engines count the weights in
  out.kv_tokens = p.kv_tokens;
  out.kv_bytes_per_token = p.token_bytes;
  out.tokens_per_request = tokens_per_request;
  out.requests_of_full_length = requests_held(p, tokens_per_request);
  out.requests_asked = asked;
  if (p.refusal != ServerRefusal::none) {
    out.refused = true;
    out.shortage = to_text(p);
    return out;
  }
  if (tokens_per_request > p.max_model_len && p.max_model_len > 0) {
    out.shortage =
        fmt::format("a request of {} tokens is longer than the server's context of {}", tokens_per_request, p.max_model_len);
    return out;
  }
  const std::int64_t holds = std::min(out.requests_of_full_length, p.max_running);
  if (asked > holds) out.shortage = shortage_of(p, holds, asked);
  return out;
}

ServerFigures serve(const Architecture& architecture, EngineKind engine, const Server& server, const Gpu& gpu,
                    const Facts& facts) {
  const ServerModel model = server_model(architecture, engine, with_cache_format(architecture, engine, server, facts, gpu.sm));
  const ServerFacts known = resolve(facts, engine, server, gpu, model);
  ServerPoint point = point_of(server);
  const ServerPlan first = plan(model, known, point);
  ServerFigures out{first.weights,
                    first.weights,
                    first.non_kv,
                    first.kv_pool,
                    first.kv_tokens,
                    first.profile_peak,
                    first[ServerTensor::graphs],
                    first.budget,
                    first.request_bytes,
                    first.longest,
                    to_text(first)};
  for (point.stage = 1; point.stage < point.pipeline; ++point.stage)
    out.largest_weights = std::max(out.largest_weights, plan(model, known, point).weights);
  return out;
}

}  // namespace oomplan
