#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <oomplan/oomplan.h>
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "frontends/described.hpp"
#include "job/names.hpp"
#include "report/report.hpp"
#include "search/watched.hpp"
#include "units/json_depth.hpp"

struct oomplan_catalog {
  std::unique_ptr<const oomplan::Catalog> overlay;
  const oomplan::Catalog* get() const { return overlay ? overlay.get() : &oomplan::Catalog::builtin(); }
};
struct oomplan_text {
  std::string text;
};

namespace {

using namespace oomplan;

Problem problem(std::string where, std::string found, std::string expected, std::string near = {}) {
  Problem p;
  p.place.path = std::move(where);
  p.found = std::move(found);
  p.expected = std::move(expected);
  p.nearest = std::move(near);
  return p;
}

constexpr int kStopped = 4;

/// Runs `call`, which fills the text and returns the status; whatever it throws becomes the text and the status.
template <class Call>
int guarded(oomplan_text** out, Call&& call) noexcept {
  if (out == nullptr) return 3;
  *out = nullptr;
  try {
    auto text = std::make_unique<oomplan_text>();
    int status = 3;
    try {
      status = call(text->text);
    } catch (const InputError& error) {
      status = 2;
      text->text = to_json(error.problems);
    } catch (const std::exception& error) {
      Problem p;
      p.why = error.what();
      text->text = to_json(std::vector<Problem>{p});
    }
    *out = text.release();
    return status;
  } catch (...) {
    return 3;
  }
}

Reading reading_of(const oomplan_catalog* catalog, const char* job, std::size_t n, const char* overrides) {
  if (catalog == nullptr) throw InputError(problem("catalog", "NULL", "what oomplan_open returned"));
  if (job == nullptr) throw InputError(problem("job", "NULL", "the text of a job file"));
  Source source;
  source.text.assign(job, n);
  std::string_view rest = overrides == nullptr ? "" : overrides;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) source.overrides.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return read(source, catalog->get());
}

int judged(const oomplan_catalog* catalog, const char* job, std::size_t n, const char* overrides, oomplan_text** out,
           Estimate (*judge)(const Job&, const Catalog*)) {
  return guarded(out, [&](std::string& text) {
    const Reading reading = reading_of(catalog, job, n, overrides);
    Estimate answer = judge(reading.job, catalog->get());
    answer.notes.insert(answer.notes.begin(), reading.notes.begin(), reading.notes.end());
    text = to_json(answer, reading.job);
    return answer.fits() ? 0 : 1;
  });
}

struct Request {
  Space space;
  int keep = 10;
  std::string start;  ///< of a job that is described; "": the job has a text
};

Request request_of(const char* text) {
  Request out;
  if (text == nullptr) return out;
  if (const std::string deep = too_deep(text); !deep.empty()) throw InputError(problem("request", deep, "a JSON object"));
  std::vector<Problem> problems;
  std::set<std::string> seen;
  const auto twice = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& key) {
    if (event == nlohmann::json::parse_event_t::key && depth == 1 && !seen.insert(key.get<std::string>()).second)
      problems.push_back(problem("request." + key.get<std::string>(), "the key twice", "once"));
    return true;
  };
  const auto json = nlohmann::json::parse(text, twice, false);
  if (!json.is_object()) throw InputError(problem("request", "something else", "a JSON object"));
  const auto integer = [&](const std::string& key, const nlohmann::json& value, std::int64_t most) -> std::int64_t {
    if (value.is_number_integer() && value >= 1 && value <= most) return value.get<std::int64_t>();
    problems.push_back(problem("request." + key, value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace),
                               "1 to " + std::to_string(most)));
    return 1;
  };
  for (const auto& [key, value] : json.items()) {
    if (key == "gpus") {
      out.space.gpus = integer(key, value, std::int64_t{1} << 17);
    } else if (key == "keep") {
      out.keep = static_cast<int>(integer(key, value, 10'000));
    } else if (key == "threads") {
      out.space.threads = static_cast<int>(integer(key, value, 256));
    } else if (key == "min_probability" && value.is_number() && value >= 0 && value <= 1) {
      out.space.min_probability = value.get<double>();
    } else if (key == "maximise" && value.is_string()) {
      out.space.maximise = value.get<std::string>();
    } else if (key == "allow" && value.is_string() && parse<Effect>(value.get<std::string>())) {
      out.space.allow = *parse<Effect>(value.get<std::string>());
    } else if (key == "start" && value.is_object()) {
      out.start = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    } else if (key == "fixed" && value.is_array()) {
      for (const auto& item : value)
        if (item.is_string())
          out.space.fixed.push_back(item.get<std::string>());
        else
          problems.push_back(
              problem("request.fixed", item.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), "a list of keys"));
    } else {
      const std::vector<std::string> keys{"gpus", "allow", "maximise", "fixed", "min_probability", "keep", "threads", "start"};
      problems.push_back(problem("request", "'" + key + "' with a value of this type", list_of(keys), nearest(key, keys)));
    }
  }
  if (!problems.empty()) throw InputError(problems);
  return out;
}

