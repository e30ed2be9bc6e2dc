#include "inference/in_service.hpp"

#include <algorithm>
#include <array>

#include "inference/cache.hpp"
#include "inference/stage.hpp"

namespace oomplan {
namespace {

/// SGLang keeps room for what running requests may still write: a share of it that shrinks while nothing has to be taken back,
/// and never more than so many tokens of one request (sglang/srt/environ.py and managers/schedule_policy.py PrefillAdder,
/// 0.5.10).
constexpr double kFirstShare = 0.7, kLastShare = 0.7 * 0.14;
constexpr std::int64_t kShareSteps = 600, kMostReserved = 4096;

/// Pages of the pool and what requests hold of them.
class RequestPages {
 public:
  RequestPages(const ServerModel& m, const ServerFacts& f, const ServerPoint& at, const ServerPlan& p, const ServiceLoad& load)
      : stage_(stage_of(m, f, share_of(m, f, at), at.pipeline, at.stage)), f_(f), plan_(p), draft_(m.draft_tokens), load_(load) {
    const CachePool all = found(p.max_model_len);
    page_bytes_ = all.pages > 0 ? std::max<Bytes>(1, all.kv / all.pages) : 1;
    const bool first_engine = f.budget == BudgetRule::first_engine;
    // one page of vLLM's pool stands for "no page" (vllm/v1/core/block_pool.py, 0.8 and later)
    pages_ = vllm() ? p.kv_pages - (first_engine ? 0 : 1) : p.kv_tokens / std::max<std::int64_t>(1, p.page_tokens);
    if (!load.share_prompts || load.samples <= 1 || load.prompt <= 1 || (vllm() && has_state())) return;
    // whole pages only, and at least one token is computed again (vllm/v1/core/kv_cache_manager.py get_computed_blocks)
    shared_tokens_ = (load.prompt - 1) / p.page_tokens * p.page_tokens;
    shared_ = vllm() ? shared_tokens_ * all.token / page_bytes_ : shared_tokens_ / p.page_tokens;
  }

  bool vllm() const { return plan_.engine == EngineKind::vllm; }
  std::int64_t pages() const { return pages_; }
  std::int64_t shared_tokens() const { return shared_tokens_; }

