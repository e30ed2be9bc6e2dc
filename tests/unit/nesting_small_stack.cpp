// What nests as deep as a door allows is read, changed and taken down by functions that call themselves: also on a thread that
// has little stack, as those of Python's and Go's programs have.
#include <doctest/doctest.h>
#include <pthread.h>

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/catalog.hpp"
#include "frontends/compose/compose.hpp"
#include "frontends/compose/resolve.hpp"
#include "frontends/yaml.hpp"

using namespace oomplan;
using namespace oomplan::compose;

namespace {

struct Work {
  std::function<void()> call;
  std::exception_ptr thrown;
};

void* run(void* work) {
  auto& it = *static_cast<Work*>(work);
  try {
    it.call();
  } catch (...) {
    it.thrown = std::current_exception();
  }
  return nullptr;
}

/// On a thread with a stack of 1 MiB; what it throws is thrown here.
void on_a_small_stack(std::function<void()> call) {
  constexpr std::size_t kStack = std::size_t{1} << 20;
  Work work{std::move(call), nullptr};
  pthread_attr_t attributes;
  pthread_t thread;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, kStack) == 0);
  REQUIRE(pthread_create(&thread, &attributes, run, &work) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (work.thrown) std::rethrow_exception(work.thrown);
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string error_of(const std::function<void()>& call) {
  try {
    on_a_small_stack(call);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// "{k0: {k1: {... inner}}}".
std::string maps(int levels, const std::string& inner) {
  std::string out;
  for (int i = 0; i < levels; ++i) out += "{k" + std::to_string(i) + ": ";
  return out + inner + repeated("}", levels);
}

Request request_of(std::map<std::string, std::string> files, std::vector<std::string> overrides = {}) {
  Request out;
  out.config = "main";
  out.files = in_memory(std::move(files));
  out.overrides = std::move(overrides);
  return out;
}

bool tells(const std::vector<Problem>& problems, const std::string& text) {
  for (const Problem& problem : problems)
    if (to_text(problem).find(text) != std::string::npos) return true;
  return false;
}

constexpr int kChain = 50, kLevels = 55;

}  // namespace

TEST_CASE("a tree of YAML at its deepest, and beyond") {
  on_a_small_stack([] {
    const yaml::Node node = yaml::parse(repeated("[", yaml::kDeepest) + repeated("]", yaml::kDeepest), "deep.yaml");
    yaml::Node copy = node;
    CHECK(copy.kind == yaml::Node::Kind::list);
  });
  for (const char* const open : {"[", "{a: ", "- ", "? ", "!x [", "&a [", "[{"})
    CHECK_FALSE(error_of([&] { yaml::parse(repeated(open, 100'000), "deep.yaml"); }).empty());
}

TEST_CASE("jobs and models that nest") {
  const std::string job = "oomplan: 1\nmodel: qwen2.5-0.5b\ngpus: 8 x H100-80GB\nx: ";
  for (const int levels : {60, 100, 100'000}) {
    const std::string lists = repeated("[", levels) + repeated("]", levels);
    CHECK_FALSE(error_of([&] { read(Source{job + lists, "job.yaml"}); }).empty());
    CHECK_FALSE(error_of([&] { read(Source{"experiment_name: a\nactor:\n  path: " + lists, "areal.yaml"}); }).empty());
    const std::string told = error_of([&] { read_config("{\"model_type\": \"llama\", \"x\": " + lists + "}", "config.json"); });
    CHECK((told.find("64 levels") != std::string::npos) == (levels > 64));
  }
}

TEST_CASE("packages, keys and values that nest") {
  const std::string package = repeated("p.", 63) + "p";
  on_a_small_stack([&] {
    Composed deep = compose::compose(
        request_of({{"main.yaml", "defaults: [beside]\n"}, {"beside.yaml", "# @package _global_\nx: " + maps(62, "1")}},
                   {"+" + package + "=" + repeated("[", 30) + repeated("]", 30)}));
    CHECK(deep.problems.empty());
    CHECK(depth_of(deep.root) == 94);
    CHECK_FALSE(compose::resolve(deep.root, {}).problems.empty());  // more than 64 levels
  });
  on_a_small_stack([&] {
    const auto far = compose::compose(request_of({{"main.yaml", "a: 1\n"}}, {"+" + repeated("p.", 100'000) + "p=1"}));
    CHECK_FALSE(far.problems.empty());
    const auto further = compose::compose(request_of({{"main.yaml", "a: 1\n"}}, {"+" + package + ".q=1"}));
    CHECK(tells(further.problems, "at most 64"));
  });
}

TEST_CASE("copies in copies do not make a tree that is deeper than all its files") {
  std::string links = "x0: " + maps(kLevels, "1") + "\n", over;
  for (int i = 1; i < kChain; ++i) {
    links += "x" + std::to_string(i) + ": " + maps(kLevels, "'${x" + std::to_string(i - 1) + "}'") + "\n";
    over += "x" + std::to_string(i) + ": " + maps(kLevels, "{new: 1}") + "\n";
  }
  on_a_small_stack([&] {
    const auto composed =
        compose::compose(request_of({{"main.yaml", "defaults: [beside, _self_]\n" + over}, {"beside.yaml", links}}));
    CHECK(tells(composed.problems, "more than 64 levels"));
    CHECK(depth_of(composed.root) <= 4 * kDeepest);
  });
}

TEST_CASE("what interpolations make of what interpolations make is bounded in all") {
  std::string text = "x0: " + maps(kLevels, "1") + "\n";
  for (int i = 1; i < kChain; ++i)
    text += "x" + std::to_string(i) + ": " + maps(kLevels, "'${oc.create:${x" + std::to_string(i - 1) + "}}'") + "\n";
  on_a_small_stack([&] {
    const auto composed = compose::compose(request_of({{"main.yaml", text}}));
    REQUIRE(composed.problems.empty());
    CHECK(tells(compose::resolve(composed.root, {}).problems, "levels"));
  });
}
