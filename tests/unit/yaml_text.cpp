// One value of a YAML text changed, and nothing else; and differences as `patch` reads them.
#include "frontends/yaml_text.hpp"

#include <doctest/doctest.h>

#include "frontends/unified_diff.hpp"

using oomplan::FactValue;
using oomplan::unified_diff;
using oomplan::yaml::with_value;

namespace {

std::string changed(const std::string& text, const std::string& path, const FactValue& value) {
  const auto out = with_value(text, path, value);
  return out ? out.text : "no: " + out.why;
}

}  // namespace

TEST_CASE("a value is replaced where it stands") {
  CHECK(changed("a: 1\nb: 2\n", "b", 3) == "a: 1\nb: 3\n");
  CHECK(changed("a:\n  b: 1   # why\n", "a.b", 16384) == "a:\n  b: 16384   # why\n");
  CHECK(changed("a: \"x:y\"  # c\n", "a", "fsdp:d4") == "a: \"fsdp:d4\"  # c\n");
  CHECK(changed("a: 'x'\n", "a", "y z") == "a: 'y z'\n");
  CHECK(changed("a: x\n", "a", "y z") == "a: \"y z\"\n");
  CHECK(changed("a: x\n", "a", "yes") == "a: \"yes\"\n");
  CHECK(changed("a: x\n", "a", "12") == "a: \"12\"\n");
  CHECK(changed("a: ${b.c} # d\n", "a", 0.5) == "a: 0.5 # d\n");
  CHECK(changed("a: null\r\nb: 1\r\n", "a", true) == "a: true\r\nb: 1\r\n");
  CHECK(changed("a:\nb: 1\n", "a", true) == "a: true\nb: 1\n");
  CHECK(changed("a:   # later\nb: 1\n", "a", 1) == "a:   1 # later\nb: 1\n");
  CHECK(changed("a: {b: 1, c: {d: x}}  # e\n", "a.c.d", "p:q") == "a: {b: 1, c: {d: \"p:q\"}}  # e\n");
  CHECK(changed("a: {b: '${x.y}', c: 2}\n", "a.b", 7) == "a: {b: 7, c: 2}\n");
  CHECK(changed("s:\n  - t: 1\n    e: {}\n", "s.0.t", 2) == "s:\n  - t: 2\n    e: {}\n");
  CHECK(changed("'a b': {\"c\": 1}\n", "a b.c", 2) == "'a b': {\"c\": 2}\n");
  CHECK(changed("a: &x 1\nb: *x\n", "b", 2) == "a: &x 1\nb: 2\n");
  CHECK(changed("a: [1, 2] # e\n", "a", FactValue::list({1, "x y"})) == "a: [1, \"x y\"] # e\n");
  CHECK(changed("\xc3\xa4: 1\nb: {\xc3\xb6: 2, c: 3}\n", "b.c", 4) == "\xc3\xa4: 1\nb: {\xc3\xb6: 2, c: 4}\n");
}

TEST_CASE("a key that is missing gets a line below its parent") {
  CHECK(changed("a:\n    b: 1\n", "a.c", 2) == "a:\n    c: 2\n    b: 1\n");
  CHECK(changed("# head\nx: 1\n", "y", "z") == "# head\ny: z\nx: 1\n");
  CHECK(changed("a:\n  b: 1\n", "a.f.g", true) == "a:\n  f:\n    g: true\n  b: 1\n");
  CHECK(changed("a: {}\n", "a.f.g", true) == "a: {f: {g: true}}\n");
  CHECK(changed("a: {b: 1}\n", "a.c", 2) == "a: {c: 2, b: 1}\n");
  CHECK(changed("a:\nb: 1\n", "a.c", 2) == "a:\n  c: 2\nb: 1\n");
  CHECK(changed("a: null\nb: 1\n", "a.c", 2) == "a: {c: 2}\nb: 1\n");
  CHECK(changed("s:\n  - t: 1\n    e: {}\n", "s.0.e.V", "x:y") == "s:\n  - t: 1\n    e: {V: \"x:y\"}\n");
  CHECK(changed("s:\n  - t: 1\n    e: {}\n", "s.0.u", 3) == "s:\n  - t: 1\n    u: 3\n    e: {}\n");
  CHECK(changed("a:\n  b: 1", "a.c", 2) == "a:\n  c: 2\n  b: 1");
}

TEST_CASE("what cannot be edited on one line is refused") {
  CHECK(changed("a: >\n  folded\n  text\n", "a", 1) == "no: the value is written over several lines");
  CHECK(changed("a:\n  b: 1\n", "a", 1) == "no: the value is written over several lines");
  CHECK(changed("a: one\n  two\n", "a", 1) == "no: the value is written over several lines");
  CHECK(changed("a: {b: 1,\n  c: 2}\n", "a", 1) == "no: the value is written over several lines");
  CHECK(changed("a: &x {b: 1}\nc: *x\n", "c.b", 1) == "no: the value stands behind an alias");
  CHECK(changed("a: [1]\n", "a.3.b", 1) == "no: the list has no such element");
  CHECK(changed("a: ${b}\n", "a.c", 1) == "no: an interpolation or a plain value stands above it");
}

TEST_CASE("differences are those of diff -u") {
  CHECK(unified_diff("f", "a\nb\n", "a\nb\n").empty());
  CHECK(unified_diff("f", "a\nb\nc\n", "a\nx\nc\n") == "--- f\n+++ f\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
  CHECK(unified_diff("f", "b\n", "a\nb\n") == "--- f\n+++ f\n@@ -1 +1,2 @@\n+a\n b\n");
  CHECK(unified_diff("f", "", "a\n") == "--- f\n+++ f\n@@ -0,0 +1 @@\n+a\n");
  CHECK(unified_diff("f", "a", "b") ==
        "--- f\n+++ f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n");
  std::string before, after;
  for (int i = 0; i < 30; ++i) {
    before += "line " + std::to_string(i) + "\n";
    after += (i == 2 || i == 20 ? "LINE " : "line ") + std::to_string(i) + "\n";
    if (i == 25) after += "more\n";
  }
  CHECK(unified_diff("f", before, after).find("@@ -1,6 +1,6 @@\n") != std::string::npos);
  CHECK(unified_diff("f", before, after).find("@@ -18,12 +18,13 @@\n") != std::string::npos);
}