/// The job of the text, or the one that the request describes.
Described begin_of(const Request& wish, const oomplan_catalog* catalog, const char* job, std::size_t n, const char* overrides) {
  if (wish.start.empty()) return {std::nullopt, reading_of(catalog, job, n, overrides).job, {}};
  if (catalog == nullptr) throw InputError(problem("catalog", "NULL", "what oomplan_open returned"));
  if (job != nullptr || overrides != nullptr)
    throw InputError(problem("request.start", "together with a job or overrides", "one of them"));
  const Catalog* known = catalog->get();
  return described(wish.start, known != nullptr ? *known : Catalog::builtin());
}

}  // namespace

extern "C" {

int oomplan_abi(void) { return OOMPLAN_ABI; }
const char* oomplan_version(void) { return oomplan::version().data(); }  // a literal: ends in 0

oomplan_catalog* oomplan_open(const char* models_dir_or_null, oomplan_text** error) {
  oomplan_catalog* opened = nullptr;
  oomplan_text* text = nullptr;
  const int status = guarded(&text, [&](std::string&) {
    auto catalog = std::make_unique<oomplan_catalog>();
    if (models_dir_or_null != nullptr)
      catalog->overlay = std::make_unique<const oomplan::Catalog>(oomplan::Catalog::with_directory(models_dir_or_null));
    opened = catalog.release();
    return 0;
  });
  if (status != 0 && error != nullptr) {
    *error = text;
  } else {
    delete text;
    if (error != nullptr) *error = nullptr;
  }
  return opened;
}

void oomplan_close(oomplan_catalog* catalog) { delete catalog; }

int oomplan_estimate(const oomplan_catalog* catalog, const char* job, size_t n, const char* overrides, oomplan_text** out) {
  return judged(catalog, job, n, overrides, out, oomplan::estimate);
}
int oomplan_estimate_quick(const oomplan_catalog* catalog, const char* job, size_t n, const char* overrides, oomplan_text** out) {
  return judged(catalog, job, n, overrides, out, oomplan::estimate_quick);
}
int oomplan_explain(const oomplan_catalog* catalog, const char* job, size_t n, const char* overrides, oomplan_text** out) {
  return judged(catalog, job, n, overrides, out, oomplan::explain);
}
int oomplan_search(const oomplan_catalog* catalog, const char* job, size_t n, const char* overrides, const char* request,
                   oomplan_text** out) {
  return oomplan_search_watched(catalog, job, n, overrides, request, nullptr, nullptr, out);
}
int oomplan_search_watched(const oomplan_catalog* catalog, const char* job, size_t n, const char* overrides, const char* request,
                           oomplan_stop stop, void* context, oomplan_text** out) {
  return guarded(out, [&](std::string& text) {
    const Request wish = request_of(request);
    const oomplan::Described begin = begin_of(wish, catalog, job, n, overrides);
    oomplan::Found found;
    const auto run = [&](const std::stop_token& token) {
      found = begin.source ? oomplan::search(*begin.source, wish.space, wish.keep, catalog->get(), token)
                           : oomplan::search(begin.job, wish.space, wish.keep, catalog->get(), token);
    };
    stop == nullptr ? run({}) : oomplan::watched(run, [&] { return stop(context) == 0; });
    text = oomplan::to_json(found, begin.job);
    if (found.interrupted) return kStopped;
    return found.best.empty() ? 1 : 0;
  });
}

const char* oomplan_text_data(const oomplan_text* text, size_t* n) {
  if (n != nullptr) *n = text == nullptr ? 0 : text->text.size();
  return text == nullptr ? "" : text->text.c_str();
}
void oomplan_text_free(oomplan_text* text) { delete text; }

}  // extern "C"
