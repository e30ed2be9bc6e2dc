// Which release answers for a version.
#include <doctest/doctest.h>

#include "catalog/catalog.hpp"
#include "catalog/engine_releases.hpp"

using namespace oomplan;

TEST_CASE("versions and names of versions are understood as people write them") {
  CHECK(asked_version("0.19.1").numbers == "0.19.1");
  CHECK(asked_version("vllm==0.99").numbers == "0.99");
  CHECK(asked_version("v0.10.1.dev3+gabc").numbers == "0.10.1");
  CHECK(asked_version("v0.10.1.dev3+gabc").before_release);
  CHECK(asked_version("0.15.2rc1.dev93+g11a4c9d30").before_release);
  CHECK_FALSE(asked_version("0.5.10.post1").before_release);
  CHECK(asked_version("0.5.10.post1").valid);
  CHECK(asked_version("nightly").name);
  for (const char* none : {"", "abc", "0.1.x", "..", ".5", "0..1", "1.0-lite"}) {
    CAPTURE(none);
    CHECK_FALSE(asked_version(none).valid);
  }
}

TEST_CASE("a version that was not read is answered by the nearest older one that was") {
  const Facts& facts = Catalog::builtin().facts();
  const auto by = [&](const char* engine, const char* asked) { return answering_version(facts, engine, asked); };
  CHECK(by("vllm", "0.19.1").version == "0.19.1");
  CHECK(by("vllm", "0.19.1").remark.empty());
  CHECK(by("vllm", "0.19").remark.empty());
  CHECK(by("vllm", "0.19.7").version == "0.19.1");
  CHECK(by("vllm", "0.19.7").remark.find("nearest older") != std::string::npos);
  CHECK(by("vllm", "v0.10.1.dev").version == "0.10.0");
  CHECK(by("vllm", "0.99").version == "0.24.0");
  CHECK(by("vllm", "vllm==0.99").remark.find("newest") != std::string::npos);
  CHECK(by("vllm", "nightly").version == "0.24.0");
  CHECK_FALSE(by("vllm", "nightly").remark.empty());
  CHECK(by("vllm", "0.4.3").version.empty());
  CHECK(by("vllm", "abc").version.empty());
  CHECK(by("sglang", "0.5.10.post1").remark.empty());
  CHECK(by("sglang", "0.5.0").version == "0.4.10");
  CHECK(by("sglang", "0.9").version == "0.5.18");
  for (const char* engine : {"vllm", "sglang"})
    for (const std::string& one : known_releases(facts, engine)) {
      CAPTURE(one);
      CHECK(by(engine, one.c_str()).version == one);
      CHECK(by(engine, one.c_str()).remark.empty());
    }
}