  /// Of one request that has `tokens`, if nobody shared.
  std::int64_t of_one(std::int64_t tokens) const {
    if (!vllm()) return ceil_div(tokens, std::max<std::int64_t>(1, plan_.page_tokens));
    return found(tokens).request / page_bytes_;
  }
  /// Of `requests` that have `tokens` each.
  std::int64_t of(std::int64_t requests, std::int64_t each) const {
    const std::int64_t prompts = ceil_div(requests, std::max<std::int64_t>(1, load_.samples));
    return requests * each - (requests - prompts) * shared_;
  }
  /// The most requests up to `limit` for which `fits` holds; it holds for fewer where it holds for more.
  template <class Fits>
  static std::int64_t most(std::int64_t limit, const Fits& fits) {
    std::int64_t low = 0, high = limit;
    while (low < high) {
      const std::int64_t middle = high - (high - low) / 2;
      if (fits(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
  /// Requests of `tokens` each that the pool holds together.
  std::int64_t holds(std::int64_t tokens, std::int64_t limit) const {
    const std::int64_t each = of_one(tokens);
    return most(limit, [&](std::int64_t r) { return of(r, each) <= pages_; });
  }
  /// The most response tokens that `requests` can have together.
  std::int64_t grows_to(std::int64_t requests) const {
    return most(load_.response, [&](std::int64_t t) { return of(requests, of_one(load_.prompt + t)) <= pages_; });
  }

 private:
  bool has_state() const {
    return std::any_of(stage_.buckets.begin(), stage_.buckets.begin() + stage_.bucket_count,
                       [](const CacheBucket& b) { return b.kind == CacheKind::state; });
  }
  CachePool found(std::int64_t tokens) const {
    const CacheAsk ask{plan_.kv_pool, tokens, plan_.max_running, plan_.batched_tokens, draft_};
    return vllm() ? vllm_pool(stage_, f_, ask) : sglang_pool(stage_, f_, ask);
  }

  Stage stage_;
  const ServerFacts& f_;
  const ServerPlan& plan_;
  std::int64_t draft_;
  const ServiceLoad& load_;
  Bytes page_bytes_ = 1;
  std::int64_t pages_ = 0, shared_ = 0, shared_tokens_ = 0;
};

/// vLLM lets a request in when the pages of its prompt are free and reserves nothing for its response
/// (vllm/v1/core/sched/scheduler.py schedule, 0.19).
std::int64_t let_in_by_vllm(const RequestPages& pool, const ServiceLoad& load, std::int64_t limit) {
  return pool.holds(load.prompt, limit);
}

/// SGLang lets a request in when its prompt and its reserve fit beside what the running ones hold and reserve. The reserve of
/// these shrinks with every step: the most that ever run together before the first one ends.
std::int64_t let_in_by_sglang(const RequestPages& pool, const ServiceLoad& load, const ServerPlan& plan, std::int64_t limit) {
  const double page = static_cast<double>(std::max<std::int64_t>(1, plan.page_tokens));
  const auto reserve = [&](std::int64_t left) { return static_cast<double>(std::min(left, kMostReserved)) / page; };
  std::int64_t out = 0;
  for (const std::int64_t step : {0, 100, 200, 300, 400, 500, 600}) {
    if (step > load.response) break;
    const double share = kFirstShare + (kLastShare - kFirstShare) * static_cast<double>(step) / static_cast<double>(kShareSteps);
    const std::int64_t each = pool.of_one(load.prompt + step);
    out = std::max(out, RequestPages::most(limit, [&](std::int64_t r) {
                     const double kept =
                         share * static_cast<double>(r - 1) * reserve(load.response - step) + reserve(load.response);
                     return static_cast<double>(pool.of(r, each)) + kept <= static_cast<double>(pool.pages());
                   }));
  }
  return out;
}

/// Prompts and responses of those that give up, each at the length at which the pool was full with it: the area under a falling
/// curve, from sixteen of its points.
std::int64_t recomputed(const RequestPages& pool, const ServiceLoad& load, const InService& s) {
  constexpr std::int64_t kPoints = 16;
  const std::int64_t many = s.given_up, points = std::min(many, kPoints);
  double sum = 0;
  for (std::int64_t i = 0; i < points; ++i) {
    const std::int64_t requests = s.at_once - (2 * i + 1) * many / (2 * points);
    sum += static_cast<double>(load.prompt - s.shared_tokens + pool.grows_to(requests));
  }
  return points == 0 ? 0 : static_cast<std::int64_t>(sum / static_cast<double>(points) * static_cast<double>(many));
}

}  // namespace

/// Are requests as many as the slots of recurrent states let run, and not as many as were asked for?
static bool slots_bind(const ServerFacts& facts, const ServerPoint& point, const ServerPlan& plan, bool drafts,
                       std::int64_t limit) {
  if (plan.state_slots <= 0) return false;
  const std::int64_t slots = slots_per_request(facts, point, drafts);
  return slots > 1 ? plan.state_slots / slots == limit : plan.state_slots == limit && plan.state_slots < plan.max_running;
}

std::optional<InService> in_service(const ServerModel& model, const ServerFacts& facts, const ServerPoint& point,
                                    const ServerPlan& plan, const ServiceLoad& load) {
  if (plan.refusal != ServerRefusal::none || load.requests <= 0 || load.prompt <= 0 || load.response <= 0) return std::nullopt;
  if (plan.max_model_len > 0 && load.prompt + load.response > plan.max_model_len) return std::nullopt;
  if (plan.kv_pages <= 0 || plan.page_tokens <= 0) return std::nullopt;
  const RequestPages pool(model, facts, point, plan, load);
  InService s;
  s.prompt = load.prompt;
  s.response = load.response;
  s.samples = std::max<std::int64_t>(1, load.samples);
  s.shared_tokens = pool.shared_tokens();
  std::int64_t limit = std::min(load.requests, plan.max_running);
  if (plan.state_slots > 0) limit = std::min(limit, plan.state_slots);
  s.at_once = pool.vllm() ? let_in_by_vllm(pool, load, limit) : let_in_by_sglang(pool, load, plan, limit);
  s.to_the_end = pool.holds(load.prompt + load.response, limit);
  s.waiting = load.requests - s.at_once;
  const std::int64_t at_end = pool.of(s.at_once, pool.of_one(load.prompt + load.response));
  s.tokens_wanted = s.at_once * (load.prompt + load.response) - (s.at_once - ceil_div(s.at_once, s.samples)) * s.shared_tokens;
  if (at_end > pool.pages()) s.full_at = pool.grows_to(s.at_once) + 1;
  s.given_up = std::max<std::int64_t>(0, s.at_once - s.to_the_end);
  s.recomputed_tokens = recomputed(pool, load, s);
  if (s.at_once < limit)
    s.cause = pool.vllm() || s.at_once >= pool.holds(load.prompt, limit) ? "kv_pool" : "reserve";
  else if (limit < load.requests)
    s.cause = slots_bind(facts, point, plan, model.draft_tokens > 0, limit) ? "state_slots" : "max_running_requests";
  else if (s.given_up > 0)
    s.cause = "kv_pool";
  return s;
}

}  // namespace oomplan
